#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace pagedkv::replay {

struct options {
  std::string trace;  // empty: a generated workload
  std::optional<std::int32_t> block_size;
  std::vector<std::int32_t> blocks;  // capacities of the pool; one, or none yet, unless policies are compared
  std::string eviction = "lru";
  std::string locking = "single_thread";
  std::string element = "float16";
  std::string free_list = "any_free_block";
  std::uint64_t hash_seed = 1;
  std::int32_t num_threads = 1;
  std::int32_t concurrency = 1;  // requests alive at once
  bool decode = false;
  std::int32_t host_blocks = 0;  // records in host memory; 0: no tiers
  std::string file;              // path and size of a file; empty: none
  std::string remote;            // URL of a store; empty: none
  std::string write_policy = "on_eviction";
  bool exclusive = false;
  std::string prefetch = "complete";
  std::size_t limit = std::numeric_limits<std::size_t>::max();
  std::string json;                   // empty: none; "-": standard output
  std::string log;                    // empty: none; "-": standard error
  std::string publish;                // an endpoint; empty: none
  std::vector<std::string> compared;  // eviction policies; empty: replay with one
  std::string plot;                   // prefix of files; empty: none

  [[nodiscard]] std::string trace_name() const;  // without folders
};

/// Options that are valid alone but not together, or that name an unusable file.
class option_error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct parsed_options {
  options chosen;
  std::optional<int> exit_status;  // set if there is nothing to run: help or an error message was shown
};

[[nodiscard]] parsed_options parse_options(int argc, const char* const* argv);

}  // namespace pagedkv::replay
