#pragma once

#include <pagedkv/cache/cache_state.hpp>
#include <pagedkv/cache/record_map.hpp>
#include <pagedkv/core/ids.hpp>

#include <atomic>
#include <cstdint>
#include <span>

// Steps in flight, and the time.

namespace pagedkv::detail {

template <class State>
void advance_time(State& state, timestamp now) noexcept {
  const auto value = static_cast<std::int64_t>(now);
  auto seen = state.now.load(std::memory_order_relaxed);
  while (seen < value &&
         !state.now.compare_exchange_weak(seen, value, std::memory_order_relaxed, std::memory_order_relaxed)) {
  }
}

/// Notes and reports a step if it has begun.
template <class State>
[[nodiscard]] result<step_id> report_step(State& state, const result<step_id>& begun) noexcept {
  if (begun) {
    state.pool.note_newest_step(*begun);
    report<event_kind::step_begun>(state.events, [&] { return cache_event{.step = *begun}; });
  }
  return begun;
}

/// Opens a step that may use any block in use.
template <class State>
[[nodiscard]] result<step_id> begin_step(State& state) noexcept {
  return report_step(state, state.pool.begin_step(step_use::everything));
}

/// Opens a step that uses these sequences: all or nothing.
template <class State>
[[nodiscard]] result<step_id> begin_step(State& state, std::span<const sequence_id> ids) noexcept {
  const auto step = state.pool.begin_step(step_use::named_sequences);
  for (auto id = ids.begin(); step && id != ids.end(); ++id) {
    const auto used = visit_sequence(state, *id, [&](auto& s) -> result<void> {
      s.steps.insert(*step);
      return {};
    });
    if (!used) {
      static_cast<void>(state.retire_step(*step));
      return used.error();
    }
  }
  return report_step(state, step);
}

template <class State>
[[nodiscard]] result<void> retire_step(State& state, step_id step) noexcept {
  const auto retired = state.retire_step(step);
  if (retired) {
    report<event_kind::step_retired>(state.events, [&] { return cache_event{.step = step}; });
  }
  return retired;
}

}  // namespace pagedkv::detail
