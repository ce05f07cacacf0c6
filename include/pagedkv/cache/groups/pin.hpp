#pragma once

#include <pagedkv/cache/groups/longest_hit.hpp>
#include <pagedkv/cache/outcomes.hpp>
#include <pagedkv/cache/record_map.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

// Prefixes of several groups that stay: pins.

namespace pagedkv::detail {

/// Fills an empty pin with references to what a hit of these tokens needs; returns its length. Errors: `out_of_memory`.
template <layered State>
[[nodiscard]] result<std::int64_t> pin(State& state, group_pin& pinned, const token_run& run, salt salt) noexcept {
  const auto guard = state.guard_nodes();
  const auto found = longest_hit(state, run, salt, static_cast<std::int64_t>(run.tokens.size()));
  if (!found) {
    return found.error();
  }
  const auto length = static_cast<std::int64_t>(found->num_nodes) * state.granularity();
  pinned.tail = found->num_nodes == 0 ? state.nodes.root(salt) : state.nodes.link(found->path[found->num_nodes - 1]);
  const auto reserve = [&] {
    for (std::size_t g = 0; g < state.num_groups(); ++g) {
      const bool tokens_only = state.holds_tokens(g);
      pinned.tables[g].reserve(tokens_only ? state.places_for(g, length) : state.blocks_of_state(g));
      pinned.tables[g].start(tokens_only ? state.num_sinks(g) : 0, tokens_only ? state.first_place(g, length) : 0);
    }
    return true;
  };
  if (!with_memory(reserve, false)) {
    return error{error_code::out_of_memory, "number of tokens to pin", length};
  }
  for (std::size_t g = 0; g < state.num_groups() && length != 0; ++g) {
    auto& table = pinned.tables[g];
    const auto keep = [&](block_id block) {
      [[maybe_unused]] const auto referenced = state.pool.reference_published(block);
      assert(referenced);
      table.extend(1)[0] = block;
    };
    if (!state.holds_tokens(g)) {
      auto block = state.nodes.attached(pinned.tail.node, g);
      for (; block != no_block; block = state.nodes.next_of_state(block)) {
        keep(block);
      }
      continue;
    }
    for (std::size_t place = 0; place < table.num_sinks(); ++place) {
      keep(block_at(state, found->path, found->num_nodes, g, place));
    }
    while (table.end() < state.places_for(g, length)) {
      keep(block_at(state, found->path, found->num_nodes, g, table.end()));
    }
  }
  state.hold(pinned.tail);
  state.note_peak();
  return length;
}

template <layered State>
[[nodiscard]] result<pinning> pin(State& state, const token_run& run, salt salt) noexcept {
  auto length = std::int64_t{0};
  const auto made =
      make_record(state.pins, "number of pins, at most cache_config.max_sequences,", [&](group_pin& p) -> result<void> {
        const auto pinned = pin(state, p, run, salt);
        if (!pinned) {
          return pinned.error();
        }
        length = *pinned;
        return {};
      });
  if (!made) {
    return made.error();
  }
  return pinning{static_cast<pin_id>(*made), length};
}

template <layered State>
[[nodiscard]] result<void> unpin(State& state, std::uint64_t id) noexcept {
  return end_record(state.pins, id, [&](group_pin& pinned) {
    const auto guard = state.guard_nodes();
    const auto how_at = [how = release_as_before(state.time())](std::size_t, std::size_t) { return how; };
    state.release_all(pinned.tables, how_at, state.pool.fence_of(step_set{}));
    state.let_go(pinned.tail);
  });
}

}  // namespace pagedkv::detail
