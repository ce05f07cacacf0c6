#pragma once

#include "scheduled.hpp"

#include <pagedkv/policy/locking/lock_free.hpp>
#include <pagedkv/pool/free_lists.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace pagedkv::testing {

/// A free list in which every operation is one step, so that a schedule has room for those of the component under test.
class one_step_free_list {
 public:
  explicit one_step_free_list(std::int32_t num_blocks) : blocks_(num_blocks) {}

  [[nodiscard]] block_id pop() noexcept {
    operations_.fetch_add(1, std::memory_order_acq_rel);
    return blocks_.pop();
  }
  void push(block_id block) noexcept {
    operations_.fetch_add(1, std::memory_order_acq_rel);
    blocks_.push(block);
  }

  [[nodiscard]] std::int32_t size() const noexcept { return blocks_.size(); }
  [[nodiscard]] std::size_t metadata_bytes() const noexcept { return blocks_.metadata_bytes(); }

 private:
  scheduled<std::uint32_t> operations_;
  stack_free_list blocks_;
};

/// `lock_free` over `Atomic`, with a free list of one step an operation.
template <template <class> class Atomic = scheduled>
struct stepwise_lock_free : basic_lock_free<Atomic> {};

/// `lock_free` over `Atomic`, with its own free list, in which a thread is one of the scheduler's.
template <template <class> class Atomic = scheduled>
struct scheduled_lock_free : basic_lock_free<Atomic> {};

}  // namespace pagedkv::testing

template <template <class> class Atomic>
struct pagedkv::free_list_of<pagedkv::lock_free_family, pagedkv::testing::stepwise_lock_free<Atomic>> {
  using type = testing::one_step_free_list;
};

template <template <class> class Atomic>
struct pagedkv::free_list_of<pagedkv::lock_free_family, pagedkv::testing::scheduled_lock_free<Atomic>> {
  using type = lock_free_free_list<Atomic, testing::scheduled_thread_index, 2>;
};
