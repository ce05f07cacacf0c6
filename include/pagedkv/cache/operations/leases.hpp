#pragma once

#include <pagedkv/cache/operations/release_blocks.hpp>
#include <pagedkv/prefix/chain_match.hpp>

#include <cassert>
#include <cstddef>
#include <span>

// A look-up holds a lease on each block that it finds, until that is a reference or ends; a reference at once
// where no other thread can come between.

namespace pagedkv::detail {

/// Ends the block's lease.
template <locking Locking>
struct end_each {
  block_leases<Locking> leases;

  void operator()(block_id block) const noexcept { leases.end(block); }
};

/// Writes the block to a list with room for it, and keeps its lease or ends it.
template <locking Locking>
struct list_each {
  block_leases<Locking> leases;
  bool keeps_leases;
  block_id* next;

  void operator()(block_id block) noexcept {
    *next++ = block;
    if (!keeps_leases) {
      leases.end(block);
    }
  }
};

/// Finds the longest published prefix as `match_chain` does, `max_blocks` at most, and calls `found` on each of its
/// blocks.
template <class State, class Found>
std::size_t match_blocks(const State& state, const chain_link& root, const token_run& run, std::size_t max_blocks,
                         Found found) noexcept {
  return match_chain(state.index, root, run, state.block_size(), max_blocks, found.leases, found);
}

/// Whether references stand for leases from the beginning: where no other thread is inside, and where one thread at a
/// time searches the order for a victim, because it would pass the leased blocks one by one.
template <class State>
inline constexpr bool references_at_once =
    !State::locking_type::family::concurrent || !State::eviction_type::concurrent;

/// Ends the leases on the first `count` blocks of a table that `lease_prefix` filled, deepest first.
template <class State>
void end_leases(State& state, const block_table& blocks, std::size_t count) noexcept {
  for (auto i = count; i > 0; --i) {
    if constexpr (references_at_once<State>) {
      release_block(state, blocks[i - 1], i - 1, release_as_before(state.time()), 0);
    } else {
      state.pool.end_lease(blocks[i - 1]);
    }
  }
}

/// Makes references of the leases on blocks that look-ups found.
template <class State>
void reference_found(State& state, std::span<const block_id> blocks) noexcept {
  if constexpr (State::locking_type::family::concurrent) {
    state.pool.reference_leased(blocks);
  } else {
    state.pool.reference_leasable(blocks);
  }
}
template <class State>
void reference_found(State& state, block_id block) noexcept {
  reference_found(state, std::span{&block, 1});
}

/// Makes references of the leases on the first `count` blocks of a table that `lease_prefix` filled; of those that are
/// references at once, nothing is left to do.
template <class State>
void reference_leased([[maybe_unused]] State& state, [[maybe_unused]] const block_table& blocks,
                      [[maybe_unused]] std::size_t count) noexcept {
  if constexpr (!references_at_once<State>) {
    reference_found(state, blocks.all().first(count));
  }
}

/// Appends the longest published prefix, `max_blocks` at most, to an empty table with room for it, each block under a
/// lease until `reference_leased` or `end_leases`, or with a reference where `references_at_once`. The table is going
/// to be filled up to `total(num_hits)` blocks: where that is bound to fail, nothing is changed.
template <class State, class Total>
[[nodiscard]] result<void> lease_prefix(State& state, block_table& blocks, const chain_link& root, const token_run& run,
                                        std::size_t max_blocks, Total&& total) noexcept {
  if (max_blocks != 0) {
    const auto num_found = match_blocks(
        state, root, run, max_blocks,
        list_each<typename State::locking_type>{state.pool.leases(), true, blocks.extend(max_blocks).data()});
    blocks.withdraw(max_blocks - num_found);
  }
  const auto num_more = total(blocks.size()) - blocks.size();
  // Enough even if every hit is evictable? Then no pass over the hits has to tell how many are.
  auto num_available = state.pool.num_available() - std::ssize(blocks.all());
  if (static_cast<std::int64_t>(num_more) > num_available) {
    num_available = num_more != 0 ? state.pool.num_available(blocks.all()) : 0;
  }
  if (static_cast<std::int64_t>(num_more) > num_available) {
    const auto refused = state.refuse(num_more, num_available, {.shared = blocks.all()});
    std::ranges::for_each(blocks.all(), end_each<typename State::locking_type>{state.pool.leases()});
    blocks.clear();
    return refused;
  }
  if constexpr (references_at_once<State>) {
    reference_found(state, blocks.all());
  }
  return {};
}

}  // namespace pagedkv::detail
