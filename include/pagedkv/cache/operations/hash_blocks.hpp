#pragma once

#include <pagedkv/core/token_run.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace pagedkv::detail {

/// Chained hashes of the full blocks of a run, as far as there is room for them; returns how many.
template <class Index>
[[nodiscard]] std::size_t hash_blocks(const Index& index, const token_run& run, salt salt, std::size_t block_size,
                                      std::span<std::uint64_t> hashes) noexcept {
  const auto count = std::min(run.tokens.size() / block_size, hashes.size());
  auto last_hash = index.root(salt).hash;
  for (std::size_t i = 0; i < count; ++i) {
    last_hash = hashes[i] = Index::hash(last_hash, run.block(i, block_size));
  }
  return count;
}

}  // namespace pagedkv::detail
