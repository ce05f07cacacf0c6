#pragma once

#include <pagedkv/policy/locking/concept.hpp>
#include <pagedkv/policy/locking/parts/spin_pause.hpp>

#include <atomic>
#include <cassert>
#include <cstdint>

namespace pagedkv {

/// A reader-writer lock under which neither kind starves.
///
/// Readers that find a writer inside are let in together when it leaves, before any other writer: a reader waits for
/// one writer at most (the phases of Brandenburg and Anderson, "Spin-based reader-writer synchronization for
/// multiprocessor real-time systems", Real-Time Systems 46, 2010).
///
/// Writers that find somebody inside get in line, and the first in line tries. Newcomers may pass the line, since a
/// lock that waits for a thread to wake up stands idle (as in the LOITER lock: Dice, "Malthusian locks", EuroSys 2017);
/// but after `max_looks` looks the first in line closes the door, and then waits only for those inside, and for the
/// readers that wait for a writer inside.
///
/// A change that a notification follows is sequentially consistent: the notification looks first whether anybody sleeps,
/// and must not look before the change is seen.
///
/// At most 2^14 - 1 threads may hold or await it as readers at once. It outlives every call: a writer that leaves still
/// wakes those whom it has let in.
template <template <class> class Atomic = std::atomic, contention_metrics Metrics = no_contention_metrics>
class basic_fair_shared_mutex {
 public:
  using contention = Metrics;

  static constexpr auto max_looks = 16;

  void lock() noexcept {
    if (!try_enter()) [[unlikely]] {
      wait_in_line();
    }
  }

  void unlock() noexcept {
    auto seen = state_.load(std::memory_order_relaxed);
    while (!state_.compare_exchange_weak(seen, without_writer(seen), std::memory_order_seq_cst,
                                         std::memory_order_relaxed)) {
    }
    if ((seen & readers_waiting) != 0) {
      admissions_.fetch_add(1, std::memory_order_seq_cst);
      admissions_.notify_all();
    } else if ((seen & door_closed) != 0) {
      state_.notify_one();
    }
  }

  void lock_shared() noexcept {
    auto seen = state_.load(std::memory_order_relaxed);
    while (!state_.compare_exchange_weak(seen, seen + (keeps_readers_out(seen) ? one_waiting : one_reader),
                                         std::memory_order_acquire, std::memory_order_relaxed)) {
    }
    assert(num_readers(seen) < max_readers && "too many threads hold or await a lock as readers");
    if (keeps_readers_out(seen)) [[unlikely]] {
      await_admission(seen & phase);
    }
  }

  void unlock_shared() noexcept {
    const auto left = state_.fetch_sub(one_reader, std::memory_order_seq_cst) - one_reader;
    if ((left & (door_closed | readers_inside)) == door_closed) {
      state_.notify_one();
    }
  }

 private:
  // What `state_` is made of.
  static constexpr auto writer_inside = std::uint32_t{1};
  static constexpr auto door_closed = std::uint32_t{2};  // by the first in line
  static constexpr auto phase = std::uint32_t{4};        // changes when waiting readers are let in
  static constexpr auto reader_bits = 14;
  static constexpr auto one_reader = std::uint32_t{1} << 4;
  static constexpr auto one_waiting = one_reader << reader_bits;
  static constexpr auto readers_inside = one_waiting - one_reader;
  static constexpr auto readers_waiting = readers_inside << reader_bits;
  static constexpr auto max_readers = readers_inside / one_reader;

  /// Inside and waiting.
  [[nodiscard]] static std::uint32_t num_readers(std::uint32_t state) noexcept {
    return (state & readers_inside) / one_reader + (state & readers_waiting) / one_waiting;
  }

  [[nodiscard]] static bool keeps_readers_out(std::uint32_t state) noexcept {
    return (state & (writer_inside | door_closed)) != 0;
  }

  [[nodiscard]] static std::uint32_t without_writer(std::uint32_t state) noexcept {
    const auto admitted = state & readers_waiting;
    const auto rest = state & ~(writer_inside | readers_waiting);
    return admitted == 0 ? rest : (rest ^ phase) + (admitted >> reader_bits);
  }

  /// For a reader that is counted as waiting since `before`.
  [[gnu::noinline]] void await_admission(std::uint32_t before) noexcept {
    Metrics::waited();
    for (auto looks = 1;; ++looks) {
      const auto admissions = admissions_.load(std::memory_order_acquire);
      if ((state_.load(std::memory_order_acquire) & phase) != before) {
        return;
      }
      if (looks < max_looks) {
        spin_pause();
      } else {
        admissions_.wait(admissions);
      }
    }
  }

  [[nodiscard]] bool try_enter() noexcept {
    auto seen = state_.load(std::memory_order_relaxed);
    return (seen & (writer_inside | door_closed | readers_inside)) == 0 &&
           state_.compare_exchange_strong(seen, seen | writer_inside, std::memory_order_acquire,
                                          std::memory_order_relaxed);
  }

  [[gnu::noinline]] void wait_in_line() noexcept {
    Metrics::waited();
    const auto ticket = next_ticket_.fetch_add(1, std::memory_order_relaxed);
    for (auto first = first_ticket_.load(std::memory_order_acquire); first != ticket;
         first = first_ticket_.load(std::memory_order_acquire)) {
      first_ticket_.wait(first);
    }
    enter_as_first();
    first_ticket_.store(ticket + 1, std::memory_order_seq_cst);
    first_ticket_.notify_all();
  }

  void enter_as_first() noexcept {
    for (auto looks = 0; looks < max_looks; ++looks) {
      if (try_enter()) {
        return;
      }
      spin_pause();
    }
    auto seen = state_.fetch_or(door_closed, std::memory_order_relaxed) | door_closed;
    for (;;) {
      if ((seen & (writer_inside | readers_inside)) != 0) {
        state_.wait(seen);
        seen = state_.load(std::memory_order_relaxed);
      } else if (state_.compare_exchange_weak(seen, (seen & ~door_closed) | writer_inside, std::memory_order_acquire,
                                              std::memory_order_relaxed)) {
        return;
      }
    }
  }

  Atomic<std::uint32_t> state_{0};
  Atomic<std::uint32_t> admissions_{0};    // of groups of readers; what they sleep on
  Atomic<std::uint32_t> next_ticket_{0};   // of the writer that gets in line next
  Atomic<std::uint32_t> first_ticket_{0};  // of the writer that is first in line
};

using fair_shared_mutex = basic_fair_shared_mutex<>;

static_assert(shared_mutex<fair_shared_mutex>);

}  // namespace pagedkv
