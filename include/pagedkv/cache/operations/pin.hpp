#pragma once

#include <pagedkv/cache/operations/parts/leases.hpp>
#include <pagedkv/cache/record_access.hpp>

#include <cstddef>
#include <cstdint>

namespace pagedkv::detail {

/// References every full block of a published prefix of these tokens.
template <class State>
[[nodiscard]] result<void> pin(State& state, pinned_prefix& pinned, const token_run& run, salt salt) noexcept {
  const auto max_blocks = run.tokens.size() / state.block_size();
  if (!pinned.blocks.try_reserve(max_blocks)) {
    return error{error_code::out_of_memory, "number of tokens to pin", static_cast<std::int64_t>(run.tokens.size())};
  }
  const auto no_more = [](std::size_t num_hits) { return num_hits; };
  auto leased = lease_prefix(state, pinned.blocks, state.index.root(salt), run, max_blocks, no_more);
  reference_leased(state, pinned.blocks, pinned.blocks.size());
  state.note_peak();
  return leased;
}

template <class State>
void unpin(State& state, pinned_prefix& pinned) noexcept {
  release_blocks(state, pinned.blocks, 0, pinned.blocks.size(), block_release{}, step_set{});
  pinned.blocks.clear();
}

/// Ends every pin that is open when the call comes to it; returns how many.
template <class State>
std::int64_t unpin_all(State& state) noexcept {
  auto count = std::int64_t{0};
  state.pins.for_each([&](auto& open) {
    const auto ended = end_record(state.pins, state.pins.id_of(open), [&](pinned_prefix& p) { unpin(state, p); });
    count += ended.has_value() ? 1 : 0;
  });
  return count;
}

}  // namespace pagedkv::detail
