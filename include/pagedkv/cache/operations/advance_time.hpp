#pragma once

#include <pagedkv/core/ids.hpp>

#include <atomic>
#include <cstdint>

namespace pagedkv::detail {

template <class State>
void advance_time(State& state, timestamp now) noexcept {
  const auto value = static_cast<std::int64_t>(now);
  auto seen = state.now.load(std::memory_order_relaxed);
  while (seen < value &&
         !state.now.compare_exchange_weak(seen, value, std::memory_order_relaxed, std::memory_order_relaxed)) {
  }
}

}  // namespace pagedkv::detail
