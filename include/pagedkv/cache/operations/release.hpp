#pragma once

#include <pagedkv/cache/operations/append.hpp>
#include <pagedkv/cache/operations/commit.hpp>
#include <pagedkv/cache/operations/parts.hpp>
#include <pagedkv/cache/outcomes.hpp>
#include <pagedkv/cache/record_map.hpp>
#include <pagedkv/core/config.hpp>
#include <pagedkv/core/ids.hpp>
#include <pagedkv/core/result.hpp>
#include <pagedkv/detail/function_ref.hpp>
#include <pagedkv/detail/memory.hpp>
#include <pagedkv/metrics/counters.hpp>
#include <pagedkv/metrics/statistics.hpp>
#include <pagedkv/policy/events/concept.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

namespace pagedkv::detail {

/// Gives back every block of a sequence. Its branch and its trunk may have ended each for itself.
template <class State>
void release(State& state, sequence& from, const release_hint& hint) noexcept {
  auto how = release_of(from, state.time(), hint, state.block_size());
  const auto first = from.blocks.num_dropped();
  const auto trunk = std::clamp(from.num_branch_blocks, first, from.blocks.size());
  how.ended = hint.session_ended || hint.branch_complete;
  release_blocks(state, from, trunk, from.blocks.size(), how);
  how.ended = hint.session_ended;
  release_blocks(state, from, first, trunk, how);
  from.blocks.clear();
  from.keys.clear();
}

/// Ends a sequence.
template <class State>
[[nodiscard]] result<void> release(State& state, sequence_id id, const release_hint& hint) noexcept {
  return end_record(state.sequences, static_cast<std::uint64_t>(id), [&](sequence& s) {
    report<event_kind::released>(state.events, [&] { return cache_event{.sequence = id, .num_tokens = s.num_tokens}; });
    release(state, s, hint);
  });
}

/// Keeps the first `num_tokens`; whole blocks past the end are released, reserved ones included. A prompt that is cut
/// ends there. Calls `around(hide)`, which calls `hide()`, if the sequence may have published ahead of a launch: `hide`
/// hides those blocks past the end, and returns how many.
/// Errors: `invalid_argument` outside [start of the first block still held, length].
template <class State, class Around>
[[nodiscard]] result<void> truncate(State& state, sequence& s, std::int64_t num_tokens, Around&& around) noexcept {
  const auto dropped = s.blocks.num_dropped();
  const auto start = static_cast<std::int64_t>(dropped * state.block_size());
  if (num_tokens < start) {
    return error{error_code::invalid_argument, "number of tokens to keep, before those held,", num_tokens, start};
  }
  if (num_tokens > s.num_tokens) {
    return error{error_code::invalid_argument, "number of tokens to keep", num_tokens, s.num_tokens};
  }
  const auto num_full = static_cast<std::size_t>(num_tokens) / state.block_size();
  if (is_unlaunched(state, s)) {
    around([&] { return withdraw_unlaunched(state, s, num_full); });
  }
  const auto num_kept = state.blocks_for(num_tokens);
  if (num_kept < s.blocks.size()) {
    release_blocks(state, s, num_kept, s.blocks.size(), release_of(s, state.time(), {}, state.block_size()));
    s.blocks.shrink(num_kept);
  }
  if (static_cast<std::size_t>(num_tokens) % state.block_size() != 0 &&
      num_tokens < std::max(s.num_tokens, s.num_reserved)) {
    s.reuses_slots = true;
    if (const auto fence = state.pool.fence_of(s.steps); fence != 0) {
      state.pool.fence(s.blocks.back(), fence);
    }
  }
  if (num_tokens < s.num_tokens) {
    s.num_prompt_tokens = std::min(s.num_prompt_tokens, num_tokens);
    s.keys.resize(keys_between(s.keys, 0, num_tokens).size());
  }
  s.num_reserved = 0;
  s.num_tokens = num_tokens;
  s.num_computed_tokens = std::min(s.num_computed_tokens, num_tokens);
  s.num_cached_tokens = std::min(s.num_cached_tokens, num_tokens);
  s.num_hashed_blocks = std::min(s.num_hashed_blocks, num_full);
  if (num_full < s.num_published_blocks) {
    s.num_published_blocks = num_full;
    s.tail = state.link_before(s, num_full);
  }
  find_room(state, s);
  return {};
}

template <class State>
[[nodiscard]] result<void> truncate(State& state, sequence_id id, std::int64_t num_tokens) noexcept {
  return visit_sequence(state, id, [&](sequence& s) {
    return truncate(state, s, num_tokens, [](auto&& hide) { hide(); });
  });
}

/// Releases the blocks wholly before token `num_tokens`.
/// Errors: `invalid_argument` beyond the computed tokens: what is not computed is not published and cannot be
/// continued.
template <class State>
[[nodiscard]] result<void> drop_before(State& state, sequence& s, std::int64_t num_tokens) noexcept {
  if (num_tokens < 0 || num_tokens > s.num_computed_tokens) {
    return error{error_code::invalid_argument, "start of the window, outside of the committed tokens,", num_tokens,
                 num_tokens < 0 ? 0 : s.num_computed_tokens};
  }
  const auto last = static_cast<std::size_t>(num_tokens) / state.block_size();
  const auto first = s.blocks.num_dropped();
  if (last > first) {
    s.window_start = last <= s.num_published_blocks ? state.index.link(s.blocks[last - 1]) : s.tail;
    release_blocks(state, s, first, last, release_of(s, state.time(), {}, state.block_size()));
    s.blocks.drop_before(last);
  }
  return {};
}

template <class State>
[[nodiscard]] result<void> drop_before(State& state, sequence_id id, std::int64_t num_tokens) noexcept {
  return visit_sequence(state, id, [&](sequence& s) { return drop_before(state, s, num_tokens); });
}

/// One reference to a block.
struct block_reference {
  block_id block{};
  std::size_t order = 0;  // of the sequence, among those asked for
  bool fenced = false;    // a step that uses the sequence is open

  friend bool operator<(const block_reference& a, const block_reference& b) noexcept {
    return a.block != b.block ? a.block < b.block : a.order < b.order;
  }
};

/// Adds the references of a sequence; nothing when it is gone or busy, or when others need its launch: another sequence,
/// or the beneficiary, which would share these sorted blocks. Takes memory only outside of the sequence, so that other
/// threads find it busy for no longer than a copy takes.
template <class State>
void add_references(const State& state, sequence_id id, std::size_t order, std::span<const block_id> shared,
                    std::vector<block_reference>& references) {
  auto num_missing = std::size_t{0};
  do {
    references.reserve(std::max(references.size() + num_missing, num_missing == 0 ? 0 : 2 * references.capacity()));
    num_missing = 0;
    const auto copy = [&](const auto& s) -> result<void> {
      if (const auto guard = state.guard_nodes(); num_unlaunched_shared(state, s, shared) != 0) {
        return {};
      }
      auto num_held = std::size_t{0};
      s.for_each_run([&](std::span<const block_id> held) { num_held += held.size(); });
      if (num_held > references.capacity() - references.size()) {
        num_missing = num_held;
        return {};
      }
      const bool fenced = state.pool.fence_of(s.steps) != 0;
      s.for_each_run([&](std::span<const block_id> held) {
        for (const auto block : held) {
          references.push_back({block, order, fenced});
        }
      });
      return {};
    };
    static_cast<void>(visit_sequence(state, id, copy));
  } while (num_missing != 0);
}

/// A block that releasing sequences gains: its references, a range of `released_blocks::references`.
struct gained_block {
  std::size_t first = 0;
  std::size_t end = 0;
  std::size_t last_order = 0;  // of the sequences that hold it, the last one asked for
  bool fenced = false;         // gained only when open steps have retired
};

/// References that the release of sequences ends, by block, and the blocks that it gains.
struct released_blocks {
  std::vector<block_reference> references;
  std::vector<gained_block> gained;
};

/// The positions of the ids that no earlier one equals. May throw `std::bad_alloc`.
[[nodiscard]] inline std::vector<std::size_t> first_of_equal(std::span<const sequence_id> ids) {
  auto positions = std::vector<std::size_t>(ids.size());
  std::iota(positions.begin(), positions.end(), std::size_t{0});
  if (ids.size() > 1) {
    std::sort(positions.begin(), positions.end(), [&](std::size_t a, std::size_t b) {
      return ids[a] != ids[b] ? ids[a] < ids[b] : a < b;
    });
    const auto equal = [&](std::size_t a, std::size_t b) { return ids[a] == ids[b]; };
    positions.erase(std::unique(positions.begin(), positions.end(), equal), positions.end());
  }
  return positions;
}

/// Blocks that an append to the beneficiary, if there is one, would copy only because others hold them, too:
/// `visit_ends(sequence, visit)` calls `visit(block)` on each. May throw `std::bad_alloc`.
template <class State, class VisitEnds>
[[nodiscard]] std::vector<block_id> shared_ends(const State& state, sequence_id beneficiary, VisitEnds&& visit_ends) {
  auto blocks = std::vector<block_id>{};
  if (beneficiary != sequence_id{}) {
    blocks.reserve(group_list::max_size);
    static_cast<void>(visit_sequence(state, beneficiary, [&](const auto& s) -> result<void> {
      const auto guard = state.guard_nodes();
      visit_ends(s, [&](block_id block) { blocks.push_back(block); });
      return {};
    }));
  }
  return blocks;
}

/// Blocks that the release of all these sequences gains, because no other sequence and no pin holds them, and they are
/// not `shared`; and those of `ends` that then only the beneficiary holds, which so needs no copy. Only references of
/// blocks with several are sorted. May throw `std::bad_alloc`.
template <class State>
[[nodiscard]] released_blocks blocks_gained(const State& state, std::span<const sequence_id> ids,
                                            std::vector<block_id> shared, std::span<const block_id> ends = {}) {
  auto released = released_blocks{};
  auto& references = released.references;
  std::sort(shared.begin(), shared.end());
  for (const auto i : first_of_equal(ids)) {
    add_references(state, ids[i], i, shared, references);
  }
  released.gained.reserve(references.size());
  const auto add_if_gained = [&](const gained_block& run) {
    const auto block = references[run.first].block;
    if (state.pool.could_be_released(block) && !std::binary_search(shared.begin(), shared.end(), block)) {
      released.gained.push_back(run);
      released.gained.back().fenced |= state.pool.fenced(block);
    }
  };
  const auto several = std::partition(references.begin(), references.end(), [&](const block_reference& reference) {
    return state.pool.state(reference.block).count() == 1;
  });
  const auto num_single = static_cast<std::size_t>(several - references.begin());
  for (std::size_t i = 0; i < num_single; ++i) {
    add_if_gained({i, i + 1, references[i].order, references[i].fenced});
  }
  std::sort(several, references.end());
  for (auto next = num_single; next < references.size();) {
    const auto block = references[next].block;
    auto run = gained_block{next, next, 0, false};
    for (; run.end < references.size() && references[run.end].block == block; ++run.end) {
      run.last_order = std::max(run.last_order, references[run.end].order);
      run.fenced |= references[run.end].fenced;
    }
    next = run.end;
    const auto num_held = std::size_t{state.pool.state(block).count()};
    if (run.end - run.first == num_held) {
      add_if_gained(run);
    } else if (run.end - run.first + 1 == num_held && std::ranges::find(ends, block) != ends.end()) {
      released.gained.push_back({run.first, run.end, run.last_order, false});
    }
  }
  return released;
}

/// How many of the sequences, from the first on, have to be released to gain so many blocks; 0 when all are not enough.
[[nodiscard]] inline std::size_t fewest_in_order(const released_blocks& released, std::size_t num_sequences,
                                                 std::int64_t num_blocks) {
  auto gains = std::vector<std::size_t>(num_sequences);  // a block is gained with the last of its references
  for (const auto& block : released.gained) {
    ++gains[block.last_order];
  }
  for (std::size_t i = 0; i < gains.size(); ++i) {
    num_blocks -= static_cast<std::int64_t>(gains[i]);
    if (num_blocks <= 0) {
      return i + 1;
    }
  }
  return 0;
}

/// Which of the first `count` sequences hold a block that releasing these gains.
[[nodiscard]] inline std::vector<std::size_t> useful_among(const released_blocks& released, std::size_t count) {
  auto useful = std::vector<std::size_t>(count);
  for (const auto& block : released.gained) {
    if (block.last_order < count) {
      for (auto i = block.first; i < block.end; ++i) {
        useful[released.references[i].order] = 1;
      }
    }
  }
  auto num_chosen = std::size_t{0};
  for (std::size_t i = 0; i < count; ++i) {
    if (useful[i] != 0) {
      useful[num_chosen++] = i;
    }
  }
  useful.resize(num_chosen);
  return useful;
}

[[nodiscard]] inline error no_memory_for_gain(std::size_t num_sequences) noexcept {
  return {error_code::out_of_memory, "number of sequences to release", static_cast<std::int64_t>(num_sequences)};
}

/// `find_shared()`: blocks that a sequence of the beneficiary's prompt would share. May throw `std::bad_alloc`.
template <class State, class FindShared>
[[nodiscard]] result<release_gain> gain_of_releasing(const State& state, std::span<const sequence_id> ids,
                                                     FindShared&& find_shared) noexcept {
  const auto add_up = [&]() -> result<release_gain> {
    auto sum = release_gain{};
    for (const auto& block : blocks_gained(state, ids, find_shared()).gained) {
      ++(block.fenced ? sum.with_steps : sum.at_once);
    }
    return sum;
  };
  return with_memory(add_up, no_memory_for_gain(ids.size()));
}

/// `visit_ends`: see `shared_ends`.
template <class State, class FindShared, class VisitEnds>
[[nodiscard]] result<std::vector<std::size_t>> fewest_to_release(const State& state, std::span<const sequence_id> ids,
                                                                 std::int64_t num_blocks, FindShared&& find_shared,
                                                                 sequence_id beneficiary,
                                                                 VisitEnds&& visit_ends) noexcept {
  const auto choose = [&]() -> result<std::vector<std::size_t>> {
    const auto released = blocks_gained(state, ids, find_shared(), shared_ends(state, beneficiary, visit_ends));
    return useful_among(released, fewest_in_order(released, ids.size(), num_blocks));
  };
  return with_memory(choose, no_memory_for_gain(ids.size()));
}

/// Evicts ahead of need, with what becomes useless; an open step may read the victims. Errors: `unknown_step`.
template <class State>
[[nodiscard]] result<std::int64_t> evict(State& state, std::span<block_id> blocks, step_id step) noexcept {
  const auto guard = state.guard_nodes();
  const auto fence = state.pool.fence_of(step);
  if (fence == 0) {
    return error{error_code::unknown_step, "step", static_cast<std::int64_t>(step)};
  }
  auto watched = state.chains();
  auto num_named = std::size_t{0};
  auto num_evicted = std::int64_t{0};
  while (num_named < blocks.size() &&
         state.pool.evict(blocks.subspan(num_named, 1), watched, state.time(), fence) != 0) {
    ++num_named;
    ++num_evicted;
    state.free_useless(fence, [&](block_id block) {
      ++num_evicted;
      if (num_named < blocks.size()) {
        blocks[num_named++] = block;
      }
    });
  }
  count<&cache_statistics::evictions>(state.counts, num_evicted);
  return static_cast<std::int64_t>(num_named);
}

/// Frees every evictable block, which is reported as one event; returns how many.
template <class State>
[[nodiscard]] result<std::int64_t> reset_prefix_cache(State& state) noexcept {
  const auto guard = state.guard_nodes();
  if (const auto num_occupied = state.pool.count_occupied(); num_occupied != 0) {
    return error{error_code::in_use, "number of blocks in use or retiring", num_occupied, 0};
  }
  auto&& chains = state.silent_chains();
  auto num_forgotten = state.pool.forget_evictable(chains);
  state.free_useless(0, [&](block_id) { ++num_forgotten; });
  report<event_kind::reset>(state.events, [&] { return cache_event{.num_blocks = num_forgotten}; });
  return num_forgotten;
}

/// References every full block of a published prefix of these tokens.
template <class State>
[[nodiscard]] result<void> pin_prefix(State& state, pinned_prefix& pinned, const token_run& run, salt salt) noexcept {
  const auto max_blocks = run.tokens.size() / state.block_size();
  if (!pinned.blocks.try_reserve(max_blocks)) {
    return error{error_code::out_of_memory, "number of tokens to pin", static_cast<std::int64_t>(run.tokens.size())};
  }
  const auto no_more = [](std::size_t num_hits) { return num_hits; };
  auto leased = lease_prefix(state, pinned.blocks, state.index.root(salt), run, max_blocks, no_more);
  reference_leased(state, pinned.blocks, pinned.blocks.size());
  state.note_peak();
  return leased;
}

template <class State>
[[nodiscard]] result<pinning> pin(State& state, const token_run& run, salt salt) noexcept {
  auto num_blocks = std::size_t{0};
  const auto made =
      make_record(state.pins, "number of pins, at most cache_config.max_sequences,", [&](pinned_prefix& p) {
        auto pinned = pin_prefix(state, p, run, salt);
        num_blocks = p.blocks.size();  // now, because `unpin_all` may end the pin as soon as it is open
        return pinned;
      });
  if (!made) {
    return made.error();
  }
  return pinning{static_cast<pin_id>(*made), static_cast<std::int64_t>(num_blocks * state.block_size())};
}

template <class State>
[[nodiscard]] result<void> unpin(State& state, std::uint64_t id) noexcept {
  return end_record(state.pins, id, [&](pinned_prefix& p) {
    release_blocks(state, p.blocks, 0, p.blocks.size(), block_release{}, step_set{});
    p.blocks.clear();
  });
}

/// Ends every pin that is open when the call comes to it, by `end(id)`; returns how many.
template <class State>
std::int64_t unpin_all(State& state, function_ref<result<void>(std::uint64_t)> end) noexcept {
  auto count = std::int64_t{0};
  state.pins.for_each([&](auto& open) {
    const auto ended = end(state.pins.id_of(open));
    count += ended.has_value() ? 1 : 0;
  });
  return count;
}

}  // namespace pagedkv::detail
