#pragma once

#include <pagedkv/core/error.hpp>
#include <pagedkv/core/result.hpp>

#include <cstdint>
#include <string>

namespace pagedkv {

/// When blocks are written to host memory, and from there to slower tiers.
enum class write_policy : std::uint8_t {
  on_eviction,   // write-back: when the device evicts them
  through,       // write-through: when they are committed
  through_hits,  // write-through, from the k-th sequence on that shares them
};

/// Options of a `tiered_cache`.
struct tier_config {
  std::string model;  // the engine's name for the weights, and static scales, of K/V; of others, nothing is read
  write_policy write = write_policy::on_eviction;
  std::uint32_t hits_before_write = 2;  // k of `through_hits`
  bool exclusive = false;               // host memory gives up what the device has; only with `on_eviction`

  std::int64_t prefill_tokens_per_second = 0;  // of the engine: what computes faster is not loaded; 0 loads everything
  /// Records that the cache remembers of each tier without places. Their memory is taken at construction: about 136
  /// bytes each and four for each token of a block, 8 more with each further tier. `memory_profile::index` counts it.
  std::int32_t known_records = 1 << 16;
  std::int32_t ask_ahead = 0;            // blocks that a tier without places may have; see docs/tiers.md
  std::int32_t queue_records = 256;      // transfers in flight for each tier; more are lost writes and misses
  bool threads = true;                   // false: transfers run in `run_transfers` only
};

/// Errors: `invalid_argument`.
[[nodiscard]] inline result<void> validate(const tier_config& config) noexcept {
  if (config.exclusive && config.write != write_policy::on_eviction) {
    return error{error_code::invalid_argument,
                 "tier_config.exclusive, which writes on eviction only: tier_config.write",
                 static_cast<std::int64_t>(config.write), static_cast<std::int64_t>(write_policy::on_eviction)};
  }
  if (config.queue_records < 1) {
    return error{error_code::invalid_argument, "tier_config.queue_records", config.queue_records, 1};
  }
  if (config.known_records < 1) {
    return error{error_code::invalid_argument, "tier_config.known_records", config.known_records, 1};
  }
  if (config.ask_ahead < 0) {
    return error{error_code::invalid_argument, "tier_config.ask_ahead", config.ask_ahead, 0};
  }
  if (config.prefill_tokens_per_second < 0) {
    return error{error_code::invalid_argument, "tier_config.prefill_tokens_per_second",
                 config.prefill_tokens_per_second, 0};
  }
  return {};
}

}  // namespace pagedkv
