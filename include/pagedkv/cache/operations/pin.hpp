#pragma once

#include <pagedkv/cache/operations/leases.hpp>
#include <pagedkv/cache/outcomes.hpp>
#include <pagedkv/cache/record_map.hpp>
#include <pagedkv/detail/function_ref.hpp>

#include <cstdint>
#include <span>

// Prefixes that stay: pins.

namespace pagedkv::detail {

/// References every full block of a published prefix of these tokens.
template <class State>
[[nodiscard]] result<void> pin_prefix(State& state, pinned_prefix& pinned, const token_run& run, salt salt) noexcept {
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
[[nodiscard]] result<pinning> pin(State& state, const token_run& run, salt salt) noexcept {
  auto num_blocks = std::size_t{0};
  const auto made =
      make_record(state.pins, "number of pins, at most cache_config.max_sequences,", [&](pinned_prefix& p) {
        auto pinned = pin_prefix(state, p, run, salt);
        num_blocks = p.blocks.size();  // now, because `unpin_all` may end the pin as soon as it is open
        return pinned;
      });
  if (!made) {
    return made.error();
  }
  return pinning{static_cast<pin_id>(*made), static_cast<std::int64_t>(num_blocks * state.block_size())};
}

template <class State>
[[nodiscard]] result<void> unpin(State& state, std::uint64_t id) noexcept {
  return end_record(state.pins, id, [&](pinned_prefix& p) {
    release_blocks(state, p.blocks, 0, p.blocks.size(), release_as_before(state.time()), step_set{});
    p.blocks.clear();
  });
}

/// Ends every pin that is open when the call comes to it, by `end(id)`; returns how many.
template <class State>
std::int64_t unpin_all(State& state, function_ref<result<void>(std::uint64_t)> end) noexcept {
  auto count = std::int64_t{0};
  state.pins.for_each([&](auto& open) {
    const auto ended = end(state.pins.id_of(open));
    count += ended.has_value() ? 1 : 0;
  });
  return count;
}

}  // namespace pagedkv::detail
