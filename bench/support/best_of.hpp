#pragma once

#include <algorithm>
#include <chrono>
#include <limits>
#include <utility>

namespace pagedkv::bench {

/// Seconds of the fastest of several calls, because other load on the machine only adds time. `prepare` is not timed.
template <class Prepare, class Body>
[[nodiscard]] double best_seconds(int repetitions, Prepare&& prepare, Body&& body) {
  auto best = std::numeric_limits<double>::infinity();
  for (auto i = 0; i < repetitions; ++i) {
    prepare();
    const auto start = std::chrono::steady_clock::now();
    body();
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}

template <class Body>
[[nodiscard]] double best_seconds(int repetitions, Body&& body) {
  return best_seconds(repetitions, [] {}, std::forward<Body>(body));
}

}  // namespace pagedkv::bench
