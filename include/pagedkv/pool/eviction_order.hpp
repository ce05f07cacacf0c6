#pragma once

#include <pagedkv/policy/eviction/concept.hpp>
#include <pagedkv/policy/locking/lock_free.hpp>
#include <pagedkv/policy/locking/parts/guards.hpp>
#include <pagedkv/policy/locking/parts/unsynchronized.hpp>
#include <pagedkv/policy/locking/sharded_mutex.hpp>

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

namespace pagedkv {

/// The pool's order of evictable blocks: an eviction policy, adapted to the threading of a family of components. Its
/// members are those of the policy. In addition, `unreferenced()` tells `insert` whether the block (still) has no
/// references, because another thread may have taken one.
template <class Family, eviction_policy Eviction>
class eviction_order;

/// The order for families in which calls go straight to the policy: one thread at a time, or any number at once.
template <eviction_policy Eviction>
class direct_order {
 public:
  explicit direct_order(std::int32_t num_blocks) : policy_(num_blocks) {}

  template <class Unreferenced>
  void insert(block_id block, const block_release& how, Unreferenced&&) noexcept {
    policy_.insert(block, how);
  }
  void note(block_id block, const block_release& how) noexcept
    requires detail::has_note<Eviction>
  {
    policy_.note(block, how);
  }
  void remove(block_id block) noexcept { policy_.remove(block); }
  /// The policy's own, if it has any: see `eviction_policy`.
  [[nodiscard]] auto removals() noexcept
    requires requires(Eviction& policy) { policy.removals(); }
  {
    return policy_.removals();
  }
  void erase(block_id block) noexcept { policy_.erase(block); }
  void rename(block_id from, block_id to) noexcept { policy_.rename(from, to); }

  template <class Offer>
  [[nodiscard]] block_id victim(Offer&& offer, timestamp now) noexcept {
    return policy_.victim(offer, now);
  }
  [[nodiscard]] auto next_victims() const noexcept
    requires foresees_victims<Eviction>
  {
    return policy_.next_victims();
  }

  [[nodiscard]] std::size_t metadata_bytes() const noexcept { return policy_.metadata_bytes(); }

 private:
  Eviction policy_;
};

template <eviction_policy Eviction>
class eviction_order<unsynchronized_family, Eviction> : public direct_order<Eviction> {
  using direct_order<Eviction>::direct_order;
};

/// The order of policies that support several threads, by their cheaper variant for one.
template <eviction_policy Eviction>
  requires eviction_policy<typename Eviction::for_one_thread>
class eviction_order<unsynchronized_family, Eviction> : public direct_order<typename Eviction::for_one_thread> {
  using direct_order<typename Eviction::for_one_thread>::direct_order;
};

/// Whether several threads may change the order at a time, where the family has them do so.
template <class Family, eviction_policy Eviction>
inline constexpr bool orders_blocks_for = !std::is_same_v<Family, lock_free_family> || Eviction::concurrent;

template <eviction_policy Eviction>
class eviction_order<lock_free_family, Eviction> : public direct_order<Eviction> {
  static_assert(
      orders_blocks_for<lock_free_family, Eviction>,
      "this eviction policy keeps a strict order that one thread at a time may change, which lock_free cannot "
      "offer: use the eviction policy `clock_sweep` or `no_eviction` with lock_free, or the locking policy "
      "`sharded_mutex` with this one");
  using direct_order<Eviction>::direct_order;
};

/// The order of policies that support several threads: they need no mutex.
template <std::size_t NumShards, class Mutex, class Metrics, eviction_policy Eviction>
  requires(Eviction::concurrent)
class eviction_order<sharded_family<NumShards, Mutex, Metrics>, Eviction> : public direct_order<Eviction> {
  using direct_order<Eviction>::direct_order;
};

/// One eviction policy behind a mutex. A chain spreads over the pool, so a policy for a part of it would not see which
/// of its blocks have become leaves.
///
/// A block's word changes before the order does, so the calls of two threads may come in the wrong order. Therefore the
/// order records which blocks it lists, and rereads the word before it lists one: the last call is right. A listed
/// block that is in use is refused when offered. A block that is forgotten before it was ever listed is unknown to its
/// policy.
template <std::size_t NumShards, class Mutex, class Metrics, eviction_policy Eviction>
class eviction_order<sharded_family<NumShards, Mutex, Metrics>, Eviction> {
 public:
  explicit eviction_order(std::int32_t num_blocks)
      : policy_(num_blocks),
        tracked_(static_cast<std::size_t>(num_blocks)),
        listed_(static_cast<std::size_t>(num_blocks)) {}

  template <class Unreferenced>
  void insert(block_id block, const block_release& how, Unreferenced&& unreferenced) noexcept {
    const auto guard = exclusive_guard{mutex_};
    if (!listed_[to_index(block)] && unreferenced()) {
      policy_.insert(block, how);
      tracked_[to_index(block)] = true;
      listed_[to_index(block)] = true;
    }
  }

  void note(block_id block, const block_release& how) noexcept
    requires detail::has_note<Eviction>
  {
    const auto guard = exclusive_guard{mutex_};
    policy_.note(block, how);
  }

  void remove(block_id block) noexcept {
    const auto guard = exclusive_guard{mutex_};
    if (listed_[to_index(block)]) {
      policy_.remove(block);
      listed_[to_index(block)] = false;
    }
  }

  void erase(block_id block) noexcept {
    const auto guard = exclusive_guard{mutex_};
    if (tracked_[to_index(block)]) {
      policy_.erase(block);
      forget(block);
    }
  }

  /// Requires that no other thread uses the order.
  void rename(block_id from, block_id to) noexcept {
    const auto guard = exclusive_guard{mutex_};
    policy_.rename(from, to);
    tracked_[to_index(to)] = tracked_[to_index(from)];
    listed_[to_index(to)] = listed_[to_index(from)];
    forget(from);
  }

  template <class Offer>
  [[nodiscard]] block_id victim(Offer&& offer, timestamp now) noexcept {
    const auto guard = exclusive_guard{mutex_};
    const auto block = policy_.victim(offer, now);
    if (block != no_block) {
      forget(block);
    }
    return block;
  }

  [[nodiscard]] contention_counts contention() const noexcept { return detail::contention_in(mutex_); }
  [[nodiscard]] std::size_t metadata_bytes() const noexcept {
    return policy_.metadata_bytes() + (tracked_.capacity() + listed_.capacity()) / 8;
  }

 private:
  void forget(block_id block) noexcept {
    tracked_[to_index(block)] = false;
    listed_[to_index(block)] = false;
  }

  ordered_mutex<lock_rank::eviction_order, Mutex, Metrics> mutex_;
  Eviction policy_;
  std::vector<bool> tracked_;
  std::vector<bool> listed_;
};

}  // namespace pagedkv
