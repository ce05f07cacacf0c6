#pragma once

#include <pagedkv/policy/events/concept.hpp>
#include <pagedkv/policy/locking/parts/thread_index.hpp>

#include <boost/lockfree/policies.hpp>
#include <boost/lockfree/spsc_queue.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace pagedkv {

/// A bounded queue of events for each of `NumProducers` threads, for one consumer. Emitting is wait-free. An event that
/// finds its thread's queue full, or its thread without one, is dropped and counted; so is its number, which is then
/// missing from the stream.
///
/// Numbers tell the order: of two events of one block, the one that happened first has the lower number. Takes
/// `NumProducers * Capacity` times the size of an event.
template <std::size_t Capacity = 1024, std::size_t NumProducers = 32>
class event_queues {
 public:
  static constexpr bool enabled = true;

  event_queues() : queues_(std::make_unique<queues>()) {}

  void emit(const cache_event& event) noexcept {
    auto numbered = event;
    numbered.number = last_number_.fetch_add(1, std::memory_order_relaxed) + 1;
    const auto thread = threads_.current();
    if (thread >= NumProducers || !(*queues_)[thread].push(numbered)) {
      num_dropped_.fetch_add(1, std::memory_order_relaxed);
    }
  }

  /// Moves what there is to the end of `into`, in the order of numbers; returns how many. An event may follow in a
  /// later call than one of a higher number, if another thread was just emitting it. One thread at a time. May throw
  /// `std::bad_alloc`, and then has moved nothing.
  std::size_t drain(std::vector<cache_event>& into) {
    auto available = std::array<std::size_t, NumProducers>{};
    auto total = std::size_t{0};
    for (std::size_t i = 0; i < NumProducers; ++i) {
      available[i] = (*queues_)[i].read_available();
      total += available[i];
    }
    const auto before = into.size();
    into.resize(before + total);
    auto* next = into.data() + before;
    for (std::size_t i = 0; i < NumProducers; ++i) {
      next += (*queues_)[i].pop(next, available[i]);
    }
    std::ranges::sort(into.begin() + static_cast<std::ptrdiff_t>(before), into.end(), {}, &cache_event::number);
    return total;
  }

  [[nodiscard]] std::int64_t num_dropped() const noexcept { return num_dropped_.load(std::memory_order_relaxed); }

 private:
  using queues =
      std::array<boost::lockfree::spsc_queue<cache_event, boost::lockfree::capacity<Capacity>>, NumProducers>;

  this_thread_index threads_;
  std::unique_ptr<queues> queues_;
  std::atomic<std::uint64_t> last_number_{0};
  std::atomic<std::int64_t> num_dropped_{0};
};

static_assert(events<event_queues<>>);

}  // namespace pagedkv
