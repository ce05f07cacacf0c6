#pragma once

#include "../support/trace.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace pagedkv::replay {

struct options;

/// Requests in the order of their arrival.
struct workload {
  std::vector<support::trace_request> requests;
  std::int32_t block_size = 0;  // tokens in a block, as chosen or as suits these requests
  std::int64_t num_references = 0;
  std::int64_t num_distinct_blocks = 0;
  std::size_t longest_prompt = 0;  // blocks
};

/// Reads the trace, or generates conversations, questions about shared documents and agents. Throws
/// `support::trace_error`.
[[nodiscard]] workload make_workload(const options& chosen);

}  // namespace pagedkv::replay
