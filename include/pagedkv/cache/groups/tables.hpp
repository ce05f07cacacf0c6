#pragma once

#include <pagedkv/cache/groups/append.hpp>
#include <pagedkv/cache/groups/group_state.hpp>
#include <pagedkv/cache/operations/checks.hpp>
#include <pagedkv/cache/operations/look_up.hpp>
#include <pagedkv/cache/operations/prompt.hpp>
#include <pagedkv/cache/operations/tables.hpp>
#include <pagedkv/cache/record_map.hpp>
#include <pagedkv/detail/runs.hpp>
#include <pagedkv/sequence/batch_view.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

// A group's arrays for kernels. Errors: `invalid_argument` for a group that there is not, and, but for `block_table`,
// for a group of states.

namespace pagedkv::detail {

template <layered State>
[[nodiscard]] result<void> check_group(const State& state, std::size_t group) noexcept {
  if (group >= state.num_groups()) {
    return no_such_group(group, state.num_groups());
  }
  if (!state.holds_tokens(group)) {
    return error{error_code::invalid_argument, "index of a group, which holds a state and no tokens,",
                 static_cast<std::int64_t>(group)};
  }
  return {};
}

template <layered State>
[[nodiscard]] result<void> slot_mapping(const State& state, sequence_id id, std::int64_t first_token,
                                        std::span<slot> slots, std::size_t group) noexcept {
  return visit_sequence(state, id, [&](const group_sequence& s) -> result<void> {
    if (auto checked = check_group(state, group); !checked) {
      return checked;
    }
    if (auto checked = check_slots(first_token, slots.size(), num_slots(state, s, group)); !checked) {
      return checked;
    }
    fill_slots(s.tables[group], state.plan.groups[group].block_size, first_token, slots);
    return {};
  });
}

/// `holder`: a sequence or a pin.
template <layered State, class Holder>
[[nodiscard]] result<std::size_t> copy_table_of(const State& state, const Holder& holder, std::span<block_id> blocks,
                                                std::size_t first_block, std::size_t group) noexcept {
  if (group >= state.num_groups()) {
    return no_such_group(group, state.num_groups());
  }
  return copy_table(holder.tables[group].all(), blocks, first_block);
}

template <layered State>
[[nodiscard]] result<std::size_t> copy_block_table(const State& state, sequence_id id, std::span<block_id> blocks,
                                                   std::size_t first_block, std::size_t group) noexcept {
  return visit_sequence(state, id,
                        [&](const group_sequence& s) { return copy_table_of(state, s, blocks, first_block, group); });
}

template <layered State>
[[nodiscard]] result<std::size_t> copy_block_table(const State& state, pin_id id, std::span<block_id> blocks,
                                                   std::size_t first_block, std::size_t group) noexcept {
  return visit_record(state.pins, static_cast<std::uint64_t>(id),
                      [&](const group_pin& p) { return copy_table_of(state, p, blocks, first_block, group); });
}

template <layered State>
[[nodiscard]] std::int64_t skipped_tokens(const State& state, std::size_t group, const group_sequence& s) noexcept {
  return static_cast<std::int64_t>(s.tables[group].num_skipped()) * state.block_size(group);
}

template <layered State>
[[nodiscard]] result<std::int64_t> num_skipped_tokens(const State& state, sequence_id id, std::size_t group) noexcept {
  return visit_sequence(state, id, [&](const group_sequence& s) -> result<std::int64_t> {
    if (const auto checked = check_group(state, group); !checked) {
      return checked.error();
    }
    return skipped_tokens(state, group, s);
  });
}

template <layered State, class Batch>
[[nodiscard]] result<void> update(const State& state, Batch& batch, std::span<const sequence_id> ids, std::size_t group,
                                  std::int64_t num_ahead) noexcept {
  if (auto checked = check_group(state, group); !checked) {
    return checked;
  }
  const auto row_of = [&](sequence_id id, const group_sequence& s) {
    const auto& table = s.tables[group];
    const auto shown = num_ahead == 0 ? s.num_tokens : std::min(num_slots(state, s, group), s.num_tokens + num_ahead);
    const auto end = std::max(state.places_for(group, shown), table.first());
    const auto num_hidden = table.end() - end;  // entries that only have slots ahead which are not shown
    return batch_row{id, table.version(), shown - skipped_tokens(state, group, s),
                     table.all().first(table.all().size() - num_hidden)};
  };
  return update_rows(state, batch, ids, state.plan.groups[group].block_size, num_ahead, row_of);
}

/// Copies a sequence's tokens from `first_token` on: of published nodes, then those behind them.
template <layered State>
[[nodiscard]] result<void> copy_tokens(const State& state, sequence_id id, std::int64_t first_token,
                                       std::span<token> out) noexcept {
  return visit_sequence(state, id, [&](const group_sequence& s) -> result<void> {
    const auto inside = check_range(first_token, out.size(), 0, s.num_tokens,
                                    "first_token of the tokens to copy, outside of those held,",
                                    "end of the tokens to copy, first_token + out.size(),");
    if (!inside) {
      return inside;
    }
    const auto begin = static_cast<std::size_t>(first_token);
    const auto put = [&](std::size_t position, std::span<const token> tokens) {
      const auto first = std::max(position, begin);
      const auto last = std::min(position + tokens.size(), begin + out.size());
      if (first < last) {
        copy_run(tokens.subspan(first - position, last - first), out.subspan(first - begin));
      }
    };
    const auto size = static_cast<std::size_t>(state.granularity());
    put(s.num_nodes * size, s.pending.from(0).first(state.num_pending(s)));
    for (auto node = s.tail.node; node != no_node; node = state.nodes.parent(node)) {
      put(state.nodes.depth(node) * size, state.nodes.tokens(node));
    }
    return {};
  });
}

}  // namespace pagedkv::detail
