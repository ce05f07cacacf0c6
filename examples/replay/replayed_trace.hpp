#pragma once

#include "../support/prefix_trace.hpp"
#include "../support/trace_request.hpp"
#include "contents.hpp"

#include <pagedkv/router/keys.hpp>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace pagedkv::replay {

/// The tokens of a prompt of so many blocks: whole blocks, and one token of the request's own.
[[nodiscard]] constexpr std::size_t num_tokens_of_prompt(std::size_t num_blocks, std::int32_t block_size) noexcept {
  return num_blocks * static_cast<std::size_t>(block_size) + 1;
}

/// The requests as a cache with this `cache_config::hash_seed` sees them in a replay: the length of their prompts and
/// the hashes of their blocks are those of the tokens that the replay sends.
[[nodiscard]] inline support::prefix_trace replayed_trace(std::vector<support::trace_request> requests,
                                                          std::int32_t block_size, std::uint64_t hash_seed) {
  for (auto& request : requests) {
    request.num_prompt_tokens = static_cast<std::uint32_t>(num_tokens_of_prompt(request.blocks.size(), block_size));
  }
  const auto keys = cache_keys{hash_seed};
  auto tokens = std::vector<token>(static_cast<std::size_t>(block_size));
  return support::prefix_trace{requests, [&](const std::uint64_t* before, std::uint64_t id) {
                                 fill_tokens(id, tokens);
                                 return before == nullptr ? keys.first(tokens) : keys.next(*before, tokens);
                               }};
}

}  // namespace pagedkv::replay
