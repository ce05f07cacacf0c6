#pragma once

#include <benchmark/benchmark.h>

#include <chrono>
#include <map>
#include <string>
#include <string_view>
#include <utility>

namespace pagedkv::bench {

/// Measures one benchmark and compares it with those before it in the same run. Counters: `scaling`, the rate of all
/// threads together over that of one thread; `vs_X`, the rate over that of policy X with as many threads.
class scoreboard {
 public:
  /// Construct it in each thread directly before its loop. All threads begin and end the loop together.
  scoreboard(benchmark::State& state, std::string operation, std::string_view policy)
      : state_(state), operation_(std::move(operation)), policy_(policy), begin_(clock::now()) {}

  /// Call it after the loop. `items` is the number of items per iteration of one thread.
  void finish(std::int64_t items) {
    const auto seconds = std::chrono::duration<double>(clock::now() - begin_).count();
    state_.SetItemsProcessed(state_.iterations() * items);
    if (state_.thread_index() != 0) {
      return;
    }
    const auto rate = static_cast<double>(state_.iterations() * items) * state_.threads() / seconds;
    auto& rates = rates_[operation_];
    rates[{policy_, state_.threads()}] = rate;
    if (const auto one = rates.find({policy_, 1}); one != rates.end()) {
      state_.counters["scaling"] = rate / one->second;
    }
    for (const auto& [of, other] : rates) {
      if (of.first != policy_ && of.second == state_.threads()) {
        state_.counters["vs_" + of.first] = rate / other;
      }
    }
  }

 private:
  using clock = std::chrono::steady_clock;
  using key = std::pair<std::string, int>;

  static inline std::map<std::string, std::map<key, double>> rates_;

  benchmark::State& state_;
  std::string operation_;
  std::string policy_;
  clock::time_point begin_;
};

inline void one_to_sixteen_threads(benchmark::internal::Benchmark* benchmark) {
  benchmark->ThreadRange(1, 16)->UseRealTime();
}

}  // namespace pagedkv::bench
