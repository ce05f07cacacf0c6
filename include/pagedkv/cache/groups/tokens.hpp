#pragma once

#include <pagedkv/cache/groups/group_state.hpp>
#include <pagedkv/cache/operations/parts/check_range.hpp>
#include <pagedkv/cache/record_access.hpp>
#include <pagedkv/detail/copy_run.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace pagedkv::detail {

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
