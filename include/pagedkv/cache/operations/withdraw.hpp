#pragma once

#include <pagedkv/cache/operations/leases.hpp>
#include <pagedkv/cache/operations/unlaunched.hpp>
#include <pagedkv/cache/record_map.hpp>
#include <pagedkv/core/ids.hpp>
#include <pagedkv/core/result.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>

// The verbs that hide published blocks from look-ups: of a sequence that gives way, of tokens, of a salt.

namespace pagedkv::detail {

template <class State>
[[nodiscard]] bool has_state(const State&) noexcept {
  return false;
}
template <layered State>
[[nodiscard]] bool has_state(const State& state) noexcept {
  return state.group_with_state() != state.num_groups();
}

/// Counts tokens that a launch of the newest step, if that is open, may still have to write as not computed: all of a
/// sequence that has started in that step, since it may share what another writes; full blocks as noted; and, since
/// commits inside a block are not noted, all behind the full ones. Those stay with a state where no full block was
/// noted, because the state is of them, too.
template <class State>
void discount_unlaunched(const State& state, sequence_record& s) noexcept {
  const auto size = state.tokens_per_node();
  auto num_full = static_cast<std::size_t>(s.num_computed_tokens) / size;
  const auto newest = state.pool.newest_open_step();
  if (newest == step_id{}) {
    return;
  }
  if (s.first_step == newest) {
    num_full = 0;
  } else if (is_unlaunched(state, s)) {
    num_full = std::min(num_full, s.first_unlaunched);
  } else if (has_state(state)) {
    return;
  }
  s.num_computed_tokens = static_cast<std::int64_t>(num_full * size);
}

/// Why a sequence must not give way now, if others may need its launch. Leases are counted first: each ends, or is a
/// reference before it ends.
template <class State>
[[nodiscard]] std::optional<error> refusal_to_withdraw(const State& state, const auto& s) noexcept {
  const auto num_leased = num_unlaunched_leased(state, s);
  if (const auto num_shared = num_unlaunched_shared(state, s); num_shared != 0) {
    return error{error_code::in_use, "number of blocks that others share ahead of their launch", num_shared, 0};
  }
  if (num_leased != 0) {
    return error{error_code::sequence_busy, "number of blocks that look-ups read ahead of their launch", num_leased, 0};
  }
  return std::nullopt;
}

/// Hides what a sequence has published ahead of a launch, unless others may need the launch; returns how many
/// blocks. From then on, others share none of it.
template <class State>
[[nodiscard]] result<std::int64_t> withdraw(State& state, sequence_id id) noexcept {
  return visit_sequence(state, id, [&](auto& s) -> result<std::int64_t> {
    const auto guard = state.guard_nodes();
    auto refusal = refusal_to_withdraw(state, s);
    auto num_hidden = std::int64_t{0};
    if (!refusal) {
      num_hidden = withdraw_unlaunched(state, s);
      const bool before = std::exchange(s.is_withdrawn, true);
      refusal = refusal_to_withdraw(state, s);  // another thread's hit may have been faster
      s.is_withdrawn = !refusal || before;
    }
    if (refusal) {
      return *refusal;
    }
    s.options.publish = false;
    discount_unlaunched(state, s);
    return num_hidden;
  });
}

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
  release_block(state, block, 0, release_as_before(state.time()), 0);
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
