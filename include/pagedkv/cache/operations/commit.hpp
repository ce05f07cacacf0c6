#pragma once

#include <pagedkv/cache/operations/leases.hpp>
#include <pagedkv/cache/operations/unlaunched.hpp>
#include <pagedkv/cache/record_map.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>

// Commits: which blocks enter the prefix index, and in which order.

namespace pagedkv::detail {

/// Publishes the next block of a sequence, whose chained hash this is, unless it is published already. `newest`: the
/// block before it has no published successor.
template <class State>
void publish_next(State& state, sequence& s, std::uint64_t hash, bool& newest) noexcept {
  const auto block = s.blocks[s.num_published_blocks];
  if (state.pool.state(block).published()) {
    newest = false;
  } else {
    // Before another thread can find the block, and before it can be evicted.
    const auto describe = [&] {
      const auto contents = state.index.contents(block);
      return cache_event{.block = block,
                         .origin = s.tail.node,
                         .hash = hash,
                         .parent_hash = s.tail.hash,
                         .tokens = contents.tokens,
                         .keys = contents.keys,
                         .salt = s.options.salt};
    };
    report<event_kind::stored>(state.events, describe, s.tail.node);
    const auto leases = state.pool.leases();
    auto twin = no_block;
    if (newest) {
      state.index.publish_first(block, s.tail, hash);
    } else {
      twin = state.index.publish(block, s.tail, hash, leases);
    }
    newest = twin == no_block;
    state.pool.publish(block);
    if (twin != no_block) {
      state.pool.note_twin(block);
      state.pool.note_twin(twin);
      if (State::locking_type::family::concurrent && state.index.was_withdrawn(twin)) {
        withdraw(state, block);  // an invalidation of these contents has overtaken this commit
      }
      leases.end(twin);
    }
  }
  s.tail = state.index.link(block);
  ++s.num_published_blocks;
}

/// Hashes run ahead, and the cache lines that publishing will touch are fetched meanwhile.
template <class State>
void publish_up_to(State& state, sequence& s, std::size_t num_blocks) noexcept {
  std::array<std::uint64_t, 16> hashes;  // zeroing it would cost more than a block's hash
  auto newest = false;
  while (s.num_published_blocks < num_blocks) {
    const auto first = s.num_published_blocks;
    const auto count = std::min(hashes.size(), num_blocks - first);
    auto last_hash = s.tail.hash;
    for (std::size_t i = 0; i < count; ++i) {
      const auto block = s.blocks[first + i];
      last_hash = hashes[i] = first + i < s.num_hashed_blocks
                                  ? state.index.link(block).hash
                                  : state.index.hash(last_hash, state.index.contents(block));
      state.index.prefetch_publication(block, last_hash);
    }
    for (std::size_t i = 0; i < count; ++i) {
      publish_next(state, s, hashes[i], newest);
    }
  }
}

/// Gives the blocks that are about to be published their keys: all or nothing.
template <class State>
[[nodiscard]] result<void> assign_keys(State& state, const sequence& s, std::size_t num_blocks) noexcept {
  const auto size = static_cast<std::int64_t>(state.block_size());
  const auto first = static_cast<std::int64_t>(s.num_published_blocks) * size;
  auto rest = keys_between(s.keys, first, static_cast<std::int64_t>(num_blocks) * size);
  for (auto assigned = rest.first(0); !rest.empty(); rest = rest.subspan(assigned.size())) {
    const auto index = rest.front().position / size;
    assigned = keys_between(rest, index * size, (index + 1) * size);
    const auto block = s.blocks[static_cast<std::size_t>(index)];
    if (!state.pool.state(block).published() && !state.index.assign_keys(block, assigned)) {
      for (auto i = s.num_published_blocks; i < num_blocks; ++i) {
        if (!state.pool.state(s.blocks[i]).published()) {
          state.index.clear_keys(s.blocks[i]);
        }
      }
      return error{error_code::out_of_memory, "number of keys", static_cast<std::int64_t>(rest.size())};
    }
  }
  return {};
}

/// Whether a commit of so many tokens is valid and surely changes no more than the hot part.
template <class State>
[[nodiscard]] bool only_notes(const State& state, const sequence_record::hot_part& hot,
                              std::int64_t num_tokens) noexcept {
  const auto next = static_cast<std::int64_t>((hot.num_published + 1) * state.tokens_per_node());
  return state.commits_only_publish() && hot.num_computed_tokens <= num_tokens && num_tokens <= hot.num_tokens &&
         num_tokens < next;
}

/// Publishes the full blocks among the first `num_tokens`, whose K/V the caller declares written; perhaps `ahead` of a
/// launch.
template <class State>
[[nodiscard]] result<void> commit(State& state, sequence& s, std::int64_t num_tokens, bool ahead = false) noexcept {
  if (num_tokens > s.num_tokens) {
    return error{error_code::invalid_argument, "number of computed tokens, more than the sequence has,", num_tokens,
                 s.num_tokens};
  }
  if (num_tokens < s.num_computed_tokens) {
    return error{error_code::invalid_argument, "number of computed tokens, fewer than committed,", num_tokens,
                 s.num_computed_tokens};
  }
  const auto num_blocks = static_cast<std::size_t>(num_tokens) / state.block_size();
  const bool publishes = s.options.publish && num_blocks > s.num_published_blocks;
  if (publishes) {
    if (auto assigned = assign_keys(state, s, num_blocks); !assigned) {
      return assigned;
    }
  }
  if (ahead && num_blocks > static_cast<std::size_t>(s.num_computed_tokens) / state.block_size()) {
    note_unlaunched(state, s);
  }
  if (publishes) {
    publish_up_to(state, s, num_blocks);
  }
  s.num_computed_tokens = num_tokens;
  s.last_access = state.time();
  return {};
}

/// Commits so many tokens if that publishes nothing. False, and nothing is changed, if a commit needs more.
template <class State>
[[nodiscard]] [[gnu::always_inline]] inline bool commit_inside(State& state, sequence_id id,
                                                               std::int64_t num_tokens) noexcept {
  return step_inside(state, id, [&](sequence_record::hot_part& hot) {
    if (!only_notes(state, hot, num_tokens)) {
      return false;
    }
    hot.num_computed_tokens = num_tokens;
    hot.last_access = state.time();
    return true;
  });
}

}  // namespace pagedkv::detail
