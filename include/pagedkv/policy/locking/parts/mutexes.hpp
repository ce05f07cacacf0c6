#pragma once

#include <pagedkv/detail/spin_pause.hpp>
#include <pagedkv/policy/locking/concept.hpp>
#include <pagedkv/policy/locking/parts/contention.hpp>
#include <pagedkv/policy/locking/parts/thread_index.hpp>
#include <pagedkv/policy/locking/parts/unsynchronized.hpp>

#include <array>
#include <atomic>
#include <cassert>
#include <cstdint>
#include <mutex>
#include <utility>

namespace pagedkv {

/// The order in which a thread may lock mutexes: each of a higher rank than all that it holds.
enum class lock_rank : std::uint8_t { sequence = 1, group_nodes, eviction_order, free_list_shard };

/// The ranks that this thread holds, one bit each; only in debug builds.
class held_ranks {
 public:
  /// Around a call out of a cache, which may lock the mutexes of another one: these have an order of their own.
  class of_another {
   public:
    of_another() noexcept {}
#ifndef NDEBUG
    of_another(const of_another&) = delete;
    of_another& operator=(const of_another&) = delete;
    ~of_another() { ranks_ = before_; }

   private:
    unsigned before_ = std::exchange(ranks_, 0U);
#endif
  };

  static void add([[maybe_unused]] lock_rank rank) noexcept {
#ifndef NDEBUG
    assert(ranks_ < bit(rank) && "mutexes are taken in the order of their ranks");
    ranks_ |= bit(rank);
#endif
  }
  static void remove([[maybe_unused]] lock_rank rank) noexcept {
#ifndef NDEBUG
    ranks_ &= ~bit(rank);
#endif
  }

#ifndef NDEBUG
 private:
  [[nodiscard]] static unsigned bit(lock_rank rank) noexcept { return 1U << static_cast<unsigned>(rank); }

  static inline thread_local unsigned ranks_ = 0;
#endif
};

/// A mutex that checks the lock order and counts waits.
template <lock_rank Rank, class Mutex = std::mutex, contention_metrics Metrics = no_contention_metrics>
class ordered_mutex {
 public:
  void lock() {
    held_ranks::add(Rank);
    if (!mutex_.try_lock()) {
      metrics_.waited();
      mutex_.lock();
    }
  }

  [[nodiscard]] bool try_lock() {
    const auto locked = mutex_.try_lock();
    if (locked) {
      held_ranks::add(Rank);
    }
    return locked;
  }

  void unlock() {
    held_ranks::remove(Rank);
    mutex_.unlock();
  }

  [[nodiscard]] contention_counts contention() const noexcept { return metrics_.counts(); }

 private:
  Mutex mutex_;
  [[no_unique_address]] Metrics metrics_;
};

}  // namespace pagedkv

namespace pagedkv::detail {

/// The mutex of the nodes of groups; an empty one where the cache's mutex keeps threads apart.
template <class Family>
struct nodes_mutex {
  using type = no_mutex;
};
template <class Family>
concept has_nodes_mutex = requires { typename Family::template mutex<lock_rank::group_nodes>; };
template <has_nodes_mutex Family>
struct nodes_mutex<Family> {
  using type = typename Family::template mutex<lock_rank::group_nodes>;
};

}  // namespace pagedkv::detail

namespace pagedkv {

/// A reader-writer lock that starves neither readers nor writers.
///
/// When a writer leaves, all readers that wait enter together, before any other writer: a reader waits for one writer
/// at most (the phases of Brandenburg and Anderson, "Spin-based reader-writer synchronization for multiprocessor
/// real-time systems", Real-Time Systems 46, 2010).
///
/// Writers that find the lock taken queue up, and the first of the queue retries. New writers may overtake the queue,
/// because a lock that waits for a thread to wake up is idle (as in the LOITER lock: Dice, "Malthusian locks", EuroSys
/// 2017). After `max_looks` attempts, the first of the queue closes the door: then it waits only for the threads inside
/// and for the readers that already wait for a writer inside. A writer that enters from the queue wakes the next one
/// only: each place of the queue has a word of its own to sleep on (an array lock: Anderson, "The performance of spin
/// lock alternatives for shared-memory multiprocessors", IEEE TPDS 1, 1990).
///
/// A change that is followed by a notification is sequentially consistent: the notification first checks whether a
/// thread sleeps, and this check must not precede the change.
///
/// At most 2^14 - 1 threads may hold or await the lock as readers at once. Destroy it only after every call has
/// returned: a writer that leaves still wakes the readers that it admitted.
///
/// `NumPlaces`: writers that wait at once share places when they are more; then each wakes those of one place. The
/// words of 16 places are one cache line.
template <template <class> class Atomic = std::atomic, contention_metrics Metrics = no_contention_metrics,
          std::uint32_t NumPlaces = 16>
class basic_fair_shared_mutex {
 public:
  using contention_type = Metrics;

  static constexpr auto max_looks = 16;

  basic_fair_shared_mutex() noexcept {
    for (auto place = std::uint32_t{1}; place < NumPlaces; ++place) {
      turns_[place].store(place - NumPlaces, std::memory_order_relaxed);  // not yet the turn of the ticket `place`
    }
  }

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

  [[nodiscard]] contention_counts contention() const noexcept { return metrics_.counts(); }

 private:
  // The parts of `state_`.
  static constexpr auto writer_inside = std::uint32_t{1};
  static constexpr auto door_closed = std::uint32_t{2};  // set by the first of the queue
  static constexpr auto phase = std::uint32_t{4};        // toggles when waiting readers are admitted
  static constexpr auto reader_bits = 14;
  static constexpr auto one_reader = std::uint32_t{1} << 4;
  static constexpr auto one_waiting = one_reader << reader_bits;
  static constexpr auto readers_inside = one_waiting - one_reader;
  static constexpr auto readers_waiting = readers_inside << reader_bits;
  static constexpr auto max_readers = readers_inside / one_reader;

  /// Readers inside plus readers waiting.
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

  /// Waits until the reader that was counted as waiting in phase `before` is admitted.
  [[gnu::noinline]] void await_admission(std::uint32_t before) noexcept {
    metrics_.waited();
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
    metrics_.waited();
    const auto ticket = next_ticket_.fetch_add(1, std::memory_order_relaxed);
    auto& own = turns_[ticket % NumPlaces];
    for (auto turn = own.load(std::memory_order_acquire); turn != ticket; turn = own.load(std::memory_order_acquire)) {
      own.wait(turn);
    }
    enter_as_first();
    auto& next = turns_[(ticket + 1) % NumPlaces];
    next.store(ticket + 1, std::memory_order_seq_cst);
    next.notify_all();  // those that share the place sleep on
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
  Atomic<std::uint32_t> admissions_{0};                   // counts admitted groups of readers; readers sleep on it
  Atomic<std::uint32_t> next_ticket_{0};                  // of the writer that queues up next
  std::array<Atomic<std::uint32_t>, NumPlaces> turns_{};  // of each place, the last ticket that was first in the queue
  [[no_unique_address]] Metrics metrics_;
};

using fair_shared_mutex = basic_fair_shared_mutex<>;

static_assert(shared_mutex<fair_shared_mutex>);

/// Any number of threads may pass at once, readers and writers alike, until one thread closes the gate to be alone.
/// Passing writes a cache line that few other threads write; closing waits for the threads inside.
template <contention_metrics Metrics = no_contention_metrics>
class gate {
 public:
  void lock() noexcept { own().lock_shared(); }
  void unlock() noexcept { own().unlock_shared(); }
  void lock_shared() noexcept { lock(); }
  void unlock_shared() noexcept { unlock(); }

  void close() noexcept {
    for (auto& each : parts_) {
      each.mutex.lock();
    }
  }
  void open() noexcept {
    for (auto& each : parts_) {
      each.mutex.unlock();
    }
  }

  [[nodiscard]] contention_counts contention() const noexcept {
    auto sum = contention_counts{};
    for (const auto& each : parts_) {
      sum += each.mutex.contention();
    }
    return sum;
  }

 private:
  using mutex_type = basic_fair_shared_mutex<std::atomic, Metrics>;

  struct alignas(64) part {
    mutex_type mutex;
  };

  [[nodiscard]] mutex_type& own() noexcept { return parts_[threads_.current() % parts_.size()].mutex; }

  this_thread_index threads_;  // stored, so that every shared object leaves by the same part by which it entered
  std::array<part, 16> parts_;
};

static_assert(shared_mutex<gate<>>);

}  // namespace pagedkv
