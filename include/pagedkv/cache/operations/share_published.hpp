#pragma once

#include <pagedkv/cache/operations/leases.hpp>
#include <pagedkv/cache/operations/prompt.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>

// How a sequence that waited for a tier shares what others published meanwhile.

namespace pagedkv::detail {

/// A published block with the contents of the sequence's block at `index`, which continues its published ones, with a
/// reference; or `no_block`.
template <class State>
[[nodiscard]] block_id reference_equal(State& state, const sequence& s, std::size_t index) noexcept {
  const auto size = static_cast<std::int64_t>(state.block_size());
  const auto first = static_cast<std::int64_t>(index) * size;
  const auto own = s.blocks[index];
  const auto contents = block_contents{state.index.tokens(own), keys_between(s.keys, first, first + size)};
  const auto hash =
      index < s.num_hashed_blocks ? state.index.link(own).hash : state.index.hash(s.tail.hash, contents);
  const auto found = state.index.find(s.tail, hash, contents, state.pool.leases());
  if (found != no_block) {
    reference_found(state, found);
  }
  return found;
}

/// Replaces blocks of a sequence behind its published ones by published blocks of equal contents, as far as there are
/// any without a gap, `max_blocks` at most: a sequence that waited with its prompt uncomputed takes what others
/// published meanwhile, and nothing may use its own blocks. They count as hits, and a hit on the blocks that are shared
/// now is reported. They are computed then, and the sequence's own ones are released. The last token is left to
/// compute. Returns how many.
template <class State>
[[nodiscard]] std::size_t share_published(State& state, sequence& s, sequence_id id, std::size_t max_blocks) noexcept {
  const auto size = state.block_size();
  const auto first = s.num_published_blocks;
  if (static_cast<std::size_t>(s.num_computed_tokens) != first * size) {
    return 0;
  }
  const auto most = static_cast<std::size_t>(std::max(s.num_tokens, std::int64_t{1}) - 1) / size;
  const auto how = release_of(s, state.time(), {}, size);
  auto last = first;
  for (; last < most && last - first < max_blocks; ++last) {
    const auto shared = reference_equal(state, s, last);
    if (shared == no_block) {
      break;
    }
    release_blocks(state, s, last, last + 1, how);
    s.blocks.replace(last, shared);
    s.tail = state.index.link(shared);
  }
  if (last != first) {
    s.num_published_blocks = s.num_branch_blocks = last;
    s.num_computed_tokens = s.num_cached_tokens = static_cast<std::int64_t>(last * size);
    s.last_access = state.time();
    count<&cache_statistics::hit_blocks>(state.counts, static_cast<std::int64_t>(last - first));
    count<&cache_statistics::hit_tokens>(state.counts, static_cast<std::int64_t>((last - first) * size));
    report<event_kind::hit>(state.events, [&] {
      return cache_event{.block = s.tail.node,
                         .hash = s.tail.hash,
                         .salt = s.options.salt,
                         .sequence = id,
                         .num_tokens = static_cast<std::int64_t>((last - first) * size),
                         .num_blocks = static_cast<std::int64_t>(last - first)};
    });
  }
  return last - first;
}

}  // namespace pagedkv::detail
