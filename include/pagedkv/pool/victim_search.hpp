#pragma once

#include <pagedkv/core/ids.hpp>
#include <pagedkv/detail/block_bitmap.hpp>
#include <pagedkv/policy/eviction/parts/evictable_bitmap.hpp>
#include <pagedkv/policy/locking/concept.hpp>
#include <pagedkv/pool/block_chains.hpp>
#include <pagedkv/pool/block_states.hpp>
#include <pagedkv/pool/eviction_order.hpp>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

// Which evictable block goes next: first one whose equal stays (`twin_list`), then those that the policy offers.

namespace pagedkv {

/// The unreferenced blocks that had a twin, another block of equal contents, when either was published. A search asks
/// its caller about each, because twins come and go. Two bits per block; with an atomic `Atomic`, every member but
/// `rename` may be called from any thread.
template <template <class> class Atomic>
class twin_list {
 public:
  /// The answer of a search's caller about a block.
  enum class answer : std::uint8_t { taken, kept, dropped };

  explicit twin_list(std::int32_t num_blocks)
      : num_blocks_(static_cast<std::size_t>(num_blocks)), had_twin_(num_blocks), listed_(num_blocks_) {}

  /// A block has a twin.
  void note(block_id block, bool unreferenced) noexcept {
    had_twin_.insert(block);
    if (unreferenced) {
      list(block);
    }
  }

  /// A block lost its last reference.
  void release(block_id block) noexcept {
    if (had_twin_.contains(block)) {
      list(block);
    }
  }

  /// A block is referenced again. A search drops one that another thread lists meanwhile.
  void reference(block_id block) noexcept {
    if (num_listed_.load(std::memory_order_relaxed) != 0 && had_twin_.contains(block)) {
      unlist(block);
    }
  }

  /// Calls `ask(id)` on a few blocks until one is taken. Each search continues after the last one, so blocks that are
  /// kept do not hide others for long. After one that found only such blocks, the next ones find nothing, so that their
  /// cost is spread; a block that is listed meanwhile ends that. One load if there are none.
  template <class Ask>
  [[nodiscard]] block_id search(Ask&& ask) noexcept {
    constexpr auto most_asked = std::int64_t{16};
    constexpr auto pause = std::int32_t{64};
    const auto num_listed = num_listed_.load(std::memory_order_relaxed);
    if (num_listed <= 0) {
      return no_block;
    }
    if (pause_.load(std::memory_order_relaxed) > 0) {
      pause_.fetch_sub(1, std::memory_order_relaxed);
      return no_block;
    }
    auto all_kept = true;
    // One more than there are: the first may be behind the end.
    for (auto left = std::min(most_asked, num_listed + 1); left > 0; --left) {
      const auto found = listed_.find(next_.load(std::memory_order_relaxed));
      if (found == num_blocks_) {
        next_.store(0, std::memory_order_relaxed);
        continue;
      }
      next_.store(found + 1, std::memory_order_relaxed);
      const auto said = ask(to_block(found));
      if (said != answer::kept) {
        all_kept = false;
        unlist(to_block(found));
      }
      if (said == answer::taken) {
        return to_block(found);
      }
    }
    if (all_kept) {
      pause_.store(pause, std::memory_order_relaxed);
    }
    return no_block;
  }

  /// Compaction: `to`, which is free, replaces `from`.
  void rename(block_id from, block_id to) noexcept {
    had_twin_.contains(from) ? had_twin_.insert(to) : had_twin_.erase(to);
    if (unlist(from)) {
      list(to);
    }
  }

  [[nodiscard]] std::size_t metadata_bytes() const noexcept { return had_twin_.metadata_bytes() + listed_.bytes(); }

 private:
  void list(block_id block) noexcept {
    if (listed_.set(to_index(block))) {
      pause_.store(0, std::memory_order_relaxed);
      num_listed_.fetch_add(1, std::memory_order_relaxed);
    }
  }
  bool unlist(block_id block) noexcept {
    const auto was_listed = listed_.reset(to_index(block));
    num_listed_.fetch_sub(was_listed ? 1 : 0, std::memory_order_relaxed);
    return was_listed;
  }

  std::size_t num_blocks_;
  block_bitmap<Atomic> had_twin_;
  evictable_bitmap<Atomic> listed_;
  Atomic<std::int64_t> num_listed_{0};
  Atomic<std::size_t> next_{0};
  Atomic<std::int32_t> pause_{0};  // searches that still find nothing
};

/// The order of a pool's evictable blocks, and the search for the next one to evict: a block whose twin stays, unless
/// the policy forbids it, then the blocks that the policy offers, without children first.
///
/// A block is *claimed* by one compare-and-swap on its word: hits and other searches can no longer take it.
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
  /// A block is going to lose a reference; `stays()`: whether it has others, and could be evicted without them.
  template <class Stays>
  void note([[maybe_unused]] block_id block, [[maybe_unused]] const block_release& how,
            [[maybe_unused]] Stays&& stays) noexcept {
    if constexpr (requires { order_.note(block, how); }) {
      if (!how.as_before && stays()) {
        order_.note(block, how);
      }
    }
  }
  /// Blocks that may be listed have references again: calls `body(remove)`, which calls `remove(id)` on each.
  template <class Body>
  void remove_each(Body&& body) noexcept {
    const auto remove_from = [&](auto& order) {
      body([&](block_id block) {
        order.remove(block);
        twins_.reference(block);
      });
    };
    if constexpr (requires { order_.removals(); }) {
      auto removals = order_.removals();
      remove_from(removals);
    } else {
      remove_from(order_);
    }
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
  template <block_chains Chains>
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
  template <block_chains Chains>
  [[nodiscard]] bool claim(block_id block, states& all, Chains& chains) noexcept {
    const auto claimed = try_claim(block, all, chains) == eviction_answer::taken;
    if (claimed) {
      order_.erase(block);
    }
    return claimed;
  }

  /// Claims the first evictable block, whatever the order. For the rare case that every block offered by the policy is
  /// fenced by a step or has children, and for a policy that offers none to a caller that must get one.
  template <block_chains Chains>
  [[nodiscard]] block_id claim_any(states& all, Chains& chains) noexcept {
    for (auto i = std::size_t{0}; i < static_cast<std::size_t>(num_blocks_); ++i) {
      if (claim(to_block(i), all, chains)) {
        return to_block(i);
      }
    }
    return no_block;
  }

  /// Makes a claimed block evictable again.
  template <block_chains Chains>
  void put_back(block_id block, states& all, Chains& chains) noexcept {
    chains.attach(block);
    all.tally.add_evictable();
    all.words.set(block, all.words[block].with_claimed(false));
    list(block, block_release{.as_before = true}, all);
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
  template <block_chains Chains>
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
  template <block_chains Chains>
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
  template <block_chains Chains>
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
