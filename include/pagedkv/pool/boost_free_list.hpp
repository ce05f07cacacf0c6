#pragma once

#include <pagedkv/pool/free_list.hpp>

#include <boost/lockfree/policies.hpp>
#include <boost/lockfree/stack.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace pagedkv {

/// A free list over Boost.Lockfree's fixed-size stack, for comparison. It holds at most 65,535 ids, and the constructor
/// throws `std::runtime_error` for more; its tags have 16 bits; ThreadSanitizer reports its links as races.
class boost_free_list {
 public:
  explicit boost_free_list(std::int32_t num_blocks)
      : num_blocks_(num_blocks), ids_(static_cast<std::size_t>(num_blocks)), num_free_(num_blocks) {
    for (auto id = num_blocks; id-- > 0;) {
      ids_.bounded_push(id);
    }
  }

  [[nodiscard]] block_id pop() noexcept {
    auto id = static_cast<std::int32_t>(no_block);
    if (ids_.pop(id)) {
      num_free_.fetch_sub(1, std::memory_order_release);
    }
    return block_id{id};
  }

  void push(block_id block) noexcept {
    num_free_.fetch_add(1, std::memory_order_relaxed);
    ids_.bounded_push(static_cast<std::int32_t>(block));
  }

  template <class Visit>
  void take_from(block_id first, Visit&& visit) noexcept {
    auto kept = boost::lockfree::stack<std::int32_t, boost::lockfree::fixed_sized<true>>(
        static_cast<std::size_t>(num_blocks_));
    for (auto block = pop(); block != no_block; block = pop()) {
      if (block < first) {
        kept.bounded_push(static_cast<std::int32_t>(block));
      } else {
        visit(block);
      }
    }
    kept.consume_all([&](std::int32_t id) { push(block_id{id}); });
  }

  [[nodiscard]] std::int32_t size() const noexcept { return num_free_.load(std::memory_order_acquire); }

  template <class Visit>
  void for_each(Visit&& visit) const {
    // The stack cannot be iterated, so its ids are popped and pushed again.
    auto taken = std::vector<std::int32_t>{};
    taken.reserve(static_cast<std::size_t>(num_blocks_));
    ids_.consume_all([&](std::int32_t id) { taken.push_back(id); });
    for (; !taken.empty(); taken.pop_back()) {
      visit(block_id{taken.back()});
      ids_.bounded_push(taken.back());
    }
  }

  [[nodiscard]] std::size_t metadata_bytes() const noexcept { return static_cast<std::size_t>(num_blocks_) * 8; }

 private:
  std::int32_t num_blocks_;
  mutable boost::lockfree::stack<std::int32_t, boost::lockfree::fixed_sized<true>> ids_;
  std::atomic<std::int32_t> num_free_;
};

static_assert(free_list<boost_free_list>);

}  // namespace pagedkv
