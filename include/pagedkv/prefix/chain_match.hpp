#pragma once

#include <pagedkv/core/token_run.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace pagedkv {

namespace detail {

/// A run of nothing but tokens: the compiler then leaves out every question about keys and known hashes.
struct plain_run {
  std::span<const token> tokens;

  [[nodiscard]] block_contents block(std::size_t index, std::size_t block_size) const noexcept {
    return tokens.subspan(index * block_size, block_size);
  }
};

/// See `match_chain`.
template <class Index, class Run, class Leases, class Found>
std::size_t follow_chain(const Index& index, typename Index::link_type before, const Run& run, std::size_t block_size,
                         std::size_t max_blocks, Leases& leases, Found& found) noexcept {
  constexpr auto max_group = std::size_t{16};
  constexpr auto look_ahead = std::size_t{1024};
  const auto group = std::clamp(look_ahead / block_size, std::size_t{1}, max_group);
  auto hashes = std::array<std::uint64_t, max_group>{};
  auto candidates = std::array<typename Index::node_type, max_group>{};
  auto last_hash = before.hash;
  const auto hash_at = [&](std::size_t at) {
    if constexpr (requires { run.hashes; }) {
      if (at < run.hashes.size()) {
        return run.hashes[at];
      }
    }
    return Index::hash(last_hash, run.block(at, block_size));
  };
  for (auto first = std::size_t{0}; first < max_blocks; first += group) {
    const auto size = std::min(group, max_blocks - first);
    for (std::size_t i = 0; i < size; ++i) {
      last_hash = hashes[i] = hash_at(first + i);
      index.prefetch_bucket(last_hash);
    }
    for (std::size_t i = 0; i < size; ++i) {
      candidates[i] = index.prefetch_node(hashes[i]);
    }
    for (std::size_t i = 0; i < size; ++i) {
      if (candidates[i] == Index::none) {
        return first + i;
      }
      const auto node = index.find_near(candidates[i], before, hashes[i], run.block(first + i, block_size), leases);
      if (node == Index::none) {
        return first + i;
      }
      before = index.link(node);
      found(node);
    }
  }
  return max_blocks;
}

}  // namespace detail

/// Follows a chain of published nodes as long as tokens and keys agree, for at most `max_blocks` full blocks. Calls
/// `found(id)` on each, under a lease of `leases`, and returns their number. Hashes that the run has are not checked: a
/// wrong one loses a hit.
///
/// Cost: for each node found, a hash of its tokens, a bucket of the table, and a comparison of its tokens and keys.
/// Hashes do not depend on the nodes found, so they are computed ahead of the comparisons, and the cache lines that
/// these will read are prefetched. After a miss, at most `look_ahead` tokens, or one block, were hashed in vain.
///
/// `found` gets each node under a lease, which it ends or turns into a reference. The search itself keeps no lease and
/// locks nothing.
template <class Index, class Leases, class Found>
std::size_t match_chain(const Index& index, typename Index::link_type before, const token_run& run,
                        std::size_t block_size, std::size_t max_blocks, Leases&& leases, Found&& found) noexcept {
  return run.tokens_only()
             ? detail::follow_chain(index, before, detail::plain_run{run.tokens}, block_size, max_blocks, leases, found)
             : detail::follow_chain(index, before, run, block_size, max_blocks, leases, found);
}

}  // namespace pagedkv
