#pragma once

#include <pagedkv/cache/cache_state.hpp>

namespace pagedkv::detail {

template <class State>
[[nodiscard]] result<void> retire_step(State& state, step_id step) noexcept {
  const auto retired = state.retire_step(step);
  if (retired) {
    report<event_kind::step_retired>(state.events, [&] { return cache_event{.step = step}; });
  }
  return retired;
}

}  // namespace pagedkv::detail
