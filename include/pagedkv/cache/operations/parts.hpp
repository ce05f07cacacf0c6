#pragma once

#include <pagedkv/cache/cache_state.hpp>
#include <pagedkv/core/result.hpp>
#include <pagedkv/detail/memory.hpp>
#include <pagedkv/prefix/chain_match.hpp>
#include <pagedkv/sequence/sequence.hpp>

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <new>
#include <optional>
#include <span>
#include <stdexcept>
#include <vector>

namespace pagedkv::detail {

[[nodiscard]] inline error no_such_group(std::size_t group, std::size_t num_groups) noexcept {
  return bad_index("index of a group", static_cast<std::int64_t>(group), static_cast<std::int64_t>(num_groups));
}

/// Errors: `invalid_argument` for a group that there is not.
template <class State>
[[nodiscard]] result<void> check_group(const State&, std::size_t group) noexcept {
  return group == 0 ? result<void>{} : result<void>{no_such_group(group, 1)};
}

/// Whether `size` tokens from `first_token` on lie in [least, end). Errors: `invalid_argument`, under these names.
[[nodiscard]] inline result<void> check_range(std::int64_t first_token, std::size_t size, std::int64_t least,
                                              std::int64_t end, const char* first_name, const char* end_name) noexcept {
  if (first_token < least) {
    return error{error_code::invalid_argument, first_name, first_token, least};
  }
  if (first_token > end) {
    return error{error_code::invalid_argument, first_name, first_token, end};
  }
  if (static_cast<std::int64_t>(size) > end - first_token) {
    return error{error_code::invalid_argument, end_name, first_token + static_cast<std::int64_t>(size), end};
  }
  return {};
}

/// Ends that no time can tell are as good as never.
[[nodiscard]] constexpr timestamp retention_end(timestamp now, std::int64_t retention) noexcept {
  auto end = std::int64_t{0};
  return __builtin_add_overflow(static_cast<std::int64_t>(now), retention, &end) || retention == 0
             ? timestamp{0}
             : static_cast<timestamp>(end);
}

/// The facts about one sequence's blocks, or nodes, for the eviction policy.
[[nodiscard]] inline block_release release_of(const sequence_record& from, timestamp now,
                                              const release_hint& hint) noexcept {
  auto how = block_release{};
  how.num_chain_blocks = static_cast<std::uint32_t>(from.hot.num_published);
  how.num_prompt_tokens = static_cast<std::uint32_t>(from.num_prompt_tokens);
  const auto num_output = std::max(from.num_tokens - from.num_prompt_tokens, std::int64_t{0});
  how.num_output_tokens = static_cast<std::uint32_t>(num_output);
  how.priority = from.options.priority;
  how.ended = hint.session_ended;
  how.expected_return = hint.expected_return != 0 ? hint.expected_return : from.options.expected_return;
  how.retain_until = retention_end(now, from.options.retention);
  return how;
}
[[nodiscard]] inline block_release release_of(const sequence& from, timestamp now, const release_hint& hint,
                                              std::size_t block_size) noexcept {
  auto how = release_of(from, now, hint);
  how.num_cached_blocks = static_cast<std::uint32_t>(static_cast<std::size_t>(from.num_cached_tokens) / block_size);
  if (how.num_cached_blocks > from.blocks.num_dropped() && how.num_cached_blocks <= from.blocks.size()) {
    how.last_cached = from.blocks[how.num_cached_blocks - 1];
  }
  how.released_at = now;
  return how;
}

/// Whether ranges are given, also wrong ones.
[[nodiscard]] inline bool has_ranges(const sequence_options& options) noexcept {
  auto ends = std::int64_t{0};
  for (const auto& range : options.ranges) {
    ends |= range.first | range.last;
  }
  return ends != 0 || options.answer.has_value();
}

/// The priority and the retention of the ranges that the block at `index` has tokens of.
template <class Sequence>
[[nodiscard]] block_retention retention_of(const Sequence& from, std::size_t index, std::size_t block_size) noexcept {
  const auto start = static_cast<std::int64_t>(index * block_size);
  const auto end = start + static_cast<std::int64_t>(block_size);
  const auto longer = [](std::int64_t a, std::int64_t b) { return b != 0 && (a == 0 || a > b); };
  auto best = std::optional<block_retention>{};
  const auto consider = [&](std::int64_t first, std::int64_t last, const block_retention& given) {
    if (first < last && first < end && start < last &&
        (!best || given.priority > best->priority ||
         (given.priority == best->priority && longer(given.duration, best->duration)))) {
      best = given;
    }
  };
  for (const auto& [first, last, given] : from.options.ranges) {
    consider(first, last, given);
  }
  if (from.options.answer) {
    consider(from.num_prompt_tokens, sequence_options::no_limit, *from.options.answer);
  }
  return best.value_or(block_retention{from.options.priority, from.options.retention});
}

/// Gives the block at `index` what `retention_of` tells. Inlined: the address of `how` is taken nowhere then, so that
/// facts which the eviction policy does not read are not computed.
template <class Sequence>
[[gnu::always_inline]] inline void apply_ranges(block_release& how, const Sequence& from, std::size_t index,
                                                std::size_t block_size, timestamp now) noexcept {
  const auto given = retention_of(from, index, block_size);
  how.priority = given.priority;
  how.retain_until = retention_end(now, given.duration);
}

/// Out of line, so that the loops that release blocks stay small.
template <class State>
[[gnu::cold]] [[gnu::noinline]] void free_withdrawn(State& state, block_id block) noexcept {
  auto chains = state.chains();
  state.pool.free_withdrawn(block, chains);
}

/// Gives back one reference to the block at `index` of a chain. `fence`: see `fence_of`. Inlined, so that facts which
/// the eviction policy does not read are not computed.
template <class State>
[[gnu::always_inline]] inline void release_block(State& state, block_id block, std::size_t index, block_release how,
                                                 std::uint32_t fence) noexcept {
  how.hash = state.index.link(block).hash;
  how.parent = state.index.parent(block);
  how.depth = static_cast<std::uint32_t>(index);
  if (state.pool.release(block, how, fence)) [[unlikely]] {
    free_withdrawn(state, block);
  }
}

/// Gives back one reference to each of the entries [first, last) of a table that these steps use, deepest first.
template <class State>
void release_blocks(State& state, const block_table& blocks, std::size_t first, std::size_t last,
                    const block_release& how, const step_set& steps) noexcept {
  if constexpr (State::locking_type::family::concurrent) {
    state.note_peak();  // allocations did not, since threads share the counts; but only releases lower them
  }
  const auto fence = state.pool.fence_of(steps);
  for (auto i = last; i > first; --i) {
    release_block(state, blocks[i - 1], i - 1, how, fence);
  }
}

/// Releases the blocks of a sequence; `how`: see `release_of`.
template <class State>
void release_blocks(State& state, const sequence& from, std::size_t first, std::size_t last,
                    const block_release& how) noexcept {
  if (!from.has_ranges) [[likely]] {
    return release_blocks(state, from.blocks, first, last, how, from.steps);
  }
  auto with_range = how;
  for (auto i = last; i > first; --i) {
    apply_ranges(with_range, from, i - 1, state.block_size(), state.time());
    release_blocks(state, from.blocks, i - 1, i, with_range, from.steps);
  }
}

// A look-up calls one of these on each block that it finds. They have names, and depend on no more than the locking
// policy, so that the search is compiled once for all verbs and caches.

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

/// See `match_chain`.
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
      release_block(state, blocks[i - 1], i - 1, block_release{}, 0);
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

/// Makes references of the leases on the first `count` blocks of a table that `lease_prefix` filled.
template <class State>
void reference_leased([[maybe_unused]] State& state, [[maybe_unused]] const block_table& blocks,
                      [[maybe_unused]] std::size_t count) noexcept {
  if constexpr (!references_at_once<State>) {
    reference_found(state, blocks.all().first(count));
  }
}

/// Appends the longest published prefix, `max_blocks` at most, to an empty table with room for it, each block under a
/// lease until `reference_leased` or `end_leases`. The table is going to be filled up to `total(num_hits)` blocks: where
/// that is bound to fail, nothing is changed.
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

/// How creation divides a prompt: what it may take from the cache, and the first chunk behind that.
struct prompt_plan {
  std::int64_t num_tokens = 0;
  std::int64_t block_size = 1;
  std::int64_t max_cached_tokens = sequence_options::no_limit;
  std::int64_t first_chunk = sequence_options::no_limit;

  /// Most blocks that may come from the cache: at least the last token is left to compute.
  [[nodiscard]] std::size_t max_hits() const noexcept {
    const auto most = std::min(std::max(num_tokens, std::int64_t{1}) - 1, max_cached_tokens);
    return static_cast<std::size_t>(most / block_size);
  }
  /// Length of the sequence after creation with so many hits.
  [[nodiscard]] std::int64_t length(std::size_t num_hits) const noexcept {
    const auto num_cached = static_cast<std::int64_t>(num_hits) * block_size;
    return num_cached + std::min(num_tokens - num_cached, first_chunk);
  }
};

[[nodiscard]] inline result<void> check_slots_ahead(std::int64_t num_ahead) noexcept {
  constexpr auto most = std::int64_t{std::numeric_limits<std::int32_t>::max()};
  if (num_ahead < 0 || num_ahead > most) {
    return error{error_code::invalid_argument, "number of slots ahead", num_ahead, num_ahead < 0 ? 0 : most};
  }
  return {};
}

/// Errors: `invalid_argument` for keys out of order, before `least`, or not before `end`; for any if these are equal.
[[nodiscard]] inline result<void> check_keys_within(std::span<const prefix_key> keys, std::int64_t least,
                                                    std::int64_t end) noexcept {
  if (!keys.empty() && least == end) {  // no position would do
    return error{error_code::invalid_argument, "number of keys without tokens", std::ssize(keys), 0};
  }
  for (const auto& key : keys) {
    if (key.position < least || key.position >= end) {
      return error{error_code::invalid_argument, "position of a key", key.position,
                   key.position < least ? least : end - 1};
    }
    least = key.position;
  }
  return {};
}

/// Keys of a sequence come behind its end and its last key. Errors: `invalid_argument`.
template <class Sequence>
[[nodiscard]] result<void> check_keys(std::span<const prefix_key> keys, const Sequence& s, std::int64_t end) noexcept {
  const auto least = s.keys.empty() ? s.num_tokens : std::max(s.num_tokens, s.keys.back().position);
  return check_keys_within(keys, least, end);
}

/// Room for so many entries, so that adding them does not allocate. False when memory is exhausted.
template <class Entry>
[[nodiscard]] bool reserve_entries(std::vector<Entry>& entries, std::size_t size) noexcept {
  const auto grow = [&] {
    entries.reserve(std::max(size, 2 * entries.capacity()));
    return true;
  };
  return size <= entries.capacity() || with_memory(grow, false);
}
template <class Sequence>
[[nodiscard]] bool reserve_keys(Sequence& s, std::span<const prefix_key> keys) noexcept {
  return reserve_entries(s.keys, s.keys.size() + keys.size());
}

/// Adds keys, with room for them.
template <class Sequence>
void add_keys(Sequence& s, std::span<const prefix_key> keys) noexcept {
  for (const auto& key : keys) {
    s.keys.push_back(key);
  }
}

/// Keeps the hashes that a caller told of blocks which are full now, until they are published.
template <class State>
void note_hashes(State& state, sequence& s, std::span<const std::uint64_t> hashes) noexcept {
  if (hashes.empty() || !s.options.publish) {
    return;
  }
  const auto num_full = static_cast<std::size_t>(s.num_tokens) / state.block_size();
  auto i = std::max(s.num_hashed_blocks, s.num_published_blocks);
  for (; i < std::min(num_full, hashes.size()); ++i) {
    state.index.note_hash(s.blocks[i], hashes[i]);
  }
  s.num_hashed_blocks = i;
}

}  // namespace pagedkv::detail
