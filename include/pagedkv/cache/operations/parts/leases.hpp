#pragma once

#include <pagedkv/cache/operations/parts/release_blocks.hpp>
#include <pagedkv/prefix/chain_match.hpp>

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>

namespace pagedkv::detail {

/// Leases on published blocks for look-ups among threads: a lease keeps its block from eviction until it ends.
template <class State>
struct counted_leases {
  const State& state;

  [[nodiscard]] bool take(block_id block) const noexcept { return state.pool.lease(block); }
  void end(block_id block) const noexcept { state.pool.end_lease(block); }
};

/// Leases where no other thread can evict a block during a look-up: nothing is counted.
template <class State>
struct free_leases {
  const State& state;

  [[nodiscard]] bool take(block_id block) const noexcept { return state.pool.can_lease(block); }
  void end(block_id) const noexcept {}
};

template <class State>
[[nodiscard]] auto leases_of(const State& state) noexcept {
  if constexpr (State::locking_type::family::concurrent) {
    return counted_leases<State>{state};
  } else {
    return free_leases<State>{state};
  }
}

/// Ends the leases on the first `count` blocks of a table that `lease_prefix` filled, deepest first.
template <class State>
void end_leases(State& state, const block_table& blocks, std::size_t count) noexcept {
  for (auto i = count; i > 0; --i) {
    if constexpr (State::locking_type::family::concurrent) {
      state.pool.end_lease(blocks[i - 1]);
    } else {
      release_block(state, blocks[i - 1], i - 1, block_release{}, 0);
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

/// Makes references of the leases on the first `count` blocks of a table that `lease_prefix` filled.
template <class State>
void reference_leased([[maybe_unused]] State& state, [[maybe_unused]] const block_table& blocks,
                      [[maybe_unused]] std::size_t count) noexcept {
  if constexpr (State::locking_type::family::concurrent) {
    reference_found(state, blocks.all().first(count));
  }
}

/// Appends the longest published prefix, `max_blocks` at most, to an empty table with room for it, each block under a
/// lease until `reference_leased` or `end_leases`. (Where no other thread is inside, references stand for the leases
/// from the beginning.) The table is going to be filled up to `total(num_hits)` blocks: where that is bound to fail,
/// nothing is changed.
template <class State, class Total>
[[nodiscard]] result<void> lease_prefix(State& state, block_table& blocks, const chain_link& root, const token_run& run,
                                        std::size_t max_blocks, Total&& total) noexcept {
  if (max_blocks != 0) {
    const auto num_found =
        match_chain(state.index, root, run, state.block_size(), max_blocks, leases_of(state),
                    [next = blocks.extend(max_blocks).data()](block_id block) mutable { *next++ = block; });
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
    if constexpr (State::locking_type::family::concurrent) {
      end_leases(state, blocks, blocks.size());
    }
    blocks.clear();
    return refused;
  }
  if constexpr (!State::locking_type::family::concurrent) {
    reference_found(state, blocks.all());
  }
  return {};
}

}  // namespace pagedkv::detail
