#pragma once

#include <pagedkv/policy/eviction/concept.hpp>
#include <pagedkv/policy/locking/parts/contention.hpp>
#include <pagedkv/policy/locking/sharded_mutex.hpp>
#include <pagedkv/pool/eviction_order.hpp>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

namespace pagedkv::testing {

template <eviction_policy Policy, class Mutex = std::mutex>
using order_of = eviction_order<sharded_family<16, Mutex, no_contention_metrics>, Policy>;

inline constexpr auto take_it = [](block_id, auto...) { return eviction_answer::taken; };

/// An order, and the pool's side: a word for each block, which decides its owner, and which the order rereads.
template <template <class> class Atomic, class Order, bool SecondLook = true>
class ordered_blocks {
 public:
  /// All blocks are listed and unreferenced.
  explicit ordered_blocks(std::int32_t num_blocks) : order_(num_blocks), words_(static_cast<std::size_t>(num_blocks)) {
    for (auto i = 0; i < num_blocks; ++i) {
      list(block_id{i});
    }
  }

  [[nodiscard]] bool hit(block_id block) {
    if (!swap(block, idle, held)) {
      return false;
    }
    order_.remove(block);
    return true;
  }

  [[nodiscard]] block_id evict() {
    return order_.victim(
        [&](block_id block, auto...) {
          return swap(block, idle, claimed) ? eviction_answer::taken : eviction_answer::in_use;
        },
        {});
  }

  [[nodiscard]] bool forget(block_id block) {
    if (!swap(block, idle, claimed)) {
      return false;
    }
    order_.erase(block);
    return true;
  }

  /// A block that was hit, evicted or forgotten becomes evictable again.
  void let_go(block_id block) {
    word(block).store(idle, std::memory_order_seq_cst);
    list(block);
  }

  /// The blocks that the order lists when no thread is at work, including wrong ones.
  [[nodiscard]] std::vector<block_id> drain() {
    auto all = std::vector<block_id>{};
    for (auto block = order_.victim(take_it, {}); block != no_block; block = order_.victim(take_it, {})) {
      all.push_back(block);
    }
    std::ranges::sort(all);
    return all;
  }

  [[nodiscard]] std::vector<block_id> idle_blocks() {
    auto all = std::vector<block_id>{};
    for (std::size_t i = 0; i < words_.size(); ++i) {
      if (words_[i].load(std::memory_order_seq_cst) == idle) {
        all.push_back(to_block(i));
      }
    }
    return all;
  }

 private:
  enum state : int { idle, held, claimed };

  [[nodiscard]] Atomic<int>& word(block_id block) { return words_[to_index(block)]; }

  [[nodiscard]] bool swap(block_id block, int from, int to) {
    return word(block).compare_exchange_strong(from, to, std::memory_order_acq_rel, std::memory_order_acquire);
  }

  void list(block_id block) {
    order_.insert(block, {}, [&] { return !SecondLook || word(block).load(std::memory_order_acquire) == idle; });
  }

  Order order_;
  std::vector<Atomic<int>> words_;
};

}  // namespace pagedkv::testing
