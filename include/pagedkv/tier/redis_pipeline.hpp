#pragma once

#include <pagedkv/policy/tiers/concept.hpp>
#include <pagedkv/tier/redis_connection.hpp>
#include <pagedkv/tier/remote_client.hpp>

#include <algorithm>
#include <cstddef>
#include <deque>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <sys/uio.h>

namespace pagedkv::detail {

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
  redis_pipeline(std::unique_ptr<redis_connection> connection, std::size_t max_in_flight_bytes) noexcept
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

  /// In a part whose address is set when all text is there.
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
    if (batch.verb == redis_verb::set) {
      outcome = transfer_outcome::done;
      return answer.is_status("OK");
    }
    if (batch.verb == redis_verb::unlink) {
      outcome = answer.type == REDIS_REPLY_INTEGER ? transfer_outcome::done : transfer_outcome::failed;
      return answer.type == REDIS_REPLY_INTEGER;
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
