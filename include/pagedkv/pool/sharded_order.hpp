#pragma once

#include <pagedkv/policy/locking/guards.hpp>
#include <pagedkv/policy/locking/sharded_mutex.hpp>
#include <pagedkv/pool/eviction_order.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace pagedkv {

/// One eviction policy per shard of the block ids, each behind a mutex. Victims come from the shard whose turn it is,
/// and from the others when that has none; blocks with children only when no shard has a leaf to offer.
///
/// A block's word changes before the order hears of it, so two threads may report in the wrong order. Therefore the
/// order remembers which blocks it lists, and looks at the word again before it lists one: whoever comes last is right.
/// A block that is listed though in use is refused when offered.
template <std::size_t NumShards, class Mutex, class Metrics, eviction Eviction>
class eviction_order<sharded_family<NumShards, Mutex, Metrics>, Eviction> {
 public:
  explicit eviction_order(std::int32_t num_blocks) {
    const auto size = (num_blocks - 1) / std::int32_t{NumShards} + 1;
    for (std::size_t i = 0; i < NumShards; ++i) {
      shards_.push_back(std::make_unique<shard>(size));
    }
  }

  template <class Unreferenced>
  void insert(block_id block, const block_release& how, Unreferenced&& unreferenced) noexcept {
    auto& of = shard_of(block);
    const auto guard = exclusive_guard{of.mutex};
    const auto listed = of.listed.at(local(block));
    if (!listed && unreferenced()) {
      auto local_how = how;
      local_how.parent = same_shard(block, how.parent) ? local(how.parent) : no_block;
      of.policy.insert(local(block), local_how);
      of.listed.set(local(block), true);
    }
  }

  void remove(block_id block) noexcept {
    auto& of = shard_of(block);
    const auto guard = exclusive_guard{of.mutex};
    if (of.listed.at(local(block))) {
      of.policy.remove(local(block));
      of.listed.set(local(block), false);
    }
  }

  void erase(block_id block) noexcept {
    auto& of = shard_of(block);
    const auto guard = exclusive_guard{of.mutex};
    of.policy.erase(local(block));
    of.listed.set(local(block), false);
  }

  /// No other thread is at work. A block that changes its shard becomes its newest there.
  void rename(block_id from, block_id to) noexcept {
    auto& source = shard_of(from);
    auto& target = shard_of(to);
    const auto listed = source.listed.at(local(from));
    if (&source == &target) {
      source.policy.rename(local(from), local(to));
    } else {
      source.policy.erase(local(from));
      if (listed) {
        target.policy.insert(local(to), block_release{});
      }
    }
    source.listed.set(local(from), false);
    target.listed.set(local(to), listed);
  }

  template <class Offer>
  [[nodiscard]] block_id victim(Offer&& offer, timestamp now) noexcept {
    for (const auto leaves_only : {true, false}) {
      const auto first = next_shard_.fetch_add(1, std::memory_order_relaxed);
      for (std::size_t i = 0; i < NumShards; ++i) {
        const auto block = victim_of((first + i) % NumShards, offer, now, leaves_only);
        if (block != no_block) {
          return block;
        }
      }
    }
    return no_block;
  }

  [[nodiscard]] std::size_t metadata_bytes() const noexcept {
    auto bytes = std::size_t{0};
    for (const auto& each : shards_) {
      bytes += each->policy.metadata_bytes() + each->listed.bytes();
    }
    return bytes;
  }

 private:
  class flags {
   public:
    explicit flags(std::int32_t size) : bits_(static_cast<std::size_t>(size)) {}
    [[nodiscard]] bool at(block_id block) const noexcept { return bits_[to_index(block)]; }
    void set(block_id block, bool on) noexcept { bits_[to_index(block)] = on; }
    [[nodiscard]] std::size_t bytes() const noexcept { return bits_.capacity() / 8; }

   private:
    std::vector<bool> bits_;
  };

  struct alignas(64) shard {
    explicit shard(std::int32_t num_blocks) : policy(num_blocks), listed(num_blocks) {}

    ordered_mutex<lock_rank::eviction_shard, Mutex, Metrics> mutex;
    Eviction policy;
    flags listed;
  };

  // Neighbours fall into different shards, so that a chain spreads over all.
  [[nodiscard]] shard& shard_of(block_id block) noexcept { return *shards_[to_index(block) % NumShards]; }
  [[nodiscard]] static block_id local(block_id block) noexcept { return to_block(to_index(block) / NumShards); }
  [[nodiscard]] static block_id global(block_id block, std::size_t shard_index) noexcept {
    return to_block(to_index(block) * NumShards + shard_index);
  }
  [[nodiscard]] static bool same_shard(block_id a, block_id b) noexcept {
    return b != no_block && to_index(a) % NumShards == to_index(b) % NumShards;
  }

  template <class Offer>
  [[nodiscard]] block_id victim_of(std::size_t index, Offer& offer, timestamp now, bool leaves_only) noexcept {
    struct local_offer {
      Offer& offer;
      std::size_t index;
      bool leaves_only;

      eviction_answer operator()(block_id block) noexcept { return offer(global(block, index)); }
      eviction_answer operator()(block_id block, evict_anyway_t anyway) noexcept {
        return leaves_only ? eviction_answer::has_children : offer(global(block, index), anyway);
      }
    };
    auto& from = *shards_[index];
    const auto guard = exclusive_guard{from.mutex};
    const auto block = from.policy.victim(local_offer{offer, index, leaves_only}, now);
    if (block == no_block) {
      return no_block;
    }
    from.listed.set(block, false);
    return global(block, index);
  }

  std::vector<std::unique_ptr<shard>> shards_;
  std::atomic<std::size_t> next_shard_{0};
};

}  // namespace pagedkv
