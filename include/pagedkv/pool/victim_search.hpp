#pragma once

#include <pagedkv/policy/locking/concept.hpp>
#include <pagedkv/pool/block_states.hpp>
#include <pagedkv/pool/eviction_order.hpp>
#include <pagedkv/pool/guarded_order.hpp>
#include <pagedkv/pool/twin_list.hpp>

#include <cstddef>
#include <cstdint>

namespace pagedkv {

/// The order of a pool's evictable blocks, and the search for the next one to evict: a block whose twin stays, unless
/// the policy forbids it, then the blocks that the policy offers, without children first.
///
/// A block is *claimed* by one compare-and-swap on its word: hits and other searches can no longer take it. `Chains`
/// below is the prefix index: `has_children(id)`, `has_twin(id, stays)`, `detach(id)`, `attach(id)`, and, if it likes,
/// `prefetch_victims(next, then)`.
template <locking Locking, eviction_policy Eviction>
class victim_search {
 public:
  using states = block_states<Locking>;

  explicit victim_search(std::int32_t num_blocks) : num_blocks_(num_blocks), order_(num_blocks), twins_(num_blocks) {}

  /// A published block lost its last reference.
  void insert(block_id block, const block_release& how, const states& all) noexcept {
    list(block, how, all);
    twins_.release(block);
  }
  /// A block that may be listed has a reference again.
  void remove(block_id block) noexcept {
    order_.remove(block);
    twins_.reference(block);
  }
  /// A published block is about to be freed, other than as a victim.
  void erase(block_id block) noexcept { order_.erase(block); }
  /// Compaction: `to`, which is free, replaces `from`.
  void rename(block_id from, block_id to) noexcept {
    order_.rename(from, to);
    twins_.rename(from, to);
  }
  /// Another published block has the same contents.
  void note_twin(block_id block, const states& all) noexcept { twins_.note(block, all.words[block].listed()); }

  /// Finds and claims a block; `no_block` if the search finds none. `at_last` promises that the caller does not search
  /// again: then blocks are taken out of order even if a lease may be why those offered were not.
  template <class Chains>
  [[nodiscard]] block_id claim_next(states& all, Chains& chains, timestamp now, bool at_last) noexcept {
    if constexpr (twins_first<Eviction>) {
      if (const auto twin = claim_twin(all, chains); twin != no_block) {
        return twin;
      }
    }
    auto offered = offer<Chains>{all, chains};
    const auto block = order_.victim(offered, now);
    if constexpr (requires { order_.next_victims(), chains.prefetch_victims(block, block); }) {
      const auto [next, then] = order_.next_victims();
      if (then != no_block) {
        chains.prefetch_victims(next, then);
        all.words.prefetch(then);
      }
    }
    const auto any = offered.passed_over && (!offered.leased || at_last) && all.tally.num_evictable() > 0;
    return block == no_block && any ? claim_any(all, chains) : block;
  }

  /// Claims this block if it is evictable, and removes it from the order.
  template <class Chains>
  [[nodiscard]] bool claim(block_id block, states& all, Chains& chains) noexcept {
    const auto claimed = try_claim(block, all, chains) == eviction_answer::taken;
    if (claimed) {
      order_.erase(block);
    }
    return claimed;
  }

  /// Claims the first evictable block, whatever the order. For the rare case that every block offered by the policy is
  /// fenced by a step or has children, and for a policy that offers none to a caller that must get one.
  template <class Chains>
  [[nodiscard]] block_id claim_any(states& all, Chains& chains) noexcept {
    for (auto i = std::size_t{0}; i < static_cast<std::size_t>(num_blocks_); ++i) {
      if (claim(to_block(i), all, chains)) {
        return to_block(i);
      }
    }
    return no_block;
  }

  /// Makes a claimed block evictable again.
  template <class Chains>
  void put_back(block_id block, states& all, Chains& chains) noexcept {
    chains.attach(block);
    all.tally.add_evictable();
    all.words.set(block, all.words[block].with_claimed(false));
    list(block, block_release{}, all);
  }

  [[nodiscard]] contention_counts contention() const noexcept { return detail::contention_in(order_); }
  [[nodiscard]] std::size_t metadata_bytes() const noexcept {
    return order_.metadata_bytes() + twins_.metadata_bytes();
  }

 private:
  void list(block_id block, const block_release& how, const states& all) noexcept {
    order_.insert(block, how, [&] { return all.words[block].listed(); });
  }

  /// Changes evictable to claimed if there is no lease on the block.
  template <class Chains>
  [[nodiscard]] static eviction_answer try_claim(block_id block, states& all, Chains& chains) noexcept {
    auto fenced = false;
    const auto before = all.words.change(block, [&](block_state seen) {
      fenced = seen.listed();
      return only_if(seen.evictable() && seen.leases() == 0, seen.with_claimed(true));
    });
    if (!before) {
      return fenced ? eviction_answer::fenced : eviction_answer::in_use;
    }
    all.tally.remove_evictable();
    chains.detach(block);
    return eviction_answer::taken;
  }

  /// The callable that the policy's `victim` gets. Records why an offered block was not taken.
  template <class Chains>
  struct offer {
    states& all;
    Chains& chains;
    bool passed_over = false;  // an offered block waits for a step or has children
    bool leased = false;       // an offered block is under a lease

    eviction_answer operator()(block_id block, evict_anyway_t) noexcept {
      const auto answer = try_claim(block, all, chains);
      if (answer == eviction_answer::fenced) {
        (all.words[block].evictable() ? leased : passed_over) = true;
      }
      return answer;
    }
    eviction_answer operator()(block_id block) noexcept {
      if (chains.has_children(block)) {
        passed_over = true;
        return eviction_answer::has_children;
      }
      return (*this)(block, evict_anyway);
    }
  };

  /// An evictable leaf whose twin stays published: evicting it loses no hit.
  template <class Chains>
  [[nodiscard]] block_id claim_twin(states& all, Chains& chains) noexcept {
    using answer = typename twin_list<Locking::template atomic>::answer;
    return twins_.search([&](block_id block) {
      if (!all.words[block].listed()) {
        return answer::dropped;
      }
      if (!all.words.lease(block)) {
        return answer::dropped;
      }
      const auto has_twin = chains.has_twin(block, [&](block_id twin) { return !all.words[twin].claimed(); });
      all.words.end_lease(block);
      if (!has_twin) {
        return answer::dropped;
      }
      if (chains.has_children(block)) {
        return answer::kept;
      }
      return claim(block, all, chains) ? answer::taken : answer::kept;
    });
  }

  std::int32_t num_blocks_;
  eviction_order<typename Locking::family, Eviction> order_;
  twin_list<Locking::template atomic> twins_;
};

}  // namespace pagedkv
