#pragma once

#include <pagedkv/events/event_queues.hpp>
#include <pagedkv/wire/batch_writer.hpp>
#include <pagedkv/wire/wire_socket.hpp>

#include <zmq.hpp>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

namespace pagedkv {

/// How a worker publishes its events.
struct publisher_config {
  std::string endpoint = "tcp://*:5557";  // the data-parallel rank is added to vLLM's port by convention
  std::string replay_endpoint = {};       // where subscribers ask for batches that they missed; none when empty
  std::string topic = {};                 // llm-d: "kv@<pod-ip>:<port>@<model>"
  wire_encoding encoding = wire_encoding::arrays;
  std::string medium = "GPU";
  std::optional<std::int64_t> rank = {};       // data-parallel
  std::size_t num_kept = 10'000;               // batches that can be asked for again
  std::size_t max_events = 1'024;              // in a batch
  std::chrono::milliseconds interval{1};       // between two readings of the queues
  std::chrono::milliseconds heartbeat{1'000};  // an idle publisher sends an empty batch, which shows a loss before it
  batch_writer::adapters adapter_of = {};      // for salts that stand for adapters; asked on the publisher's thread
  std::optional<std::uint64_t> first_number = {};  // of batches; the system clock's microseconds unless given
};

/// Publishes a cache's events over ZeroMQ in vLLM's format, from a thread of its own: the cache's threads only fill
/// their queues.
///
/// Batches are numbered without gaps, except that a number is left out where the queues had no room for an event, and
/// where a batch is lost: without memory, when a socket fails, or when `adapter_of` throws. Then the thread goes on.
/// Numbers begin at the time of construction, so that a subscriber notices a restart as well; vLLM's begin at 0.
class event_publisher {
 public:
  /// Binds both endpoints. Throws `zmq::error_t` when that fails, and `std::bad_alloc`.
  explicit event_publisher(event_queues queues, const publisher_config& config = {})
      : queues_(std::move(queues)),
        config_(config),
        writer_(config.encoding, config.medium, config.rank, config.adapter_of),
        next_number_(config.first_number.value_or(since_1970<std::chrono::microseconds>())),
        publisher_(context_, zmq::socket_type::pub),
        replayer_(context_, zmq::socket_type::router) {
    publisher_.set(zmq::sockopt::linger, linger);
    replayer_.set(zmq::sockopt::linger, linger);
    replayer_.set(zmq::sockopt::sndhwm, 0);  // a router drops what exceeds the limit: a replay may be all kept batches
    publisher_.bind(config.endpoint);
    if (!config.replay_endpoint.empty()) {
      replayer_.bind(config.replay_endpoint);
    }
    endpoint_ = publisher_.endpoint();
    replay_endpoint_ = replayer_.endpoint();
    thread_ = std::jthread{[this](const std::stop_token& stop) { run(stop); }};
  }

  event_publisher(const event_publisher&) = delete;
  event_publisher& operator=(const event_publisher&) = delete;

  /// Publishes what is in the queues. Waits for up to a second until subscribers have it.
  ~event_publisher() = default;

  /// The bound endpoint, with the port that was chosen for "*".
  [[nodiscard]] const std::string& endpoint() const noexcept { return endpoint_; }
  [[nodiscard]] const std::string& replay_endpoint() const noexcept { return replay_endpoint_; }

  /// Sent so far.
  [[nodiscard]] std::uint64_t num_batches() const noexcept { return num_batches_.load(std::memory_order_relaxed); }
  /// Events of the cache, before blocks of one chain are merged.
  [[nodiscard]] std::uint64_t num_events() const noexcept { return num_events_.load(std::memory_order_relaxed); }

 private:
  static constexpr auto linger = 1'000;  // milliseconds in which the last batches may still leave

  struct kept_batch {
    std::uint64_t number;
    std::string payload;
  };

  template <class Unit>
  [[nodiscard]] static std::uint64_t since_1970() {
    const auto time = std::chrono::system_clock::now().time_since_epoch();
    return static_cast<std::uint64_t>(std::chrono::duration_cast<Unit>(time).count());
  }

  void run(const std::stop_token& stop) {
    auto last_batch = std::chrono::steady_clock::now();
    while (!stop.stop_requested()) {
      or_lose([&] {
        const auto now = std::chrono::steady_clock::now();
        if (publish_queued() || now - last_batch >= config_.heartbeat) {
          publish();
          last_batch = now;
        }
      });
      try {
        answer_replays();
      } catch (...) {  // subscribers ask again
        std::this_thread::sleep_for(config_.interval);
      }
    }
    or_lose([&] {
      if (publish_queued()) {
        publish();
      }
    });
  }

  /// Calls `body()`. If it throws, drops the batch that is begun, and tells subscribers by a number that is left out.
  /// The batch may have been sent, so it keeps its number, and the next one is left out.
  template <class Body>
  void or_lose(Body&& body) {
    try {
      body();
    } catch (...) {
      writer_.clear();
      next_number_ += 2;
      std::this_thread::sleep_for(config_.interval);
    }
  }

  /// Publishes full batches; whether one is begun.
  bool publish_queued() {
    const auto dropped = queues_.num_dropped();
    const auto visit = [&](const cache_event& event) {
      num_events_.fetch_add(1, std::memory_order_relaxed);
      writer_.add(event);
      if (writer_.num_events() >= config_.max_events) {
        publish();
      }
    };
    queues_.drain(visit);
    if (dropped != num_dropped_) {
      num_dropped_ = dropped;
      if (!writer_.empty()) {
        publish();
      }
      ++next_number_;  // the gap that tells subscribers
      return true;
    }
    return !writer_.empty();
  }

  void publish() {
    const auto timestamp = static_cast<double>(since_1970<std::chrono::microseconds>()) * 1e-6;
    const auto payload = writer_.finish(timestamp);
    const auto number = detail::big_endian(next_number_);
    publisher_.send(zmq::buffer(config_.topic), zmq::send_flags::sndmore);
    publisher_.send(zmq::buffer(number), zmq::send_flags::sndmore);
    publisher_.send(zmq::buffer(payload), zmq::send_flags::none);
    if (!config_.replay_endpoint.empty()) {
      kept_.push_back({next_number_, std::string{payload}});
      if (kept_.size() > config_.num_kept) {
        kept_.pop_front();
      }
    }
    writer_.clear();
    ++next_number_;
    num_batches_.fetch_add(1, std::memory_order_relaxed);
  }

  /// Waits for requests for one interval, and answers those that came.
  void answer_replays() {
    auto wait = config_.interval;
    while (replayer_.has_message(wait)) {
      if (const auto request = replayer_.receive(); request.size() == 3) {
        answer(request[0], detail::from_big_endian(request[2].to_string_view()));
      }
      wait = std::chrono::milliseconds{0};
    }
  }

  void answer(const zmq::message_t& subscriber, std::optional<std::uint64_t> first) {
    if (!first) {
      return;
    }
    for (const auto& [number, payload] : kept_) {
      if (number >= *first) {
        reply(subscriber, config_.topic, number, payload);
      }
    }
    reply(subscriber, {}, detail::end_of_replay, {});
  }

  /// The parts of a published message, behind the subscriber and an empty part.
  void reply(const zmq::message_t& subscriber, std::string_view topic, std::uint64_t number, std::string_view payload) {
    const auto bytes = detail::big_endian(number);
    replayer_.send(zmq::buffer(subscriber.data(), subscriber.size()), zmq::send_flags::sndmore);
    replayer_.send(zmq::const_buffer{}, zmq::send_flags::sndmore);
    replayer_.send(zmq::buffer(topic), zmq::send_flags::sndmore);
    replayer_.send(zmq::buffer(bytes), zmq::send_flags::sndmore);
    replayer_.send(zmq::buffer(payload), zmq::send_flags::none);
  }

  event_queues queues_;
  publisher_config config_;
  batch_writer writer_;
  std::deque<kept_batch> kept_;
  std::uint64_t next_number_;
  std::int64_t num_dropped_ = 0;
  std::atomic<std::uint64_t> num_batches_{0};
  std::atomic<std::uint64_t> num_events_{0};
  zmq::context_t context_;
  detail::wire_socket publisher_;
  detail::wire_socket replayer_;
  std::string endpoint_;
  std::string replay_endpoint_;
  std::jthread thread_;  // the last member: it uses the others
};

}  // namespace pagedkv
