#pragma once

#include <pagedkv/core/token_run.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace pagedkv::detail {

/// Chained hashes of the full nodes of a run, as far as there is room for them; returns how many.
template <class State>
[[nodiscard]] std::size_t hash_blocks(const State& state, const token_run& run, salt salt,
                                      std::span<std::uint64_t> hashes) noexcept {
  const auto& index = state.node_index();
  const auto size = state.tokens_per_node();
  const auto count = std::min(run.tokens.size() / size, hashes.size());
  auto last_hash = index.root(salt).hash;
  for (std::size_t i = 0; i < count; ++i) {
    last_hash = hashes[i] = index.hash(last_hash, run.block(i, size));
  }
  return count;
}

}  // namespace pagedkv::detail
