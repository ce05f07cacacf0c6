#pragma once

#include <pagedkv/cache/operations/parts/leases.hpp>
#include <pagedkv/cache/operations/parts/withdraw.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace pagedkv::detail {

/// Marks the time in which one operation withdraws blocks.
template <class Pool>
class [[nodiscard]] invalidation {
 public:
  explicit invalidation(Pool& pool) noexcept : pool_(pool) { pool_.begin_invalidation(); }
  invalidation(const invalidation&) = delete;
  invalidation& operator=(const invalidation&) = delete;
  ~invalidation() { pool_.end_invalidation(); }

 private:
  Pool& pool_;
};

/// Withdraws a published block and gives back the caller's reference to it. Returns how many blocks that hides: 0 or 1.
template <class State>
[[nodiscard]] std::int64_t withdraw_and_release(State& state, block_id block) noexcept {
  const bool first = withdraw(state, block);
  release_block(state, block, 0, block_release{}, 0);
  return first ? 1 : 0;
}

/// Withdraws every block that continues `before` with these contents. Returns what the last of them was, a link without
/// a block if there was none; adds their number to `count`.
template <class State>
[[nodiscard]] chain_link withdraw_next(State& state, const chain_link& before, const block_contents& contents,
                                       std::int64_t& count) noexcept {
  const auto hash = state.index.hash(before.hash, contents);
  auto last = chain_link{};
  for (;;) {
    const auto block = state.index.find(before, hash, contents, state.pool.leases());
    if (block == no_block) {
      return last;
    }
    last = state.index.link(block);
    reference_found(state, block);
    count += withdraw_and_release(state, block);
  }
}

/// Invalidates the longest cached prefix of these tokens; returns how many blocks that were, twins included.
template <class State>
std::int64_t invalidate_prefix(State& state, const token_run& run, salt salt) noexcept {
  const auto during = invalidation{state.pool};
  auto count = std::int64_t{0};
  auto before = state.index.root(salt);
  for (std::size_t i = 0; i < run.tokens.size() / state.block_size(); ++i) {
    before = withdraw_next(state, before, run.block(i, state.block_size()), count);
    if (before.node == no_block) {
      break;
    }
  }
  return count;
}

/// Invalidates the first block of every chain with this salt; returns how many. Linear in the pool.
template <class State>
std::int64_t invalidate_salt(State& state, salt salt) noexcept {
  const auto during = invalidation{state.pool};
  const auto leases = state.pool.leases();
  auto count = std::int64_t{0};
  for (std::size_t i = 0; i < static_cast<std::size_t>(state.pool.size()); ++i) {
    const auto block = to_block(i);
    if (!leases.take(block)) {
      continue;
    }
    if (state.index.begins_chain(block, salt)) {
      reference_found(state, block);
      count += withdraw_and_release(state, block);
    } else {
      leases.end(block);
    }
  }
  return count;
}

/// Invalidates those of these blocks that are cached; returns how many. Errors: `invalid_argument` outside the pool.
template <class State>
[[nodiscard]] result<std::int64_t> invalidate_blocks(State& state, std::span<const block_id> blocks) noexcept {
  const auto num_blocks = state.pool.size();
  const auto outside = [&](block_id block) { return to_index(block) >= static_cast<std::size_t>(num_blocks); };
  if (const auto found = std::ranges::find_if(blocks, outside); found != blocks.end()) {
    return bad_index("block to invalidate", static_cast<std::int64_t>(*found), num_blocks);
  }
  const auto during = invalidation{state.pool};
  auto count = std::int64_t{0};
  for (const auto block : blocks) {
    if (state.pool.reference_published(block)) {
      count += withdraw_and_release(state, block);
    }
  }
  return count;
}

}  // namespace pagedkv::detail
