#pragma once

#include <pagedkv/policy/locking.hpp>

#include <atomic>
#include <cstdint>

namespace pagedkv {

/// A reader-writer lock under which neither kind starves: waiting writers and waiting readers take turns. A reader
/// waits for one writer at most. Writers are served in the order they came, and each waits only for readers that came
/// before its turn; later ones wait for it.
///
/// After the phase-fair ticket lock of Brandenburg and Anderson, "Spin-based reader-writer synchronization for
/// multiprocessor real-time systems" (Real-Time Systems 46, 2010); waiting threads sleep instead of spinning. At most
/// 2^24 - 1 threads may hold or await it as readers at once.
template <template <class> class Atomic = std::atomic, contention_metrics Metrics = no_contention_metrics>
class basic_fair_shared_mutex {
 public:
  using contention = Metrics;

  void lock() noexcept {
    const auto ticket = next_writer_.fetch_add(1);
    await(current_writer_, [&](std::uint32_t current) { return current == ticket; });
    // From here on arriving readers wait. The ticket's parity tells this writer from the next, so that a reader who
    // sleeps through the change of writers still sees that its own is gone.
    const auto arrived = readers_in_.fetch_add(writer_present | (ticket & writer_parity)) & reader_mask;
    await(readers_out_, [&](std::uint32_t departed) { return departed == arrived; });
  }

  void unlock() noexcept {
    readers_in_.fetch_and(reader_mask);
    readers_in_.notify_all();
    current_writer_.fetch_add(1);
    current_writer_.notify_all();
  }

  void lock_shared() noexcept {
    const auto writer = readers_in_.fetch_add(one_reader) & writer_mask;
    if (writer != 0) {
      await(readers_in_, [&](std::uint32_t now) { return (now & writer_mask) != writer; });
    }
  }

  [[nodiscard]] bool try_lock_shared() noexcept {
    auto seen = readers_in_.load(std::memory_order_relaxed);
    while ((seen & writer_mask) == 0) {
      if (readers_in_.compare_exchange_weak(seen, seen + one_reader, std::memory_order_acquire,
                                            std::memory_order_relaxed)) {
        return true;
      }
    }
    return false;
  }

  void unlock_shared() noexcept {
    readers_out_.fetch_add(one_reader);
    readers_out_.notify_one();  // only the writer whose turn it is ever waits here
  }

 private:
  static constexpr auto writer_parity = std::uint32_t{1};
  static constexpr auto writer_present = std::uint32_t{2};
  static constexpr auto writer_mask = writer_present | writer_parity;
  static constexpr auto one_reader = std::uint32_t{0x100};
  static constexpr auto reader_mask = ~(one_reader - 1);

  template <class Condition>
  static void await(const Atomic<std::uint32_t>& word, Condition condition) noexcept {
    auto now = word.load();
    if (!condition(now)) {
      Metrics::waited();
    }
    for (; !condition(now); now = word.load()) {
      word.wait(now);
    }
  }

  Atomic<std::uint32_t> readers_in_{0};      // readers that came, in units of one_reader; the writer present or waiting
  Atomic<std::uint32_t> readers_out_{0};     // readers that left, in the same units
  Atomic<std::uint32_t> next_writer_{0};     // ticket of the next writer to come
  Atomic<std::uint32_t> current_writer_{0};  // ticket of the writer whose turn it is
};

using fair_shared_mutex = basic_fair_shared_mutex<>;

static_assert(shared_mutex<fair_shared_mutex>);

}  // namespace pagedkv
