#pragma once

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <utility>
#include <vector>

namespace pagedkv::bench {

/// Latencies of single calls. Use it from one thread at a time.
class latencies {
 public:
  /// Calls the function, records its time, and returns its result.
  template <class Call>
  auto measure(Call&& call) {
    const auto begin = clock::now();
    auto answer = std::forward<Call>(call)();
    add(clock::now() - begin);
    return answer;
  }

  void add(std::chrono::steady_clock::duration time) { times_.push_back(time); }

  void join(const latencies& other) { times_.insert(times_.end(), other.times_.begin(), other.times_.end()); }

  /// Time of the latest call.
  [[nodiscard]] std::chrono::steady_clock::duration last() const { return times_.back(); }

  [[nodiscard]] std::size_t num_calls() const { return times_.size(); }

  /// The least time, in microseconds, that this share of the calls did not exceed; of all calls, the longest.
  [[nodiscard]] double quantile(double share) {
    if (times_.empty()) {
      return 0;
    }
    const auto rank = static_cast<std::size_t>(std::ceil(share * static_cast<double>(times_.size())));
    const auto at = times_.begin() + static_cast<std::ptrdiff_t>(std::max(rank, std::size_t{1}) - 1);
    std::ranges::nth_element(times_, at);
    return std::chrono::duration<double, std::micro>(*at).count();
  }

  void report(benchmark::State& state) {
    state.counters["calls"] = static_cast<double>(num_calls());
    state.counters["p50_us"] = quantile(0.5);
    state.counters["p99_us"] = quantile(0.99);
    state.counters["p99.9_us"] = quantile(0.999);
    state.counters["max_us"] = quantile(1);
  }

 private:
  using clock = std::chrono::steady_clock;

  std::vector<clock::duration> times_;
};

}  // namespace pagedkv::bench
