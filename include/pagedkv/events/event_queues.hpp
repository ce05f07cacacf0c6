#pragma once

#include <pagedkv/core/config.hpp>
#include <pagedkv/policy/events/concept.hpp>
#include <pagedkv/policy/locking/parts/thread_index.hpp>

#include <algorithm>
#include <atomic>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace pagedkv {

/// How much event queues hold.
struct event_queue_sizes {
  std::int32_t capacity = 1024;     // events of one thread
  // Queues. Every thread has a number: the lowest that is free when it first uses event queues, or a cache that admits
  // several threads, until it ends. A thread whose number is not below this has no queue, so its events are dropped.
  std::int32_t num_producers = 32;
  std::int32_t max_keys = 4;        // of one block; an event with more is dropped
};

namespace detail {

/// A bounded queue of events with their tokens and keys, for one thread that pushes and one that pops. Wait-free.
template <template <class> class Atomic>
class event_ring {
 public:
  event_ring(std::size_t capacity, std::size_t max_tokens, std::size_t max_keys)
      : capacity_(capacity),
        max_tokens_(max_tokens),
        max_keys_(max_keys),
        events_(capacity),
        tokens_(capacity * max_tokens),
        keys_(capacity * max_keys) {}

  /// False when the queue is full or an entry has no room for the event's tokens or keys.
  [[nodiscard]] bool push(const cache_event& event, std::uint64_t number) noexcept {
    assert(event.tokens.size() <= max_tokens_ && "event queues made for a smaller block size");
    const auto at = num_pushed_.load(std::memory_order_relaxed);
    if (at - num_popped_.load(std::memory_order_acquire) == capacity_ || event.tokens.size() > max_tokens_ ||
        event.keys.size() > max_keys_) {
      return false;
    }
    const auto place = static_cast<std::size_t>(at % capacity_);
    auto& entry = events_[place];
    entry = event;
    entry.number = number;
    entry.tokens = copy(event.tokens, tokens_.data() + place * max_tokens_);
    entry.keys = copy(event.keys, keys_.data() + place * max_keys_);
    num_pushed_.store(at + 1, std::memory_order_release);
    return true;
  }

  /// Events that are pushed later, and those of higher numbers, wait for the next call.
  void fix_end(std::uint64_t last_number) noexcept {
    end_ = num_pushed_.load(std::memory_order_acquire);
    last_number_ = last_number;
  }
  [[nodiscard]] const cache_event* front() const noexcept {
    const auto at = num_popped_.load(std::memory_order_relaxed);
    const auto* const event = at != end_ ? &events_[static_cast<std::size_t>(at % capacity_)] : nullptr;
    return event != nullptr && event->number <= last_number_ ? event : nullptr;
  }
  void pop() noexcept { num_popped_.fetch_add(1, std::memory_order_release); }

 private:
  template <class T>
  [[nodiscard]] static std::span<const T> copy(std::span<const T> from, T* to) noexcept {
    std::ranges::copy(from, to);
    return {to, from.size()};
  }

  std::size_t capacity_;
  std::size_t max_tokens_;
  std::size_t max_keys_;
  std::vector<cache_event> events_;
  std::vector<token> tokens_;
  std::vector<prefix_key> keys_;
  std::uint64_t end_ = 0;  // of the consumer
  std::uint64_t last_number_ = 0;
  alignas(64) Atomic<std::uint64_t> num_pushed_{0};
  alignas(64) Atomic<std::uint64_t> num_popped_{0};
};

}  // namespace detail

/// A bounded queue of events for each thread, and one consumer for all. Emitting is wait-free and allocates nothing: an
/// entry has room for the tokens and keys of one block. An event that finds its thread's queue full, or its thread
/// without a queue, is dropped and counted; its number is then missing from the stream.
///
/// Numbers tell the order: of two events, one of which happened before the other, that one has the lower number, and
/// comes first. Events of one block are such.
///
/// A handle: copies share the queues, which live as long as the last of them. Give one to the cache, keep another to
/// drain. Memory, taken at construction: for each of `capacity * num_producers` entries an event, `block_size`
/// tokens and `max_keys` keys.
template <event_kinds Kinds = prefix_event_kinds, template <class> class Atomic = std::atomic,
          class Threads = this_thread_index>
class basic_event_queues {
 public:
  static constexpr auto kinds = Kinds;

  /// Queues for caches of at most this block size. Throws `exception` on sizes that are not positive.
  explicit basic_event_queues(std::int32_t block_size, const event_queue_sizes& sizes = {})
      : shared_(std::make_shared<queues>(block_size, sizes)) {}

  void emit(const cache_event& event) noexcept {
    // Releases the events that happened before this one to the consumer that sees its number.
    const auto number = shared_->last_number.fetch_add(1, std::memory_order_release) + 1;
    const auto thread = shared_->threads.current();
    if (thread >= shared_->rings.size() || !shared_->rings[thread]->push(event, number)) {
      shared_->num_dropped.fetch_add(1, std::memory_order_release);
    }
  }

  /// Calls `visit(event)` on every event in the queues, in the order of their numbers; returns how many. The tokens and
  /// keys of an event are valid during its visit. An event may follow in a later call than one of a higher number, if
  /// another thread was just emitting it; but no event follows one that it happened before. One thread at a time. An
  /// event whose visit throws stays in its queue.
  template <class Visit>
  std::size_t drain(Visit&& visit) {
    // Read before the ends of the queues: all that happened before an event with such a number is then in the queues.
    const auto last_number = shared_->last_number.load(std::memory_order_acquire);
    for (const auto& each : shared_->rings) {
      each->fix_end(last_number);
    }
    auto count = std::size_t{0};
    for (auto* next = oldest(); next != nullptr; next = oldest()) {
      visit(*next->front());
      next->pop();
      ++count;
    }
    return count;
  }

  /// Events that found no room. Read it ahead of `drain`; if it has grown, forget behind that call all that events
  /// told: no later call brings one that happened before one of these.
  [[nodiscard]] std::int64_t num_dropped() const noexcept {
    return shared_->num_dropped.load(std::memory_order_acquire);
  }

 private:
  using ring = detail::event_ring<Atomic>;

  static void require_positive(const char* subject, std::int32_t value) {
    if (value <= 0) {
      detail::fail({error_code::invalid_argument, subject, value, 1});
    }
  }

  struct queues {
    queues(std::int32_t block_size, const event_queue_sizes& sizes) {
      require_positive("block_size of event queues", block_size);
      require_positive("event_queue_sizes.capacity", sizes.capacity);
      require_positive("event_queue_sizes.num_producers", sizes.num_producers);
      require_positive("event_queue_sizes.max_keys", sizes.max_keys);
      for (auto i = 0; i < sizes.num_producers; ++i) {
        rings.push_back(std::make_unique<ring>(static_cast<std::size_t>(sizes.capacity),
                                               static_cast<std::size_t>(block_size),
                                               static_cast<std::size_t>(sizes.max_keys)));
      }
    }

    Threads threads;
    std::vector<std::unique_ptr<ring>> rings;
    alignas(64) Atomic<std::uint64_t> last_number{0};
    Atomic<std::int64_t> num_dropped{0};
  };

  /// The queue whose first event has the lowest number.
  [[nodiscard]] ring* oldest() const noexcept {
    ring* found = nullptr;
    for (const auto& each : shared_->rings) {
      if (each->front() != nullptr && (found == nullptr || each->front()->number < found->front()->number)) {
        found = each.get();
      }
    }
    return found;
  }

  std::shared_ptr<queues> shared_;
};

/// Queues for a router.
class event_queues : public basic_event_queues<> {
 public:
  using basic_event_queues::basic_event_queues;
};

static_assert(events<event_queues>);

}  // namespace pagedkv
