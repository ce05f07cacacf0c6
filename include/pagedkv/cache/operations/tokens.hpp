#pragma once

#include <pagedkv/cache/operations/parts/check_range.hpp>
#include <pagedkv/cache/record_access.hpp>
#include <pagedkv/core/token_run.hpp>
#include <pagedkv/detail/copy_run.hpp>
#include <pagedkv/sequence/sequence.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace pagedkv::detail {

/// Copies a sequence's tokens from `first_token` on.
template <class State>
[[nodiscard]] result<void> copy_tokens(const State& state, const sequence& s, std::int64_t first_token,
                                       std::span<token> tokens) noexcept {
  const auto dropped = static_cast<std::int64_t>(s.blocks.num_dropped() * state.block_size());
  const auto inside = check_range(first_token, tokens.size(), dropped, s.num_tokens,
                                  "first_token of the tokens to copy, outside of those held,",
                                  "end of the tokens to copy, first_token + out.size(),");
  if (!inside) {
    return inside;
  }
  for (auto at = static_cast<std::size_t>(first_token); !tokens.empty();) {
    const auto rest = state.index.tokens(s.blocks[at / state.block_size()]).subspan(at % state.block_size());
    const auto size = std::min(rest.size(), tokens.size());
    copy_run(rest.first(size), tokens);
    tokens = tokens.subspan(size);
    at += size;
  }
  return {};
}

template <class State>
[[nodiscard]] result<void> copy_tokens(const State& state, sequence_id id, std::int64_t first_token,
                                       std::span<token> tokens) noexcept {
  return visit_sequence(state, id, [&](const sequence& s) { return copy_tokens(state, s, first_token, tokens); });
}

/// Copies a sequence's keys; returns their number.
template <class State>
[[nodiscard]] result<std::size_t> copy_keys(const State& state, sequence_id id, std::span<prefix_key> keys) noexcept {
  return visit_sequence(state, id, [&](const auto& s) -> result<std::size_t> {
    copy_run(std::span{s.keys}.first(std::min(s.keys.size(), keys.size())), keys);
    return s.keys.size();
  });
}

}  // namespace pagedkv::detail
