#pragma once

#include "../support/prefix_trace.hpp"
#include "../support/simulate.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace pagedkv::replay {

struct options;

/// Hit ratios of eviction policies for the same requests, one at a time, in pools of several capacities.
struct comparison {
  struct row {
    std::string policy;
    std::vector<support::simulation_result> results;  // by capacity
  };

  std::size_t num_requests = 0;
  std::size_t num_references = 0;
  std::size_t num_distinct_blocks = 0;
  std::vector<std::int32_t> capacities;  // blocks, ascending
  std::vector<row> policies;
  row bound;   // hits that no policy passes
  row oracle;  // hits that no policy passes if it has to admit every request that fits
  double seconds = 0;      // wall clock
  double cpu_seconds = 0;  // of all threads
};

/// Simulates every chosen policy, and two that know the future, at every capacity, in parallel over one trace, on the
/// chosen number of threads. Without chosen capacities, uses twelve, log-spaced from 0.5 % of the distinct blocks, or
/// the size that the longest request needs, to 100 %. Shows progress on a terminal.
[[nodiscard]] comparison compare(const support::prefix_trace& trace, const options& chosen);

}  // namespace pagedkv::replay
