#pragma once

#include "scheduled.hpp"

#include <pagedkv/policy/eviction/clock_sweep.hpp>
#include <pagedkv/policy/eviction/lru.hpp>
#include <pagedkv/policy/locking/all.hpp>
#include <pagedkv/policy/locking/parts/thread_index.hpp>
#include <pagedkv/pool/free_list.hpp>
#include <pagedkv/pool/lock_free_free_list.hpp>
#include <pagedkv/pool/sharded_free_list.hpp>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

namespace pagedkv::testing {

/// A free list in which every operation is one step, so that a schedule has steps left for the component under test.
class one_step_free_list {
 public:
  explicit one_step_free_list(std::int32_t num_blocks) : blocks_(num_blocks) {}

  [[nodiscard]] block_id pop() noexcept {
    step();
    return blocks_.pop();
  }
  void push(block_id block) noexcept {
    step();
    blocks_.push(block);
  }
  template <class Visit>
  void take_from(block_id first, Visit&& visit) noexcept {
    step();
    auto taken = std::vector<block_id>{};
    blocks_.take_from(first, [&](block_id block) { taken.push_back(block); });
    std::ranges::for_each(taken, visit);  // which may let other threads run
  }

  [[nodiscard]] std::int32_t size() const noexcept {
    step();
    return blocks_.size();
  }
  template <class Visit>
  void for_each(Visit&& visit) const {
    blocks_.for_each(visit);
  }
  [[nodiscard]] std::size_t metadata_bytes() const noexcept { return blocks_.metadata_bytes(); }

 private:
  /// Never a load, not even for `size`: one of an older value would not acquire what came before the last pops.
  void step() const noexcept { operations_.fetch_add(1, std::memory_order_acq_rel); }

  mutable scheduled<std::uint32_t> operations_;
  stack_free_list blocks_;
};

/// `lock_free` over `Atomic`, with a free list of one step an operation.
template <template <class> class Atomic = scheduled>
struct stepwise_lock_free : basic_lock_free<Atomic> {};

/// `lock_free` over `Atomic`, with its own free list; its threads are the scheduler's.
template <template <class> class Atomic = scheduled>
struct scheduled_lock_free : basic_lock_free<Atomic> {};

/// A mutex of the scheduler's threads. It guards plain data, which another thread may use unguarded. So schedules have
/// a choice before each of its steps, also if no other thread locks it.
class scheduled_mutex {
 public:
  void lock() noexcept {
    while (!try_lock()) {
      locked_.wait(true, std::memory_order_seq_cst);
    }
  }
  [[nodiscard]] bool try_lock() noexcept {
    const auto was_locked = locked_.exchange(true, std::memory_order_acquire);
    execution::active()->concerns_others();
    return !was_locked;
  }
  void unlock() noexcept {
    locked_.store(false, std::memory_order_seq_cst);  // a notification follows
    locked_.notify_one();
  }

 private:
  scheduled<bool> locked_;
};

/// `sharded_mutex` with mutexes and words of the scheduler's.
struct scheduled_sharded_mutex : basic_sharded_mutex<2, scheduled_mutex> {
  template <class T>
  using atomic = scheduled<T>;
};

/// The same, but for a mutex that excludes nobody: that of the nodes of a cache with groups.
class mutex_but_for_nodes : public scheduled_mutex {};
struct without_nodes_mutex : basic_sharded_mutex<2, mutex_but_for_nodes> {
  template <class T>
  using atomic = scheduled<T>;
};

/// `clock_sweep` with counters of one bit, whose threads are the scheduler's.
template <template <class> class Atomic = scheduled>
using scheduled_sweep = basic_clock_sweep<1, Atomic, scheduled_thread_index>;

/// A locking policy as the scheduler runs it, and an eviction policy that works under it. Every policy of the list
/// whose components several threads enter has one.
template <class Locking>
struct scheduled_form;
template <>
struct scheduled_form<lock_free> {
  using locking = scheduled_lock_free<>;
  using eviction = scheduled_sweep<>;
};
template <>
struct scheduled_form<sharded_mutex> {
  using locking = scheduled_sharded_mutex;
  using eviction = lru;
};

template <class... Lockings>
auto those_that_are_concurrent(policy_list<Lockings...>) {
  return (policy_list<>{} + ... +
          std::conditional_t<Lockings::family::concurrent, policy_list<Lockings>, policy_list<>>{});
}
using concurrent_lockings = decltype(those_that_are_concurrent(all_lockings{}));

}  // namespace pagedkv::testing

/// Does not check the lock order: the check uses the operating system's threads, of which the scheduler has one.
template <pagedkv::lock_rank Rank, class Metrics>
class pagedkv::ordered_mutex<Rank, pagedkv::testing::scheduled_mutex, Metrics>
    : public pagedkv::testing::scheduled_mutex {};

template <pagedkv::lock_rank Rank, class Metrics>
class pagedkv::ordered_mutex<Rank, pagedkv::testing::mutex_but_for_nodes, Metrics>
    : public pagedkv::testing::scheduled_mutex {};
template <class Metrics>
class pagedkv::ordered_mutex<pagedkv::lock_rank::group_nodes, pagedkv::testing::mutex_but_for_nodes, Metrics> {
 public:
  void lock() noexcept {}
  void unlock() noexcept {}
};

template <template <class> class Atomic>
struct pagedkv::thread_index_of<pagedkv::testing::stepwise_lock_free<Atomic>> {
  using type = testing::scheduled_thread_index;
};

template <template <class> class Atomic>
struct pagedkv::thread_index_of<pagedkv::testing::scheduled_lock_free<Atomic>> {
  using type = testing::scheduled_thread_index;
};

template <>
struct pagedkv::thread_index_of<pagedkv::testing::scheduled_sharded_mutex> {
  using type = testing::scheduled_thread_index;
};

template <>
struct pagedkv::thread_index_of<pagedkv::testing::without_nodes_mutex> {
  using type = testing::scheduled_thread_index;
};

template <template <class> class Atomic>
struct pagedkv::free_list_of<pagedkv::lock_free_family, pagedkv::testing::stepwise_lock_free<Atomic>> {
  using type = testing::one_step_free_list;
};

template <template <class> class Atomic>
struct pagedkv::free_list_of<pagedkv::lock_free_family, pagedkv::testing::scheduled_lock_free<Atomic>> {
  using type = lock_free_free_list<Atomic, testing::scheduled_thread_index, 2>;
};
