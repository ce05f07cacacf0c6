#pragma once

#include <pagedkv/cache/operations/parts/leases.hpp>

#include <cstdint>
#include <span>

namespace pagedkv::detail {

template <class State>
[[nodiscard]] std::int64_t find_prefix(State& state, std::span<const token> tokens, salt tag) noexcept {
  const auto leases = leases_of(state);
  const auto num_blocks =
      match_chain(state.index, state.index.root(tag), tokens, state.block_size(), tokens.size() / state.block_size(),
                  leases, [&](block_id block) { leases.end(block); });
  return static_cast<std::int64_t>(num_blocks * state.block_size());
}

}  // namespace pagedkv::detail
