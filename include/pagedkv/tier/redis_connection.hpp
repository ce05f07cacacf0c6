#pragma once

#include <fcntl.h>
#include <hiredis/hiredis.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <pagedkv/detail/deadline.hpp>
#include <pagedkv/detail/memory.hpp>
#include <pagedkv/policy/tiers/concept.hpp>
#include <pagedkv/tier/redis_config.hpp>
#include <pagedkv/tier/remote_tier.hpp>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace pagedkv::detail {

/// One answer of a store, as hiredis' reader composes it.
struct redis_answer {
  static constexpr auto most_elements = std::size_t{65'536};
  static constexpr auto most_text = std::size_t{65'536};

  int type = 0;          // REDIS_REPLY_…; 0: none of those that are expected here
  long long number = 0;  // an integer, or the size of a text
  std::string text;      // unless it lies in `target`, or is too long
  std::vector<redis_answer> elements;
  std::span<std::byte> target;  // a text of exactly this size is copied here instead

  [[nodiscard]] bool is_status(std::string_view wanted) const noexcept {
    return type == REDIS_REPLY_STATUS && text == wanted;
  }

  /// Makes a reader of hiredis compose the next answer here; valid for as long as neither moves.
  void read_with(redisReader& reader) noexcept {
    reader.fn = functions();
    reader.privdata = this;
  }

  void reset() noexcept {
    type = 0;
    number = 0;
    text.clear();
    elements.clear();
  }

 private:
  /// Where the reader's current value belongs.
  [[nodiscard]] static redis_answer& place_of(const redisReadTask& task) noexcept {
    if (task.parent == nullptr) {
      return *static_cast<redis_answer*>(task.privdata);
    }
    return static_cast<redis_answer*>(task.parent->obj)->elements[static_cast<std::size_t>(task.idx)];
  }

  static void* make_text(const redisReadTask* task, char* bytes, std::size_t size) noexcept {
    auto& answer = place_of(*task);
    answer.type = task->type;
    answer.number = static_cast<long long>(size);
    if (task->type == REDIS_REPLY_STRING && !answer.target.empty() && size == answer.target.size()) {
      std::memcpy(answer.target.data(), bytes, size);
      return &answer;
    }
    const auto kept = with_memory([&] { return answer.text.assign(bytes, std::min(size, most_text)), true; }, false);
    return kept ? &answer : nullptr;
  }

  static void* make_array(const redisReadTask* task, std::size_t size) noexcept {
    auto& answer = place_of(*task);
    answer.type = task->type;
    const auto made = with_memory([&] { return size <= most_elements && (answer.elements.resize(size), true); }, false);
    return made ? &answer : nullptr;
  }

  static void* make_number(const redisReadTask* task, long long number) noexcept {
    auto& answer = place_of(*task);
    answer.type = task->type;
    answer.number = number;
    return &answer;
  }

  static void* make_nil(const redisReadTask* task) noexcept {
    auto& answer = place_of(*task);
    answer.type = REDIS_REPLY_NIL;
    return &answer;
  }

  [[nodiscard]] static redisReplyObjectFunctions* functions() noexcept {
    // Members and the type of an array's size depend on hiredis' version.
    static auto table = [] {
      auto made = redisReplyObjectFunctions{};
      made.createString = make_text;
      made.createArray = [](const redisReadTask* task, auto size) -> void* {
        return make_array(task, static_cast<std::size_t>(size));
      };
      made.createInteger = make_number;
      made.createNil = make_nil;
      made.freeObject = [](void*) {};
      return made;
    }();
    return &table;
  }
};

using redis_time = std::chrono::steady_clock::time_point;

/// Milliseconds for `poll`, rounded up so that it does not return before the deadline.
[[nodiscard]] inline int milliseconds_until(redis_time deadline) noexcept {
  const auto rest = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
  return static_cast<int>(std::clamp(rest, std::chrono::milliseconds{0}, std::chrono::milliseconds{60'000}).count());
}

enum class io_state : unsigned char { progress, blocked, lost };

/// A connection to one node, whose calls do not wait unless they have a deadline. hiredis resolves, connects and
/// parses; bytes are sent from where they lie.
class redis_connection {
 public:
  /// Connects and greets; nothing, and the reason, if that fails. Waits for the resolver as long as it takes.
  [[nodiscard]] static std::unique_ptr<redis_connection> connect(const redis_endpoint& endpoint,
                                                                 const redis_config& config, std::string& failure) {
    auto made = std::make_unique<redis_connection>(endpoint);
    const auto deadline = deadline_in(config.connect_timeout);
    if (!made->open(deadline, failure) || !made->greet(config, deadline, failure)) {
      failure.insert(0, endpoint.host + ":" + std::to_string(endpoint.port) + ": ");
      return nullptr;
    }
    return made;
  }

  explicit redis_connection(const redis_endpoint& endpoint)
      : endpoint_(endpoint),
        context_(endpoint.port == 0 ? redisConnectUnixNonBlock(endpoint.host.c_str())
                                    : redisConnectNonBlock(endpoint.host.c_str(), endpoint.port)) {}

  redis_connection(const redis_connection&) = delete;
  redis_connection& operator=(const redis_connection&) = delete;

  [[nodiscard]] const redis_endpoint& endpoint() const noexcept { return endpoint_; }
  [[nodiscard]] int descriptor() const noexcept { return static_cast<int>(context_->fd); }
  [[nodiscard]] const redis_answer& answer() const noexcept { return answer_; }

  /// Sends what the socket takes and advances `parts` past it.
  [[nodiscard]] io_state send(std::span<iovec>& parts) noexcept {
    while (!parts.empty()) {
      auto message = msghdr{};
      message.msg_iov = parts.data();
      message.msg_iovlen = parts.size();
      auto sent = ::sendmsg(descriptor(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent < 0) {
        return state_of_error();
      }
      while (!parts.empty() && static_cast<std::size_t>(sent) >= parts.front().iov_len) {
        sent -= static_cast<ssize_t>(parts.front().iov_len);
        parts = parts.subspan(1);
      }
      if (sent > 0) {
        parts.front().iov_base = static_cast<char*>(parts.front().iov_base) + sent;
        parts.front().iov_len -= static_cast<std::size_t>(sent);
      }
    }
    return io_state::progress;
  }

  /// Receives into the reader what has arrived, at most one buffer. `most`: more bytes without a whole answer are not
  /// an answer to anything that was asked.
  [[nodiscard]] io_state receive(std::span<char> buffer, std::size_t most) noexcept {
    const auto received = ::recv(descriptor(), buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (received <= 0) {
      return received == 0 ? io_state::lost : state_of_error();
    }
    auto& reader = *context_->reader;
    const auto size = static_cast<std::size_t>(received);
    const auto fed = reader.len - reader.pos <= most && redisReaderFeed(&reader, buffer.data(), size) == REDIS_OK;
    return fed ? io_state::progress : io_state::lost;
  }

  /// Composes the next answer from what was received. `blocked`: it is not whole yet.
  [[nodiscard]] io_state next_answer(std::span<std::byte> target = {}) noexcept {
    if (!is_partial_) {  // the reader holds on to elements of an array that is not whole
      answer_.reset();
    }
    answer_.target = target;
    answer_.read_with(*context_->reader);
    void* whole = nullptr;
    if (redisReaderGetReply(context_->reader, &whole) != REDIS_OK) {
      return io_state::lost;
    }
    is_partial_ = whole == nullptr;
    return is_partial_ ? io_state::blocked : io_state::progress;
  }

  /// One command and its answer, which is in `answer()` unless the connection is lost or the deadline passes.
  [[nodiscard]] bool exchange(std::span<const std::string> words, redis_time deadline) {
    auto texts = std::vector<const char*>{};
    auto sizes = std::vector<std::size_t>{};
    for (const auto& word : words) {
      texts.push_back(word.c_str());
      sizes.push_back(word.size());
    }
    char* command = nullptr;
    const auto size = redisFormatCommandArgv(&command, static_cast<int>(words.size()), texts.data(), sizes.data());
    const auto owner = std::unique_ptr<char, decltype(&redisFreeCommand)>{command, &redisFreeCommand};
    if (owner == nullptr) {
      return false;
    }
    auto part = iovec{command, static_cast<std::size_t>(size)};
    for (auto parts = std::span{&part, 1}; !parts.empty();) {
      const auto state = send(parts);
      if (state == io_state::lost || (state == io_state::blocked && !wait_for(POLLOUT, deadline))) {
        return false;
      }
    }
    return await_answer(deadline);
  }

 private:
  struct free_context {
    void operator()(redisContext* context) const noexcept { redisFree(context); }
  };

  [[nodiscard]] static io_state state_of_error() noexcept {
    return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR ? io_state::blocked : io_state::lost;
  }

  [[nodiscard]] bool open(redis_time deadline, std::string& failure) {
    if (context_ == nullptr || context_->err != 0) {
      failure = context_ == nullptr ? "no memory" : context_->errstr;
      return false;
    }
    if (!wait_for(POLLOUT, deadline)) {
      failure = "no connection in time";
      return false;
    }
    auto problem = 0;
    auto size = socklen_t{sizeof(problem)};
    if (::getsockopt(descriptor(), SOL_SOCKET, SO_ERROR, &problem, &size) != 0 || problem != 0) {
      failure = std::strerror(problem);
      return false;
    }
    const auto on = 1;
    ::setsockopt(descriptor(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));  // in vain for sockets of a file system
    ::fcntl(descriptor(), F_SETFD, FD_CLOEXEC);
    return true;
  }

  [[nodiscard]] bool greet(const redis_config& config, redis_time deadline, std::string& failure) {
    const auto call = [&](std::vector<std::string> words, std::string_view wanted) {
      const auto answered = exchange(words, deadline);
      if (!answered || !answer_.is_status(wanted)) {
        const auto said = answered && answer_.type == REDIS_REPLY_ERROR;
        failure = words.front() + ": " + (said ? answer_.text : std::string{"no answer that is understood"});
        return false;
      }
      return true;
    };
    if (!config.user.empty() && !call({"AUTH", config.user, config.password}, "OK")) {
      return false;
    }
    if (config.user.empty() && !config.password.empty() && !call({"AUTH", config.password}, "OK")) {
      return false;
    }
    if (config.database != 0 && !call({"SELECT", std::to_string(config.database)}, "OK")) {
      return false;
    }
    return call({"PING"}, "PONG");
  }

  [[nodiscard]] bool await_answer(redis_time deadline) {
    constexpr auto most = std::size_t{1} << 24;  // a large cluster's table of slots
    auto buffer = std::array<char, 16'384>{};
    while (true) {
      if (const auto state = next_answer(); state != io_state::blocked) {
        return state == io_state::progress;
      }
      if (!wait_for(POLLIN, deadline) || receive(buffer, most) == io_state::lost) {
        return false;
      }
    }
  }

  [[nodiscard]] bool wait_for(short event, redis_time deadline) noexcept {
    auto wanted = pollfd{descriptor(), event, 0};
    while (std::chrono::steady_clock::now() < deadline) {
      const auto found = ::poll(&wanted, 1, milliseconds_until(deadline));
      if (found > 0 || (found < 0 && errno != EINTR)) {
        return found > 0;
      }
    }
    return false;
  }

  redis_endpoint endpoint_;
  std::unique_ptr<redisContext, free_context> context_;
  redis_answer answer_;
  bool is_partial_ = false;
};

enum class redis_verb : unsigned char { get, set, unlink };

/// A batch as all nodes see it.
struct redis_batch {
  redis_verb verb = redis_verb::get;
  std::span<const remote_value> values;
  std::span<transfer_outcome> outcomes;
  std::string_view options;  // of SET, behind the value
  int num_options = 0;       // the words among them
};

struct redis_request {
  std::size_t index = 0;  // of the value
  int redirections = 0;
  bool asking = false;  // announced to a node that does not have the slot yet
};

/// The requests of a batch to one node. Values are sent from and copied to the caller's memory. The bytes that are
/// asked for and not yet answered are bounded, because the store would keep them in buffers of its own; two values
/// always are, so that the link does not idle between them.
class redis_pipeline {
 public:
  redis_pipeline(std::unique_ptr<redis_connection> connection, std::size_t max_in_flight_bytes)
      : connection_(std::move(connection)), max_in_flight_bytes_(max_in_flight_bytes) {}

  [[nodiscard]] const redis_connection& connection() const noexcept { return *connection_; }
  [[nodiscard]] bool is_busy() const noexcept { return !queued_.empty() || !awaited_.empty(); }
  [[nodiscard]] bool has_unsent() const noexcept { return !unsent_.empty(); }

  void queue(const redis_request& request) { queued_.push_back(request); }

  /// Sends what the bound and the socket let through; false if the connection is lost.
  [[nodiscard]] bool send(const redis_batch& batch) {
    while (true) {
      if (unsent_.empty()) {
        compose(batch);
      }
      if (unsent_.empty()) {
        return true;
      }
      if (const auto state = connection_->send(unsent_); state != io_state::progress) {
        return state == io_state::blocked;
      }
    }
  }

  /// Receives what has arrived and settles the outcomes. `redirect(request, answer)`: whether another node takes it.
  /// False if the connection is lost or answers what was not asked.
  template <class Redirect>
  [[nodiscard]] bool receive(const redis_batch& batch, std::span<char> buffer, const Redirect& redirect) {
    const auto most =
        awaited_.empty() ? buffer.size() : batch.values[awaited_.front().index].bytes.size() + buffer.size();
    const auto state = connection_->receive(buffer, most);
    if (state != io_state::progress) {
      return state == io_state::blocked;
    }
    while (true) {
      const auto reading = batch.verb == redis_verb::get && !awaited_.empty() && !awaited_.front().asking;
      const auto target = reading ? batch.values[awaited_.front().index].bytes : std::span<std::byte>{};
      if (const auto answered = connection_->next_answer(target); answered != io_state::progress) {
        return answered == io_state::blocked;
      }
      if (awaited_.empty() || !settle(batch, redirect)) {
        return false;
      }
    }
  }

 private:
  static constexpr auto max_parts = std::size_t{128};  // of one call; the system's limit is 1,024
  static constexpr auto max_text = std::size_t{64} << 10;

  /// Frames the next requests. Text lies in `text_`, one piece after the other; values stay where they are.
  void compose(const redis_batch& batch) {
    text_.clear();
    parts_.clear();
    while (!queued_.empty() && parts_.size() < max_parts && text_.size() < max_text) {
      const auto request = queued_.front();
      const auto bytes = batch.values[request.index].bytes.size();
      if (awaited_.size() > 1 && in_flight_bytes_ + bytes > max_in_flight_bytes_) {
        break;
      }
      queued_.pop_front();
      in_flight_bytes_ += bytes;
      if (request.asking) {
        add_text({"*1\r\n$6\r\nASKING\r\n"});
        awaited_.push_back(request);
      }
      awaited_.push_back({request.index, request.redirections, false});
      add_command(batch, batch.values[request.index]);
    }
    auto* text = text_.data();
    for (auto& part : parts_) {
      if (part.iov_base == nullptr) {
        part.iov_base = text;
        text += part.iov_len;
      }
    }
    unsent_ = parts_;
  }

  void add_command(const redis_batch& batch, const remote_value& value) {
    const auto key_size = std::to_string(value.key.size());
    if (batch.verb == redis_verb::get) {
      add_text({"*2\r\n$3\r\nGET\r\n$", key_size, "\r\n", value.key, "\r\n"});
      return;
    }
    if (batch.verb == redis_verb::unlink) {
      add_text({"*2\r\n$6\r\nUNLINK\r\n$", key_size, "\r\n", value.key, "\r\n"});
      return;
    }
    add_text({"*", std::to_string(3 + batch.num_options), "\r\n$3\r\nSET\r\n$", key_size, "\r\n", value.key, "\r\n$",
              std::to_string(value.bytes.size()), "\r\n"});
    if (!value.bytes.empty()) {
      parts_.push_back({value.bytes.data(), value.bytes.size()});
    }
    add_text({"\r\n", batch.options});
  }

  /// Adds a part whose address is set when all text is there.
  void add_text(std::initializer_list<std::string_view> pieces) {
    if (parts_.empty() || parts_.back().iov_base != nullptr) {
      parts_.push_back({nullptr, 0});
    }
    for (const auto piece : pieces) {
      text_.append(piece);
      parts_.back().iov_len += piece.size();
    }
  }

  template <class Redirect>
  [[nodiscard]] bool settle(const redis_batch& batch, const Redirect& redirect) {
    const auto request = awaited_.front();
    const auto& answer = connection_->answer();
    awaited_.pop_front();
    if (request.asking) {
      return answer.type == REDIS_REPLY_ERROR || answer.is_status("OK");
    }
    const auto& value = batch.values[request.index];
    in_flight_bytes_ -= value.bytes.size();
    auto& outcome = batch.outcomes[request.index];
    if (answer.type == REDIS_REPLY_ERROR) {
      redirect(request, answer);
      return true;
    }
    if (batch.verb != redis_verb::get) {
      const auto is_set = batch.verb == redis_verb::set;
      const auto done = is_set ? answer.is_status("OK") : answer.type == REDIS_REPLY_INTEGER;
      outcome = done ? transfer_outcome::done : transfer_outcome::failed;
      return done;
    }
    if (answer.type != REDIS_REPLY_NIL && answer.type != REDIS_REPLY_STRING) {
      return false;
    }
    const auto has_size = static_cast<std::size_t>(answer.number) == value.bytes.size();
    outcome = answer.type == REDIS_REPLY_STRING && has_size ? transfer_outcome::done : transfer_outcome::missing;
    return true;
  }

  std::unique_ptr<redis_connection> connection_;
  std::size_t max_in_flight_bytes_;
  std::size_t in_flight_bytes_ = 0;
  std::deque<redis_request> queued_;
  std::deque<redis_request> awaited_;  // answers come in this order
  std::string text_;
  std::vector<iovec> parts_;
  std::span<iovec> unsent_;  // of `parts_`
};

}  // namespace pagedkv::detail
