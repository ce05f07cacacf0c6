#pragma once

#include <pagedkv/core/result.hpp>
#include <pagedkv/policy/allocator/concept.hpp>
#include <pagedkv/policy/eviction/concept.hpp>
#include <pagedkv/policy/eviction/lru.hpp>
#include <pagedkv/policy/tiers/concept.hpp>

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace pagedkv {

/// When blocks are written to host memory, and from there to slower tiers.
enum class write_policy : std::uint8_t {
  on_eviction,   // write-back: when the device evicts them
  through,       // write-through: when they are committed
  through_hits,  // write-through, from the k-th sequence on that shares them
};

/// Options of a `tiered_cache`.
struct tier_config {
  std::string model = {};  // the engine's name for the weights, and static scales, of K/V; of others, nothing is read
  write_policy write = write_policy::on_eviction;
  std::uint32_t hits_before_write = 2;  // sequences: k of `through_hits`
  bool exclusive = false;               // host memory gives up what the device has; only with `on_eviction`

  std::int64_t prefill_tokens_per_second = 0;  // of the engine: what computes faster is not loaded; 0 loads everything
  /// Records that the cache remembers of each tier without places. Their memory is taken at construction: about 136
  /// bytes each and four for each token of a block, 8 more with each further tier; 32 times as much behind groups of
  /// which none attends to all tokens. `memory_profile::index` counts it.
  std::int32_t known_records = 1 << 16;
  std::int32_t ask_ahead = 0;            // blocks that a tier without places may have; see docs/tiers.md
  std::int32_t queue_records = 256;      // transfers in flight for each tier; more are lost writes and misses
  bool threads = true;                   // false: transfers run in `run_transfers` only
};

/// `layers_differ`: of the cache. Errors: `invalid_argument`.
[[nodiscard]] inline result<void> validate(const tier_config& config, bool layers_differ = false) noexcept {
  if (layers_differ && config.ask_ahead != 0) {
    return error{error_code::invalid_argument, "tier_config.ask_ahead, which is for one group,", config.ask_ahead, 0};
  }
  if (config.exclusive && config.write != write_policy::on_eviction) {
    return error{error_code::invalid_argument, "tier_config.exclusive, which needs write_policy::on_eviction,", 1, 0};
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

/// Host memory as a tier: so many records, in one run from the allocator, evicted in this order. Slower tiers read and
/// write through it, so it has a few records even where it is not meant to keep any. A device reaches it if the memory
/// is pinned: `host_tier<hip::pinned_allocator>`.
template <allocator Allocator, eviction_policy Eviction>
struct basic_host_tier {
  using allocator_type = Allocator;
  using eviction_type = Eviction;

  /// The name in tables and labels.
  static constexpr std::string_view name = "host";
  static_assert(on_host<Allocator> && provides_memory<Allocator>, "a host tier needs memory that the host reaches");

  std::int32_t num_records = 0;  // blocks that it has room for
  Allocator memory = {};         // where they lie
};

/// A tier whose records another policy than `lru` evicts: `evicted_by<file_tier, sieve>`.
template <tier Tier, eviction_policy Eviction>
struct evicted_by : Tier {
  using eviction_type = Eviction;

  explicit evicted_by(Tier of) noexcept : Tier(std::move(of)) {}
};

namespace detail {

template <class Tier>
struct eviction_of {
  using type = lru;
};
template <class Tier>
  requires requires { typename Tier::eviction_type; }
struct eviction_of<Tier> {
  using type = typename Tier::eviction_type;
};

/// Records that a tier has room for. A tier without places forgets those for which there is no room in the index.
template <class Tier>
[[nodiscard]] std::int64_t num_places_of(const Tier& tier, const tier_config& config) noexcept {
  if constexpr (memory_tier<Tier>) {
    return tier.num_records;
  } else if constexpr (tier_with_places<Tier>) {
    return tier.num_places();
  } else {
    return config.known_records;
  }
}

}  // namespace detail

}  // namespace pagedkv
