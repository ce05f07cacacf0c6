#pragma once

#include <pagedkv/policy/locking/parts/guards.hpp>
#include <pagedkv/policy/locking/parts/thread_index.hpp>
#include <pagedkv/policy/locking/sharded_mutex.hpp>
#include <pagedkv/pool/free_list.hpp>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace pagedkv {

/// Free blocks in shards, each behind a mutex. A thread uses one shard as its own and steals from the others when that
/// is empty or locked, so that it fails only when all are empty. 4 bytes per block.
template <std::size_t NumShards, exclusive_mutex Mutex, contention_metrics Metrics = no_contention_metrics,
          template <class> class Atomic = std::atomic, class ThreadIndex = this_thread_index>
class sharded_free_list {
 public:
  explicit sharded_free_list(std::int32_t num_blocks)
      : num_blocks_(num_blocks),
        size_(num_blocks),
        below_(std::make_unique<block_id[]>(static_cast<std::size_t>(num_blocks))) {
    // Neighbouring ids go into one shard, the lowest on top.
    const auto per_shard = (static_cast<std::size_t>(num_blocks) + NumShards - 1) / NumShards;
    for (auto index = static_cast<std::size_t>(num_blocks); index-- > 0;) {
      auto& top = shards_[index / per_shard].top;
      below_[index] = top;
      top = to_block(index);
    }
  }

  [[nodiscard]] block_id pop() noexcept {
    const auto own = own_shard();
    // A positive size means that a block is in a shard or about to be pushed: retry.
    for (auto patient = false; size_.load(std::memory_order_acquire) > 0; patient = true) {
      for (std::size_t i = 0; i < NumShards; ++i) {
        const auto block = pop_from(shards_[(own + i) % NumShards], patient);
        if (block != no_block) {
          if (i != 0) {
            metrics_.stole();
          }
          return block;
        }
      }
    }
    return no_block;
  }

  void push(block_id block) noexcept {
    const auto own = own_shard();
    for (std::size_t i = 0; i < NumShards; ++i) {
      if (push_to(shards_[(own + i) % NumShards], block, false)) {
        return;
      }
    }
    static_cast<void>(push_to(shards_[own], block, true));
  }

  template <class Visit>
  void take_from(block_id first, Visit&& visit) noexcept {
    for (auto& each : shards_) {
      const auto guard = eager_guard{each.mutex, true};
      for (auto* link = &each.top; *link != no_block;) {
        const auto block = *link;
        auto& below = below_[to_index(block)];
        if (block < first) {
          link = &below;
        } else {
          *link = below;
          size_.fetch_sub(1, std::memory_order_release);
          visit(block);
        }
      }
    }
  }

  [[nodiscard]] std::int32_t size() const noexcept { return size_.load(std::memory_order_acquire); }
  template <class Visit>
  void for_each(Visit&& visit) const {
    for (const auto& each : shards_) {
      // Bounded by the number of blocks: a block that was pushed twice is below itself.
      auto block = each.top;
      for (auto i = std::int32_t{0}; i <= num_blocks_ && block != no_block; ++i, block = below_[to_index(block)]) {
        visit(block);
      }
    }
  }

  [[nodiscard]] contention_counts contention() const noexcept {
    auto sum = metrics_.counts();
    for (const auto& each : shards_) {
      sum += detail::contention_in(each.mutex);
    }
    return sum;
  }
  [[nodiscard]] std::size_t metadata_bytes() const noexcept {
    return static_cast<std::size_t>(num_blocks_) * sizeof(block_id);
  }

 private:
  struct alignas(64) shard {
    Mutex mutex;
    block_id top = no_block;
  };

  [[nodiscard]] static std::size_t own_shard() noexcept { return ThreadIndex{}.current() % NumShards; }

  /// `no_block` also when another thread holds the shard's mutex, unless the caller is patient.
  [[nodiscard]] block_id pop_from(shard& from, bool patient) noexcept {
    const auto guard = eager_guard{from.mutex, patient};
    const auto block = guard.holds() ? from.top : no_block;
    if (block != no_block) {
      from.top = below_[to_index(block)];
      size_.fetch_sub(1, std::memory_order_release);
    }
    return block;
  }

  [[nodiscard]] bool push_to(shard& to, block_id block, bool patient) noexcept {
    const auto guard = eager_guard{to.mutex, patient};
    if (guard.holds()) {
      below_[to_index(block)] = to.top;
      to.top = block;
      size_.fetch_add(1, std::memory_order_release);
    }
    return guard.holds();
  }

  std::int32_t num_blocks_;
  Atomic<std::int32_t> size_;
  std::unique_ptr<block_id[]> below_;
  std::array<shard, NumShards> shards_;
  [[no_unique_address]] Metrics metrics_;
};

template <std::size_t NumShards, class Mutex, class Metrics, locking Locking>
struct free_list_of<sharded_family<NumShards, Mutex, Metrics>, Locking> {
  using type = sharded_free_list<NumShards, ordered_mutex<lock_rank::free_list_shard, Mutex, Metrics>, Metrics,
                                 Locking::template atomic, thread_index_for<Locking>>;
};

static_assert(free_list<free_list_for<sharded_mutex>>);

}  // namespace pagedkv
