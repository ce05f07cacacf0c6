#pragma once

#include "../replay/workload.hpp"

#include <cstdint>
#include <string>

namespace pagedkv::router {

struct setting {
  std::int32_t num_workers = 4;
  std::int32_t num_blocks = 0;  // of each worker
  std::string keys = "cache";   // or "dynamo", "llm-d"
};

struct outcome {
  std::int64_t num_references = 0;  // blocks of prompts
  std::int64_t num_hits = 0;        // of them cached at the worker that got the request
  std::int64_t num_refused = 0;     // requests that are too long for a worker
  double imbalance = 0;             // blocks computed by the busiest worker, over the average

  [[nodiscard]] double hit_ratio() const {
    return num_references == 0 ? 0 : static_cast<double>(num_hits) / static_cast<double>(num_references);
  }
};

/// Workers in turn.
[[nodiscard]] outcome route_in_turn(const replay::workload& work, const setting& chosen);

/// By the index: the worker that has the least to compute, and is no busier than that is worth.
[[nodiscard]] outcome route_by_index(const replay::workload& work, const setting& chosen);

}  // namespace pagedkv::router
