#pragma once

#include <pagedkv/tier/redis_answer.hpp>
#include <pagedkv/tier/redis_config.hpp>

#include <hiredis/hiredis.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

namespace pagedkv::detail {

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
    const auto deadline = std::chrono::steady_clock::now() + config.connect_timeout;
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
    const auto owner = std::unique_ptr<char, decltype(&std::free)>{command, &std::free};
    if (size < 0) {
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

}  // namespace pagedkv::detail
