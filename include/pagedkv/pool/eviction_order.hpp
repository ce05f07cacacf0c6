#pragma once

#include <pagedkv/policy/eviction/concept.hpp>
#include <pagedkv/policy/locking/lock_free.hpp>
#include <pagedkv/policy/locking/parts/unsynchronized.hpp>

#include <cstddef>
#include <cstdint>
#include <type_traits>

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
  void remove(block_id block) noexcept { policy_.remove(block); }
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

}  // namespace pagedkv
