#pragma once

#include <pagedkv/cache/operations/parts/leases.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace pagedkv::detail {

/// References every full block of a published prefix of these tokens.
template <class State>
[[nodiscard]] result<void> pin(State& state, pinned_prefix& pinned, std::span<const token> tokens, salt tag) noexcept {
  const auto max_blocks = tokens.size() / state.block_size();
  if (!pinned.blocks.try_reserve(max_blocks)) {
    return error{error_code::out_of_memory, "number of tokens to pin", static_cast<std::int64_t>(tokens.size())};
  }
  auto leased = lease_prefix(state, pinned.blocks, tag, tokens, max_blocks, 0);
  reference_leased(state, pinned.blocks, pinned.blocks.size());
  state.note_peak();
  return leased;
}

template <class State>
void unpin(State& state, pinned_prefix& pinned) noexcept {
  release_blocks(state, pinned.blocks, 0, pinned.blocks.size(), block_release{}, step_set{});
  pinned.blocks.clear();
}

}  // namespace pagedkv::detail
