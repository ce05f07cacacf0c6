#pragma once

#include "engine.hpp"
#include "workload.hpp"

#include <pagedkv/cache/operations/statistics.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace pagedkv::replay {

class progress;
struct options;

struct outcome {
  std::int64_t num_requests = 0;
  std::int64_t num_references = 0;    // blocks in all prompts, those of refused requests included
  std::int64_t bound_hits = 0;        // of the references: hits that no eviction policy passes
  std::int64_t refused_requests = 0;  // no room for the prompt
  std::int64_t failed_requests = 0;   // no room for an output token
  std::int64_t output_tokens = 0;     // appended
  std::int64_t slots = 0;             // of all requests, each counted when it held the most
  std::int64_t unfilled_slots = 0;    // of these, behind the last token
  block_counts peak;                  // of each state on its own
  cache_statistics at_end;
  std::vector<named_tier> tiers;
  memory_profile memory;
  std::int64_t num_violations = 0;
  std::vector<std::string> violations;  // a sentence for each of the first few
  double seconds = 0;                   // wall clock
  double cpu_seconds = 0;               // of all threads

  [[nodiscard]] std::int64_t blocks_in_use_at_end() const noexcept {
    return at_end.blocks.in_use + at_end.blocks.retiring;
  }
  /// Blocks in prompts that the device, or a tier behind it, had.
  [[nodiscard]] std::int64_t all_hits() const noexcept {
    auto sum = at_end.hit_blocks;
    for (const auto& tier : tiers) {
      sum += tier.counts.hit_blocks;
    }
    return sum;
  }
  [[nodiscard]] bool good() const noexcept { return blocks_in_use_at_end() == 0 && num_violations == 0; }
};

/// Serves every request of the workload: shares cached blocks, writes and commits the others, checks the contents of
/// cached blocks, appends output tokens if this was chosen, and ends the request.
[[nodiscard]] outcome run(engine& served, const workload& work, const options& chosen, progress& shown);

}  // namespace pagedkv::replay
