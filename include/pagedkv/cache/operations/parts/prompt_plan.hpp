#pragma once

#include <pagedkv/sequence/sequence.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>

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

}  // namespace pagedkv::detail
