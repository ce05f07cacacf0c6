#pragma once

#include <pagedkv/cache/operations/parts/leases.hpp>

#include <cstdint>

namespace pagedkv::detail {

template <class State>
[[nodiscard]] std::int64_t find_prefix(State& state, const token_run& run, salt tag) noexcept {
  const auto leases = leases_of(state);
  const auto num_blocks =
      match_chain(state.index, state.index.root(tag), run, state.block_size(), run.tokens.size() / state.block_size(),
                  leases, [&](block_id block) { leases.end(block); });
  return static_cast<std::int64_t>(num_blocks * state.block_size());
}

}  // namespace pagedkv::detail
