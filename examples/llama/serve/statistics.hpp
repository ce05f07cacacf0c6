#pragma once

#include "../engine.hpp"

#include <pagedkv/metrics/statistics.hpp>
#include <pagedkv/requests/metrics.hpp>

#include <array>
#include <cstdint>
#include <vector>

namespace llama {

/// The engine's own counts, beside those of its cache and of its tracker. Times are in microseconds.
struct engine_counts {
  std::int64_t waiting = 0;
  std::int64_t steps = 0;
  std::int64_t computed_tokens = 0;
  std::int64_t in_model = 0;
  std::int64_t in_cache = 0;
  std::int64_t elsewhere = 0;
};

struct service_statistics {
  pagedkv::cache_statistics cache;
  pagedkv::memory_profile memory;
  std::vector<named_tier> tiers;
  pagedkv::tracker_statistics requests;
  engine_counts engine;
};

}  // namespace llama

template <>
inline constexpr auto pagedkv::metrics_of<llama::engine_counts> = [] {
  using enum pagedkv::metric_kind;
  using counts = llama::engine_counts;
  using row = pagedkv::metric<counts>;
  constexpr auto time = pagedkv::metric_family{counter, "step", "microseconds", "Time of steps, by what took it."};
  return std::array{
      row{{gauge, "waiting_requests", "", "Requests that wait for blocks, preempted ones included."},
          {},
          [](const counts& from) { return from.waiting; }},
      row{{counter, "steps", "", "Forward passes."}, {}, [](const counts& from) { return from.steps; }},
      row{{counter, "computed", "tokens", "Tokens that went through the model."},
          {},
          [](const counts& from) { return from.computed_tokens; }},
      row{time, {"part", "model"}, [](const counts& from) { return from.in_model; }},
      row{time, {"part", "cache"}, [](const counts& from) { return from.in_cache; }},
      row{time, {"part", "other"}, [](const counts& from) { return from.elsewhere; }},
  };
}();
