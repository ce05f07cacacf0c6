#pragma once

#include <pagedkv/wire/read_batch.hpp>
#include <pagedkv/wire/wire_socket.hpp>

#include <zmq.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace pagedkv {

/// Where a worker publishes its events.
struct subscriber_config {
  std::string endpoint;                             // "tcp://worker:5557"
  std::string replay_endpoint = {};                 // none when empty
  std::string topic = {};                           // the first characters of the publisher's
  std::chrono::milliseconds replay_timeout{1'000};  // between two batches of a replay
};

/// Receives the events of one worker that publishes as vLLM does. Batches reach the visitor in the order of their
/// numbers, each once. Where a number is missing, the subscriber asks for a replay, and reports a loss when that does
/// not have it. A worker that begins anew counts as a loss. For one thread.
class event_subscriber {
 public:
  /// Throws `zmq::error_t` for an endpoint that cannot be.
  explicit event_subscriber(const subscriber_config& config)
      : config_(config), subscriber_(context_, zmq::socket_type::sub) {
    subscriber_.set(zmq::sockopt::subscribe, config.topic);
    subscriber_.connect(config.endpoint);
  }

  /// Waits for at most `timeout` for a message, then takes all that have arrived; a replay may add `replay_timeout` for
  /// each batch that it brings, and once more. Calls `visitor.batch(const wire_batch&)` for each batch, and
  /// `visitor.lost()` where some are missing: forget what the worker has cached. Returns the number of batches passed
  /// on. Throws what the visitor throws, `zmq::error_t` and `std::bad_alloc`. A batch whose visit throws is lost: the
  /// next call reports that first.
  template <class Visitor>
  std::size_t poll(std::chrono::milliseconds timeout, Visitor&& visitor) {
    if (is_cut_) {
      lose(visitor);
      is_cut_ = false;
    }
    auto count = std::size_t{0};
    while (subscriber_.has_message(timeout)) {
      const auto parts = subscriber_.receive();
      if (const auto number = parts.size() == 3 ? detail::number_in(parts) : std::nullopt) {
        count += take(*number, parts.back().to_string_view(), visitor);
      } else {
        ++num_malformed_;
      }
      timeout = std::chrono::milliseconds{0};
    }
    return count;
  }

  /// Times that batches were missing and could not be replayed, that a visit threw, or that the worker began anew.
  [[nodiscard]] std::int64_t num_losses() const noexcept { return num_losses_; }
  /// Batches that came by replay.
  [[nodiscard]] std::int64_t num_replayed() const noexcept { return num_replayed_; }
  /// Messages that are no batch of KV events. One that has a number counts as lost.
  [[nodiscard]] std::int64_t num_malformed() const noexcept { return num_malformed_; }

 private:
  using clock = std::chrono::steady_clock;

  template <class Visitor>
  std::size_t take(std::uint64_t number, std::string_view payload, Visitor& visitor) {
    if (next_ && number < *next_) {
      lose(visitor);  // the worker began anew
      next_.reset();
    }
    auto count = std::size_t{0};
    if (!next_ || number > *next_) {
      count += replay(next_.value_or(0), number, visitor);
    }
    if (next_ && number > *next_) {
      lose(visitor);
    }
    return count + pass_on(number, payload, visitor);
  }

  /// Asks for the batches from `first` on, and passes on those before `end`.
  template <class Visitor>
  std::size_t replay(std::uint64_t first, std::uint64_t end, Visitor& visitor) {
    if (config_.replay_endpoint.empty()) {
      return 0;
    }
    auto socket = detail::wire_socket{context_, zmq::socket_type::dealer};
    socket.set(zmq::sockopt::linger, 0);
    socket.connect(config_.replay_endpoint);
    const auto request = detail::big_endian(first);
    socket.send(zmq::const_buffer{}, zmq::send_flags::sndmore);
    socket.send(zmq::buffer(request), zmq::send_flags::none);
    auto count = std::size_t{0};
    for (auto since = clock::now();;) {
      const auto left = config_.replay_timeout - std::chrono::floor<std::chrono::milliseconds>(clock::now() - since);
      if (left.count() <= 0 || !socket.has_message(left)) {
        break;
      }
      const auto parts = socket.receive();
      const bool is_reply = parts.size() == 4 || parts.size() == 3;  // vLLM leaves the topic out before 0.26
      const auto number = is_reply ? detail::number_in(parts) : std::nullopt;
      if (!number || *number >= end) {
        break;  // those behind come, or came, by the stream; the mark of the end is the highest number
      }
      if (*number < next_.value_or(0)) {
        continue;  // no such batch extends the wait
      }
      if (next_ && *number > *next_) {
        lose(visitor);
      }
      count += pass_on(*number, parts.back().to_string_view(), visitor);
      ++num_replayed_;
      since = clock::now();
    }
    return count;
  }

  template <class Visitor>
  std::size_t pass_on(std::uint64_t number, std::string_view payload, Visitor& visitor) {
    const auto batch = read_batch(payload);
    if (!batch) {
      ++num_malformed_;
      lose(visitor);
    }
    next_ = number + 1;
    if (batch) {
      is_cut_ = true;
      visitor.batch(*batch);
      is_cut_ = false;
    }
    return batch ? 1 : 0;
  }

  template <class Visitor>
  void lose(Visitor& visitor) {
    ++num_losses_;
    visitor.lost();
  }

  subscriber_config config_;
  zmq::context_t context_;
  detail::wire_socket subscriber_;
  std::optional<std::uint64_t> next_;  // number of the next batch; none before the first
  bool is_cut_ = false;                // a visit of a batch has thrown, and that is not reported yet
  std::int64_t num_losses_ = 0;
  std::int64_t num_replayed_ = 0;
  std::int64_t num_malformed_ = 0;
};

}  // namespace pagedkv
