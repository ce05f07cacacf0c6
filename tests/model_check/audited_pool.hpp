#pragma once

#include "../support/no_chains.hpp"
#include "scene.hpp"

#include <pagedkv/policy/eviction/clock_sweep.hpp>
#include <pagedkv/policy/free_list/all.hpp>
#include <pagedkv/pool/block_pool.hpp>
#include <pagedkv/pool/lock_free_free_list.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace pagedkv::model_check {

/// A free list of few steps, so that the model checker's time goes into the pool.
class short_free_list {
 public:
  explicit short_free_list(std::int32_t num_blocks)
      : next_(std::make_unique<checked_atomic<std::uint32_t>[]>(static_cast<std::size_t>(num_blocks))) {
    for (auto i = num_blocks; i-- > 0;) {
      push(block_id{i});
    }
  }

  [[nodiscard]] block_id pop() noexcept {
    const auto index = free_.pop(next_);
    return index == stack::none ? no_block : to_block(index);
  }
  void push(block_id block) noexcept { free_.push(next_, static_cast<std::uint32_t>(block)); }
  template <class Visit>
  void take_from(block_id, Visit&&) noexcept {}
  [[nodiscard]] std::int32_t size() const noexcept { return 0; }
  template <class Visit>
  void for_each(Visit&&) const {}
  [[nodiscard]] std::size_t metadata_bytes() const noexcept { return 0; }

 private:
  using stack = tagged_index_stack<checked_atomic>;

  stack free_;
  stack::links next_;
};

}  // namespace pagedkv::model_check

template <>
struct pagedkv::free_list_of<pagedkv::lock_free_family, pagedkv::model_check::locking> {
  using type = model_check::short_free_list;
};

namespace pagedkv::model_check {

/// Blocks whose contents belong to who holds them alone, or to all that hit them.
class audited_pool {
 public:
  static constexpr auto published_contents = 7;

  explicit audited_pool(std::int32_t num_blocks) : pool_(num_blocks), num_blocks_(num_blocks) {}

  [[nodiscard]] auto& pool() { return pool_; }

  /// A block for the caller alone, or `no_block`.
  block_id allocate() {
    auto block = std::array{no_block};
    auto num_evicted = std::int64_t{0};
    if (!pool_.allocate(block, chains_, timestamp{0}, num_evicted)) {
      return no_block;
    }
    contents_[to_index(block[0])].write(1);
    return block[0];
  }

  block_id publish() {
    const auto block = allocate();
    contents_[to_index(block)].write(published_contents);
    pool_.publish(block);
    return block;
  }

  void release(block_id block) {
    if (block != no_block) {
      pool_.release(block, block_release{});
    }
  }

  /// Makes an evictable block free; whether there was one.
  bool evict() {
    auto victim = std::array{no_block};
    if (pool_.evict(victim, chains_, timestamp{0}, 0) == 0) {
      return false;
    }
    contents_[to_index(victim[0])].write(2);
    return true;
  }

  /// A prefix hit: the contents that were published, or a miss.
  bool hit(block_id block) {
    if (!pool_.reference_published(block)) {
      return false;
    }
    expect(contents_[to_index(block)].read() == published_contents, "a hit on other contents");
    release(block);
    return true;
  }

  /// Afterwards nobody holds anything, and every block can be had.
  void check() {
    for (auto i = std::int32_t{0}; i < num_blocks_; ++i) {
      const auto state = pool_.state(block_id{i});
      expect(state.count() == 0 && state.leases() == 0 && !state.claimed() && state.step() == 0,
             "something is left over");
    }
    for (auto i = std::int32_t{0}; i < num_blocks_; ++i) {
      expect(allocate() != no_block, "a block is lost");
    }
    expect(allocate() == no_block, "a block is there twice");
  }

 private:
  block_pool<locking, basic_clock_sweep<1, atomic, thread_numbers>, any_free_block> pool_;
  std::int32_t num_blocks_;
  testing::no_chains chains_;
  std::array<guarded_number, 4> contents_;
};

}  // namespace pagedkv::model_check
