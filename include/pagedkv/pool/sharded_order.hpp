#pragma once

#include <pagedkv/policy/locking/parts/guards.hpp>
#include <pagedkv/policy/locking/sharded_mutex.hpp>
#include <pagedkv/pool/block_indices.hpp>
#include <pagedkv/pool/eviction_order.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace pagedkv {

/// The order of policies that support several threads: they need no mutex.
template <std::size_t NumShards, class Mutex, class Metrics, eviction_policy Eviction>
  requires(Eviction::concurrent)
class eviction_order<sharded_family<NumShards, Mutex, Metrics>, Eviction> : public direct_order<Eviction> {
  using direct_order<Eviction>::direct_order;
};

/// Eviction policies behind mutexes: one per shard of the blocks if the policy orders by age alone, otherwise one for
/// all blocks. A chain spreads over all shards, so a shard does not see which of its blocks have become leaves.
///
/// Shards take turns to provide victims; where the last victim continues another block, the shard of that one comes
/// first. A shard without a victim is skipped. Blocks with children are offered only when no shard has a leaf.
///
/// A block's word changes before the order does, so the calls of two threads may come in the wrong order. Therefore the
/// order records which blocks it lists, and rereads the word before it lists one: the last call is right. A listed
/// block that is in use is refused when offered. A block that is forgotten before it was ever listed is unknown to its
/// policy.
///
/// A block that compaction moves keeps its index, and with it its shard and the state of the policy there.
template <std::size_t NumShards, class Mutex, class Metrics, eviction_policy Eviction>
class eviction_order<sharded_family<NumShards, Mutex, Metrics>, Eviction> {
 public:
  explicit eviction_order(std::int32_t num_blocks) : indices_(num_blocks) {
    const auto size = (num_blocks - 1) / std::int32_t{num_shards} + 1;
    for (std::size_t i = 0; i < num_shards; ++i) {
      shards_.push_back(std::make_unique<shard>(size));
    }
  }

  template <class Unreferenced>
  void insert(block_id block, const block_release& how, Unreferenced&& unreferenced) noexcept {
    auto [of, local] = position_of(block);
    const auto guard = exclusive_guard{of.mutex};
    if (!of.listed.at(local) && unreferenced()) {
      auto local_how = how;
      local_how.parent = local_in(of, how.parent);
      local_how.last_cached = local_in(of, how.last_cached);
      of.list(local, local_how);
    }
  }

  void remove(block_id block) noexcept {
    auto [of, local] = position_of(block);
    const auto guard = exclusive_guard{of.mutex};
    if (of.listed.at(local)) {
      of.policy.remove(local);
      of.listed.set(local, false);
    }
  }

  void erase(block_id block) noexcept {
    auto [of, local] = position_of(block);
    const auto guard = exclusive_guard{of.mutex};
    of.forget(local);
  }

  /// Requires that no other thread uses the order. Without memory for its index, the block is treated as one that was
  /// never hit, and becomes the newest of another shard.
  void rename(block_id from, block_id to) noexcept {
    if (!indices_.swap(from, to)) {
      auto [source, local_from] = position_of(from);
      auto [target, local_to] = position_of(to);
      if (source.listed.at(local_from)) {
        target.list(local_to, block_release{});
      }
      source.forget(local_from);
    }
  }

  template <class Offer>
  [[nodiscard]] block_id victim(Offer&& offer, timestamp now) noexcept {
    for (auto reach = first_reach; reach <= search_reach::any_block; reach = after(reach)) {
      auto wanted = search<Offer>{offer, now, reach};
      const auto first = next_shard_.fetch_add(1, std::memory_order_relaxed);
      for (const auto patient : {false, true}) {
        for (std::size_t i = 0; i < num_shards && (!patient || wanted.passed_by); ++i) {
          const auto block = victim_of((first + i) % num_shards, wanted, patient);
          if (block != no_block) {
            follow(offer, block);
            return block;
          }
        }
      }
    }
    return no_block;
  }

  [[nodiscard]] contention_counts contention() const noexcept {
    auto sum = contention_counts{};
    for (const auto& each : shards_) {
      sum += detail::contention_in(each->mutex);
    }
    return sum;
  }
  [[nodiscard]] std::size_t metadata_bytes() const noexcept {
    auto bytes = indices_.bytes();
    for (const auto& each : shards_) {
      bytes += each->policy.metadata_bytes() + each->tracked.bytes() + each->listed.bytes();
    }
    return bytes;
  }

 private:
  static constexpr auto num_shards = orders_by_age<Eviction> ? NumShards : std::size_t{1};

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
    explicit shard(std::int32_t num_blocks) : policy(num_blocks), tracked(num_blocks), listed(num_blocks) {}

    void list(block_id local, const block_release& how) noexcept {
      policy.insert(local, how);
      tracked.set(local, true);
      listed.set(local, true);
    }

    void forget(block_id local) noexcept {
      if (tracked.at(local)) {
        policy.erase(local);
        tracked.set(local, false);
        listed.set(local, false);
      }
    }

    ordered_mutex<lock_rank::eviction_shard, Mutex, Metrics> mutex;
    Eviction policy;
    flags tracked;
    flags listed;
  };

  struct position {
    shard& in;
    block_id local;
  };

  // Neighbouring indices belong to different shards, so that a chain spreads over all.
  [[nodiscard]] position position_of(block_id block) noexcept {
    const auto index = indices_.index_of(block);
    return {*shards_[index % num_shards], to_block(index / num_shards)};
  }
  [[nodiscard]] block_id global(block_id local, std::size_t shard_index) const noexcept {
    return indices_.block_at(to_index(local) * num_shards + shard_index);
  }
  /// A shard's own id of a block; `no_block` for a block of another shard.
  [[nodiscard]] block_id local_in(const shard& in, block_id block) noexcept {
    if (block == no_block) {
      return no_block;
    }
    const auto [of, local] = position_of(block);
    return &of == &in ? local : no_block;
  }

  /// The next victim by age mostly is the block that the last one continues: its shard is asked first.
  template <class Offer>
  void follow(const Offer& offer, block_id victim) noexcept {
    if constexpr (orders_by_age<Eviction> && requires { offer.parent(victim); }) {
      if (const auto parent = offer.parent(victim); parent != no_block) {
        next_shard_.store(indices_.index_of(parent) % num_shards, std::memory_order_relaxed);
      }
    }
  }

  /// The next victim by age is a leaf that comes first in its shard; the others' first blocks are mostly its ancestors.
  /// So all shards are asked for their first block before one is asked for more. Other policies would set aside what
  /// they are refused.
  enum class search_reach : std::uint8_t { first_leaf, any_leaf, any_block };
  static constexpr auto first_reach = orders_by_age<Eviction> ? search_reach::first_leaf : search_reach::any_leaf;
  [[nodiscard]] static constexpr search_reach after(search_reach reach) noexcept {
    return static_cast<search_reach>(static_cast<std::uint8_t>(reach) + 1);
  }

  template <class Offer>
  struct search {
    Offer& offer;
    timestamp now;
    search_reach reach;
    bool passed_by = false;  // a shard was locked by another thread
  };

  template <class Offer>
  [[nodiscard]] block_id victim_of(std::size_t index, search<Offer>& wanted, bool patient) noexcept {
    struct local_offer {
      const eviction_order& order;
      search<Offer>& wanted;
      std::size_t index;
      bool offered = false;

      eviction_answer operator()(block_id local) noexcept {
        const bool passes = std::exchange(offered, true) && wanted.reach == search_reach::first_leaf;
        return passes ? eviction_answer::has_children : wanted.offer(order.global(local, index));
      }
      eviction_answer operator()(block_id local, evict_anyway_t anyway) noexcept {
        return wanted.reach == search_reach::any_block ? wanted.offer(order.global(local, index), anyway)
                                                       : eviction_answer::has_children;
      }
    };
    auto& from = *shards_[index];
    const auto guard = eager_guard{from.mutex, patient};
    wanted.passed_by |= !guard.holds();
    const auto local = guard.holds() ? from.policy.victim(local_offer{*this, wanted, index}, wanted.now) : no_block;
    if (local == no_block) {
      return no_block;
    }
    from.tracked.set(local, false);
    from.listed.set(local, false);
    return global(local, index);
  }

  block_indices indices_;
  std::vector<std::unique_ptr<shard>> shards_;
  std::atomic<std::size_t> next_shard_{0};
};

}  // namespace pagedkv
