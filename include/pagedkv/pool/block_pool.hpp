#pragma once

#include <pagedkv/core/ids.hpp>
#include <pagedkv/detail/spin_pause.hpp>
#include <pagedkv/policy/free_list/concept.hpp>
#include <pagedkv/policy/locking/concept.hpp>
#include <pagedkv/pool/block_chains.hpp>
#include <pagedkv/pool/block_retirement.hpp>
#include <pagedkv/pool/block_states.hpp>
#include <pagedkv/pool/free_list.hpp>
#include <pagedkv/pool/lock_free_free_list.hpp>
#include <pagedkv/pool/run_free_list.hpp>
#include <pagedkv/pool/run_search.hpp>
#include <pagedkv/pool/sharded_free_list.hpp>
#include <pagedkv/pool/victim_search.hpp>

#include <algorithm>
#include <atomic>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>

namespace pagedkv {

/// Whether a free list may search for runs: one thread at a time changes what it searches.
template <class Family, free_list_policy FreeList>
inline constexpr bool searches_runs_for = !FreeList::prefers_runs || !Family::concurrent;

/// Owns the block ids: their states (free, in use, evictable, retiring) and their reference counts. Metadata is for the
/// capacity; ids from the size on are outside the pool.
///
/// Every transition is one compare-and-swap on the block's word (see `block_state`); free list, eviction order and
/// counts follow it. With a free list that prefers runs, chains are `pruned_chains` and `linked_chains`, too.
template <locking Locking, eviction_policy Eviction, free_list_policy FreeList>
class block_pool {
 public:
  explicit block_pool(std::int32_t num_blocks) : block_pool(num_blocks, num_blocks) {}
  block_pool(std::int32_t num_blocks, std::int32_t capacity)
      : size_(num_blocks),
        states_(capacity),
        free_(capacity),
        victims_(capacity),
        retirement_(capacity),
        runs_(capacity) {
    if (num_blocks < capacity) {
      take_free_from(block_id{num_blocks});
    }
  }

  [[nodiscard]] std::int32_t size() const noexcept { return size_.load(std::memory_order_relaxed); }
  [[nodiscard]] block_state state(block_id block) const noexcept { return states_.words[block]; }
  /// Prefetches its state.
  [[gnu::always_inline]] void prefetch(block_id block) const noexcept { states_.words.prefetch(block); }
  /// Exact unless other threads are at work. Otherwise, free and evictable blocks may be counted too high, never too
  /// low; no count is negative, and they add up.
  [[nodiscard]] block_counts counts() const noexcept {
    auto counts = block_counts{};
    const auto num_evictable = states_.tally.num_evictable([&] { counts.free = free_.size(); });
    const auto num_blocks = std::int64_t{size()};
    if constexpr (Locking::family::concurrent) {
      counts.free = std::min(counts.free, num_blocks);  // the pool may grow between the two readings
    }
    counts.in_use = num_blocks - counts.free;
    counts.evictable = std::clamp(num_evictable, std::int64_t{0}, counts.in_use);
    counts.in_use -= counts.evictable;
    counts.retiring = std::clamp(states_.tally.num_retiring(), std::int64_t{0}, counts.in_use);
    counts.in_use -= counts.retiring;
    return counts;
  }

  /// With other threads at work not less than at some moment of the call; the same goes for `num_available`.
  [[nodiscard]] std::int64_t num_free() const noexcept { return free_.size(); }

  /// Blocks that an allocation could have now, beside these published ones: free, or evictable under a policy that
  /// evicts.
  [[nodiscard]] std::int64_t num_available(std::span<const block_id> beside = {}) const noexcept {
    auto num_free = std::int64_t{0};
    auto num_beside = std::int64_t{0};
    const auto num_evictable = states_.tally.num_evictable([&] {
      num_free = free_.size();
      num_beside = std::ranges::count_if(beside, [&](block_id block) { return state(block).evictable(); });
    });
    return num_free + (evicts<Eviction> ? num_evictable - num_beside : 0);
  }

  /// Number of blocks in use or retiring, in O(blocks). Blocks that stay so during the call are counted.
  [[nodiscard]] std::int64_t count_occupied() const noexcept {
    auto num = std::int64_t{0};
    for (auto block = block_id{0}; block < block_id{size()}; block = next(block)) {
      const auto seen = state(block);
      num += seen.count() > 0 || seen.retiring();
    }
    return num;
  }

  /// Calls `visit(id)` on every id in the free list. Requires that no other thread uses the pool.
  template <class Visit>
  void for_each_free(Visit&& visit) const {
    free_.for_each(visit);
  }

  /// Whether this block, which is in use, would be available without its references.
  [[nodiscard]] bool could_be_released(block_id block) const noexcept {
    return evicts<Eviction> || !state(block).published();
  }

  /// Fills `blocks` with ids, each in use once: free ones first, then victims, which are erased from `chains` and added
  /// to `num_evicted`. All or nothing: false if there are not enough. To make runs, may evict more than it needs.
  template <block_chains Chains>
  [[nodiscard]] bool allocate(std::span<block_id> blocks, Chains& chains, timestamp now,
                              std::int64_t& num_evicted) noexcept {
    if (!may_supply(blocks.size())) {
      return false;
    }
    if constexpr (FreeList::prefers_runs) {
      num_evicted += make_runs(blocks.size(), chains, now);
    }
    const auto num_invalidations = invalidations_ended_.load(std::memory_order_acquire);
    auto num_taken = std::size_t{0};
    auto num_free = std::size_t{0};
    for (auto attempts = 1;; ++attempts) {
      if constexpr (FreeList::prefers_runs) {
        num_taken = num_free = free_.take(blocks);
      } else {
        for (auto block = no_block; num_taken < blocks.size() && (block = free_.pop()) != no_block;) {
          blocks[num_taken] = block;
          std::swap(blocks[num_free++], blocks[num_taken++]);  // before the victims
        }
      }
      while (num_taken < blocks.size() &&
             (blocks[num_taken] = victims_.claim_next(states_, chains, now, attempts == max_attempts)) != no_block) {
        ++num_taken;
      }
      const auto num_missing = static_cast<std::int64_t>(blocks.size() - num_taken);
      if (num_missing == 0 || attempts == max_attempts || num_missing > num_available()) {
        break;
      }
      spin_pause();
    }
    const auto victims = blocks.subspan(num_free, num_taken - num_free);
    if (num_taken < blocks.size()) {
      std::ranges::for_each(victims, [&](block_id block) { restore_victim(block, chains, num_invalidations); });
      std::ranges::for_each(blocks.first(num_free), [&](block_id block) { free_.push(block); });
      return false;
    }
    std::ranges::for_each(victims, [&](block_id block) { chains.erase(block); });
    std::ranges::for_each(blocks, [&](block_id block) { states_.words.set(block, block_state::fresh()); });
    num_evicted += static_cast<std::int64_t>(victims.size());
    return true;
  }

  /// `allocate`, where an eviction makes other blocks useless, or the tails of their chains: each victim is erased, and
  /// what became useless is free, before the next one is chosen. Requires that so many blocks are available, and that
  /// no other thread uses the pool.
  template <pruned_chains Chains>
  void allocate_in_turn(std::span<block_id> blocks, Chains& chains, timestamp now, std::int64_t& num_evicted) noexcept {
    for (auto& block : blocks) {
      block = free_.pop();
      if (block == no_block) {
        block = victims_.claim_next(states_, chains, now, true);
        block = block != no_block ? block : victims_.claim_any(states_, chains);
        assert(block != no_block && "the caller has counted the available blocks");
        chains.erase(block);
        num_evicted += 1 + chains.free_useless();
      }
      states_.words.set(block, block_state::fresh());
    }
  }

  /// Evicts blocks ahead of need, in two phases. First, at most `blocks.size()` victims, whose ids are written, are
  /// erased from `chains`; then the steps up to `fence` may read them, and when those have retired, they are free. So a
  /// transfer that begins as a step can copy the contents elsewhere. A fence of 0 frees at once. Returns the number of
  /// victims.
  template <block_chains Chains>
  [[nodiscard]] std::size_t evict(std::span<block_id> blocks, Chains& chains, timestamp now,
                                  std::uint32_t fence) noexcept {
    auto num_evicted = std::size_t{0};
    for (auto& block : blocks) {
      block = victims_.claim_next(states_, chains, now, false);
      if (block == no_block) {
        break;
      }
      chains.erase(block);
      leave(block, fence);
      ++num_evicted;
    }
    return num_evicted;
  }

  /// Evicts a block at once, whatever the policy's order, for a caller that must get one although the policy offers
  /// none. Returns how many: none if no block is evictable, or the policy does not evict.
  template <block_chains Chains>
  [[nodiscard]] std::int64_t evict_any(Chains& chains) noexcept {
    const auto block = evicts<Eviction> ? victims_.claim_any(states_, chains) : no_block;
    if (block == no_block) {
      return 0;
    }
    chains.erase(block);
    leave(block, 0);
    return 1;
  }

  /// Whether a lease or a reference could be taken if no other thread interferes: the block is published, no thread
  /// evicts it, and its count is not full.
  [[nodiscard]] bool can_lease(block_id block) const noexcept { return state(block).leasable(); }

  /// Adds a reference to a published block; revives the block if it is evictable. False if `can_lease` is false.
  [[nodiscard]] bool reference_published(block_id block) noexcept {
    const auto before = states_.words.change(
        block, [](block_state seen) { return only_if(seen.leasable(), seen.referenced()); });
    if (before) {
      leave_order({&block, 1}, [&](block_id) { return *before; });
    }
    return before.has_value();
  }

  /// Adds a reference to blocks for which `can_lease` is true and stays so until now: no other thread uses the pool.
  void reference_leasable(std::span<const block_id> blocks) noexcept {
    leave_order(blocks, [&](block_id block) {
      const auto before = state(block);
      assert(before.leasable());
      states_.words.set(block, before.referenced());
      return before;
    });
  }

  /// Takes a lease on a published block: it cannot be evicted until `end_lease`, which has no other effect, or
  /// `reference_leased`, which turns the lease into a reference. False if `can_lease` is false, or with `max_leases` on
  /// it.
  [[nodiscard]] bool lease(block_id block) const noexcept { return states_.words.lease(block); }
  void end_lease(block_id block) const noexcept { states_.words.end_lease(block); }
  [[nodiscard]] block_leases<Locking> leases() const noexcept { return block_leases<Locking>{states_.words}; }
  void reference_leased(std::span<const block_id> blocks) noexcept {
    const auto referenced = [](block_state seen) { return std::optional{seen.unleased().referenced()}; };
    leave_order(blocks, [&](block_id block) { return *states_.words.change(block, referenced); });
  }

  /// Adds a reference to a block on which the caller has one. False if the count is full.
  [[nodiscard]] bool reference(block_id block) noexcept {
    const auto shared = [](block_state seen) {
      assert(seen.count() > 0 && "only a block that is held can be shared");
      return only_if(seen.count() > 0 && seen.referable(), seen.referenced());
    };
    return states_.words.change(block, shared).has_value();
  }

  /// Removes a reference. After the last one, the block is evictable if it is published, otherwise free, as soon as the
  /// steps up to its fences have retired. Release chains deepest block first. Without a reference, changes nothing.
  /// True when the block is withdrawn and this was its last reference: the caller then calls `free_withdrawn`.
  bool release(block_id block, const block_release& how, std::uint32_t fence) noexcept {
    // Ahead of the release: without a reference, the block may have other contents.
    victims_.note(block, how, [&] {
      const auto seen = state(block);
      return seen.count() > 1 && seen.published();
    });
    auto after = block_state{};
    auto gained = false;
    const auto let_go = [&](block_state seen) {
      assert(seen.count() > 0 && "released more often than referenced");
      after = seen.unreferenced().with_step(retirement_.steps().later(seen.step(), fence));
      if (Locking::family::concurrent && after.count() == 0 && after.leases() > 0) {
        after = after.with_claimed(false);  // under a lease: evictable, and freed by its eviction
      }
      states_.tally.foresee_evictable(gained, seen.count() > 0 && after.evictable());
      return only_if(seen.count() > 0, after);
    };
    if (!states_.words.change(block, let_go)) {
      states_.tally.foresee_evictable(gained, false);
      return false;
    }
    if (after.count() == 0 && after.claimed()) {
      return true;
    }
    if (after.word() == 0) {
      free_.push(block);
    } else if (after.count() == 0) {
      enter_order(block, after, how);
    } else if (after.step() != 0) {
      watch(block, after.step());
    }
    return false;
  }
  void release(block_id block, const block_release& how) noexcept { release(block, how, fence_of(step_set{})); }

  /// Puts a published block, to which the caller has a reference, out of the reach of hits: it is freed with its last
  /// reference. False when another thread has done so. The caller takes it out of the prefix index.
  [[nodiscard]] bool withdraw(block_id block) noexcept {
    const auto withdrawn = [](block_state seen) {
      assert(seen.count() > 0 && seen.published() && "only a published block in use can be withdrawn");
      return only_if(!seen.claimed(), seen.with_claimed(true));
    };
    return states_.words.change(block, withdrawn).has_value();
  }
  /// Frees a withdrawn block without references, as soon as the steps up to its fence have retired, and erases it from
  /// `chains`.
  template <block_chains Chains>
  void free_withdrawn(block_id block, Chains& chains) noexcept {
    chains.detach(block);
    chains.erase(block);
    victims_.erase(block);
    leave(block, state(block).step());
  }

  /// Called before and after the withdrawals of one invalidation, which may miss the victims of an allocation. If the
  /// allocation then fails, it frees them instead of making them evictable again.
  void begin_invalidation() noexcept { invalidations_begun_.fetch_add(1, std::memory_order_acq_rel); }
  void end_invalidation() noexcept { invalidations_ended_.fetch_add(1, std::memory_order_acq_rel); }

  /// Fences a block for open steps that may read slots which its holder gives up. The fence is not 0.
  void fence(block_id block, std::uint32_t fence) noexcept {
    retirement_.fence(block, fence, states_, put_free());
  }
  /// Whether an open step may read slots of earlier holders in a block.
  [[nodiscard]] bool fenced(block_id block) const noexcept {
    const auto step = state(block).step();
    return step != 0 && !retirement_.steps().passed(step);
  }

  /// Frees blocks that were just allocated and not used.
  void discard(std::span<const block_id> fresh) noexcept {
    std::ranges::for_each(fresh, [&](block_id block) { set_free(block); });
  }

  void publish(block_id block) noexcept {
    states_.words.change(block, [](block_state seen) { return std::optional{seen.with_published(true)}; });
  }

  /// Records that another published block has the same contents. Unless the policy's order forbids it, one of them is
  /// evicted before all other victims once it has no references.
  void note_twin(block_id block) noexcept { victims_.note_twin(block, states_); }

  /// Frees every evictable block and erases it from `chains`; returns their number.
  template <block_chains Chains>
  std::int64_t forget_evictable(Chains& chains) noexcept {
    auto num_forgotten = std::int64_t{0};
    for (auto block = block_id{0}; block < block_id{size()}; block = next(block)) {
      num_forgotten += forget(block, chains);
    }
    return num_forgotten;
  }

  [[nodiscard]] auto begin_step(step_use use = step_use::everything) noexcept { return retirement_.steps().begin(use); }
  /// Call it on a step whose begin is complete, for `newest_open_step`.
  void note_newest_step(step_id step) noexcept { retirement_.steps().note_newest(step); }
  [[nodiscard]] result<void> retire_step(step_id step) noexcept {
    return retirement_.retire(step, states_, put_free());
  }

  [[nodiscard]] bool step_in_flight() const noexcept { return retirement_.steps().in_flight(); }
  [[nodiscard]] std::int64_t num_open_steps() const noexcept { return retirement_.steps().num_open(); }
  [[nodiscard]] step_id newest_open_step() const noexcept { return retirement_.steps().newest_open(); }
  /// The tag that blocks of a sequence wait for when it releases them while these steps use it; 0 for none.
  [[nodiscard]] std::uint32_t fence_of(const step_set& used) const noexcept { return retirement_.steps().tag(used); }
  /// The tag that blocks wait for while this step reads them; 0 unless it is open.
  [[nodiscard]] std::uint32_t fence_of(step_id step) const noexcept { return retirement_.steps().tag(step); }
  /// The step whose retirement makes this many retiring blocks available: see `step_fence`. While steps are open,
  /// O(retiring + shared + pool / 64).
  [[nodiscard]] auto step_that_frees(std::int64_t num_blocks, const own_blocks& own = {}) const noexcept {
    return retirement_.step_that_frees(num_blocks, states_, own, [](block_state seen) {
      return seen.retiring() && (evicts<Eviction> || !seen.published());
    });
  }
  /// Whether a block can be appended to without a copy: one sequence holds it and no prefix hit can find it.
  [[nodiscard]] bool writable(block_id block) const noexcept {
    const auto seen = state(block);
    return seen.count() == 1 && !seen.published();
  }

  /// Renames blocks in this order (see `plan_moves`). `new_id(id)` is the id of every block after all moves, and
  /// `no_block` for that. Requires that no other thread uses the pool.
  template <class NewId>
  void apply_moves(std::span<const block_pair> moves, NewId&& new_id) noexcept {
    while (free_.pop() != no_block) {
    }
    for (const auto& [from, to] : moves) {
      states_.words.set(block_id{to}, state(block_id{from}));
      states_.words.set(block_id{from}, block_state{});
      victims_.rename(block_id{from}, block_id{to});
      runs_.rename(block_id{from}, block_id{to});
    }
    runs_.rename_children(new_id);
    for (auto block = to_block(static_cast<std::size_t>(size())); block > block_id{0};) {
      block = to_block(to_index(block) - 1);
      if (state(block).word() == 0) {
        free_.push(block);
      }
    }
    for (const auto& pair : moves) {
      const auto block = block_id{pair.destination};
      if (const auto step = state(block).step(); step != 0) {
        watch(block, step);
      }
    }
  }

  /// Adds the ids up to a new size. All of them are free.
  void grow_to(std::int32_t num_blocks) noexcept {
    const auto first = to_index(block_id{size()});
    size_.store(num_blocks, std::memory_order_release);
    for (auto index = static_cast<std::size_t>(num_blocks); index-- > first;) {
      set_free(to_block(index));
    }
  }

  /// Number of blocks from this id on that would not leave the pool: in use, retiring, under a lease, or evictable
  /// under a policy that evicts nothing.
  [[nodiscard]] std::int64_t count_held_from(block_id first) const noexcept {
    auto num = std::int64_t{0};
    for (auto block = first; block < block_id{size()}; block = next(block)) {
      const auto seen = state(block);
      num += seen.word() != 0 && !(evicts<Eviction> && seen.evictable() && seen.leases() == 0);
    }
    return num;
  }

  /// Removes the ids from a new size on. Evicts the evictable ones among them. False when other blocks are there, or
  /// another thread has its hands on one; then the pool keeps its size and its blocks.
  template <block_chains Chains>
  [[nodiscard]] bool shrink_to(std::int32_t num_blocks, Chains& chains, std::int64_t& num_evicted) noexcept {
    const auto first = block_id{num_blocks};
    const auto end = block_id{size()};
    const auto num_invalidations = invalidations_ended_.load(std::memory_order_acquire);
    auto taken = first;
    for (auto attempts = 0; taken < end && attempts < max_attempts; ++attempts) {
      take_free_from(first);
      while (taken < end && (is_outside(taken) || (evicts<Eviction> && victims_.claim(taken, states_, chains)))) {
        taken = next(taken);
      }
    }
    if (taken < end) {
      give_back_tail(first, taken, chains, num_invalidations);
      return false;
    }
    for (auto block = first; block < end; block = next(block)) {
      if (!is_outside(block)) {
        chains.erase(block);
        states_.words.set(block, block_state::outside());
        ++num_evicted;
      }
    }
    size_.store(num_blocks, std::memory_order_release);
    return true;
  }

  [[nodiscard]] contention_counts contention() const noexcept {
    auto sum = states_.words.contention();
    sum += detail::contention_in(free_);
    sum += victims_.contention();
    return sum;
  }
  [[nodiscard]] std::size_t metadata_bytes() const noexcept {
    return states_.words.metadata_bytes() + free_.metadata_bytes() + victims_.metadata_bytes() +
           retirement_.metadata_bytes() + runs_.metadata_bytes();
  }

 private:
  // Searches for a block. Leases are short, so retry; give up at last, because the thread that has one may be stopped.
  static constexpr auto max_attempts = Locking::family::concurrent ? 16 : 1;

  // Octets that one allocation searches. Bounds what a search costs in a pool without octets that may go.
  static constexpr auto most_octets_searched = std::size_t{1024};

  static_assert(searches_runs_for<typename Locking::family, FreeList>,
                "`contiguous_runs` searches bitmaps that one thread at a time may change: use the locking policy "
                "`single_thread` or `rw_lock` with it, or the free list `any_free_block` with this one");

  [[nodiscard]] static block_id next(block_id block) noexcept { return to_block(to_index(block) + 1); }

  void set_free(block_id block) noexcept {
    states_.words.set(block, block_state{});
    free_.push(block);
  }

  /// A block that is erased from the index becomes free as soon as the steps up to a fence have retired.
  void leave(block_id block, std::uint32_t fence) noexcept {
    if (fence == 0) {
      set_free(block);
    } else {
      states_.tally.add_retiring(1);
      states_.words.set(block, block_state{}.with_step(fence));
      watch(block, fence);
    }
  }

  [[nodiscard]] bool is_outside(block_id block) const noexcept {
    return state(block).word() == block_state::outside().word();
  }

  void take_free_from(block_id first) noexcept {
    free_.take_from(first, [&](block_id block) { states_.words.set(block, block_state::outside()); });
  }

  /// Undoes a shrinking that came as far as `taken`.
  template <block_chains Chains>
  void give_back_tail(block_id first, block_id taken, Chains& chains, std::uint64_t num_invalidations) noexcept {
    for (auto block = first; block < block_id{size()}; block = next(block)) {
      if (is_outside(block)) {
        set_free(block);
      } else if (block < taken) {
        restore_victim(block, chains, num_invalidations);
      }
    }
  }

  void watch(block_id block, std::uint32_t tag) noexcept {
    retirement_.watch(block, tag, states_, put_free());
  }

  /// Call it after the last reference was removed, which left the block evictable or retiring.
  void enter_order(block_id block, block_state after, const block_release& how) noexcept {
    if (after.step() != 0) {
      states_.tally.add_retiring(1);
      watch(block, after.step());
    }
    if (after.published()) {
      victims_.insert(block, how, states_);
      runs_.insert(block, how.parent);
    }
  }

  /// Calls `reference(id)` on each block, which adds a reference and returns the state before. Counts those that were
  /// evictable at the end, as one.
  template <class Reference>
  void leave_order(std::span<const block_id> blocks, Reference&& reference) noexcept {
    auto num_evictable = std::int64_t{0};
    auto num_retiring = std::int64_t{0};
    victims_.remove_each([&](auto&& remove) {
      for (const auto block : blocks) {
        if (const block_state before = reference(block); before.count() == 0) {
          ++(before.step() == 0 ? num_evictable : num_retiring);
          remove(block);
        }
      }
    });
    if (num_evictable != 0) {
      states_.tally.remove_evictable(num_evictable);
    }
    if (num_retiring != 0) {
      states_.tally.add_retiring(-num_retiring);
    }
  }

  /// Frees enough blocks for an allocation, and, as far as that costs little, whole octets of neighbours. Evicts in
  /// turn but for octets that the tails of old chains complete, and only in turn unless the policy orders by age.
  /// Returns the number of evicted blocks.
  template <pruned_chains Chains>
  std::int64_t make_runs(std::size_t num_blocks, Chains& chains, timestamp now) noexcept {
    auto num_evicted = std::int64_t{0};
    const auto evict = [&](block_id block) {
      chains.erase(block);
      set_free(block);
      num_evicted += 1 + chains.free_useless();
    };
    const auto num_free = [&] { return static_cast<std::size_t>(free_.size()); };
    while (num_free() < num_blocks) {
      const auto block = victims_.claim_next(states_, chains, now, true);
      if (block == no_block) {
        return num_evicted;
      }
      runs_.note_turn(block);
      evict(block);
    }
    if constexpr (orders_by_age<Eviction>) {
      const auto num_octets = num_blocks / run_free_list::octet_size;
      const auto most_free = num_blocks + static_cast<std::size_t>(size()) * FreeList::most_ahead / 1000;
      auto patience = most_octets_searched;
      while (static_cast<std::size_t>(free_.num_whole()) < num_octets && num_free() < most_free) {
        const auto found = runs_.find(free_, static_cast<std::size_t>(size()) / run_free_list::octet_size, states_,
                                      chains, most_free - num_free(), patience);
        if (found.empty()) {
          break;
        }
        std::for_each(found.rbegin(), found.rend(), [&](block_id block) {
          if (victims_.claim(block, states_, chains)) {
            evict(block);
          }
        });
      }
    }
    return num_evicted;
  }

  /// Whether an allocation may succeed. Where threads share the counts, a single block is always tried, because a
  /// failure leaves no victims to restore.
  [[nodiscard]] bool may_supply(std::size_t num_blocks) const noexcept {
    return (Locking::family::concurrent && num_blocks <= 1) || static_cast<std::int64_t>(num_blocks) <= num_available();
  }

  /// Takes back blocks that are free by their word.
  [[nodiscard]] auto put_free() noexcept {
    return [this](block_id block) { free_.push(block); };
  }

  /// Frees a block if it is evictable.
  template <block_chains Chains>
  bool forget(block_id block, Chains& chains) noexcept {
    const auto claimed = victims_.claim(block, states_, chains);
    if (claimed) {
      chains.erase(block);
      set_free(block);
    }
    return claimed;
  }

  /// Gives back a victim that was claimed when so many invalidations had ended. Those that began since may have missed
  /// it.
  template <block_chains Chains>
  void restore_victim(block_id block, Chains& chains, std::uint64_t num_invalidations) noexcept {
    const auto may_have_been_missed = [&] {
      return invalidations_begun_.fetch_add(0, std::memory_order_acq_rel) != num_invalidations;
    };
    if (may_have_been_missed()) {
      chains.erase(block);
      set_free(block);
      return;
    }
    victims_.put_back(block, states_, chains);
    if constexpr (Locking::family::concurrent) {
      if (may_have_been_missed()) {
        withdraw_restored(block, chains);
      }
    }
  }

  /// Other threads may have hit the block since it was put back, or claimed it. One that still has its claim when an
  /// invalidation begins does not give it back, so no attempt waits for it.
  template <block_chains Chains>
  void withdraw_restored(block_id block, Chains& chains) noexcept {
    for (auto attempts = 0; attempts < max_attempts && state(block).published(); ++attempts) {
      if (forget(block, chains)) {
        return;
      }
      if (reference_published(block)) {
        if (withdraw(block)) {
          chains.withdraw(block);
        }
        if (release(block, block_release{.as_before = true}, 0)) {
          free_withdrawn(block, chains);
        }
        return;
      }
      begin_invalidation();
      end_invalidation();
    }
  }

  typename Locking::template atomic<std::int32_t> size_;
  mutable block_states<Locking> states_;  // queries take and end leases
  std::conditional_t<FreeList::prefers_runs, run_free_list, free_list_for<Locking>> free_;
  victim_search<Locking, Eviction> victims_;
  block_retirement<Locking> retirement_;
  [[no_unique_address]] run_search_for<Locking, FreeList> runs_;
  typename Locking::template atomic<std::uint64_t> invalidations_begun_{0};
  typename Locking::template atomic<std::uint64_t> invalidations_ended_{0};
};

}  // namespace pagedkv
