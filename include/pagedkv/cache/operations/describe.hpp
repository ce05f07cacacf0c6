#pragma once

#include <pagedkv/cache/outcomes.hpp>
#include <pagedkv/cache/record_access.hpp>
#include <pagedkv/sequence/sequence.hpp>

#include <algorithm>
#include <cstdint>

namespace pagedkv::detail {

template <class State>
[[nodiscard]] result<sequence_info> describe(const State& state, sequence_id id) noexcept {
  return visit_sequence(state, id, [](const auto& s) -> result<sequence_info> {
    return sequence_info{s.num_tokens,        s.num_computed_tokens, s.num_prompt_tokens,
                         s.num_cached_tokens, s.usage().num_blocks,  std::max(s.num_tokens, s.num_reserved),
                         s.created,           s.last_access,         s.options};
  });
}

}  // namespace pagedkv::detail
