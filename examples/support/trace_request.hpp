#pragma once

#include <cstdint>
#include <vector>

namespace pagedkv::support {

/// One request of a trace. Equal ids in `blocks` stand for blocks of equal tokens behind equal prefixes.
struct trace_request {
  std::int64_t arrival_ms = 0;
  std::uint32_t num_prompt_tokens = 0;
  std::uint32_t num_output_tokens = 0;
  std::vector<std::uint64_t> blocks;
};

}  // namespace pagedkv::support
