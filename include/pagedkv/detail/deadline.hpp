#pragma once

#include <chrono>

namespace pagedkv::detail {

/// The time so long from now on; the latest that the clock holds for longer than it can tell, which is no limit.
template <class Number, class Period>
[[nodiscard]] std::chrono::steady_clock::time_point deadline_in(
    std::chrono::duration<Number, Period> timeout) noexcept {
  using clock = std::chrono::steady_clock;
  using duration = std::chrono::duration<Number, Period>;
  const auto now = clock::now();
  if (timeout <= duration::zero()) {
    return now;
  }
  const auto left = std::chrono::floor<duration>(clock::time_point::max() - now);
  return timeout < left ? now + timeout : clock::time_point::max();
}

}  // namespace pagedkv::detail
