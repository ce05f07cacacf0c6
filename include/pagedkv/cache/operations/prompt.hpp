#pragma once

#include <pagedkv/cache/cache_state.hpp>
#include <pagedkv/detail/memory.hpp>

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

// How creation divides a prompt, and what a sequence keeps of it beside its tokens.

namespace pagedkv::detail {

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
