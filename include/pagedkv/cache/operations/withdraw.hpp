#pragma once

#include <pagedkv/cache/operations/parts/unlaunched.hpp>
#include <pagedkv/cache/operations/parts/withdraw_unlaunched.hpp>
#include <pagedkv/cache/record_access.hpp>
#include <pagedkv/core/error.hpp>

#include <cstdint>

namespace pagedkv::detail {

/// Hides what a sequence has published ahead of a launch, unless others need the launch; returns how many blocks. Nobody
/// can share the sequence any more.
template <class State>
[[nodiscard]] result<std::int64_t> withdraw(State& state, sequence_id id) noexcept {
  return visit_sequence(state, id, [&](auto& s) -> result<std::int64_t> {
    const auto guard = state.guard_nodes();
    auto num_shared = num_unlaunched_shared(state, s);
    auto num_hidden = std::int64_t{0};
    if (num_shared == 0) {
      num_hidden = withdraw_unlaunched(state, s);
      num_shared = num_unlaunched_shared(state, s);  // another thread's hit may have been faster
    }
    if (num_shared != 0) {
      return error{error_code::in_use, "number of blocks that others share ahead of their launch", num_shared, 0};
    }
    s.options.publish = false;
    s.is_withdrawn = true;
    return num_hidden;
  });
}

}  // namespace pagedkv::detail
