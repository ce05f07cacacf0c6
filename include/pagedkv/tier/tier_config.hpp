#pragma once

#include <pagedkv/core/result.hpp>
#include <pagedkv/metrics/counters.hpp>
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

/// A snapshot of one tier, in records; counters begin at construction. Records that came in and have not gone are
/// there: `written + adopted + loaded_into == num_records + evictions + dropped`. A record that a tier should get is
/// written, lost, or still owed: `handed_over == written + lost_writes + num_owed`. It counts again when it is lost and
/// comes again.
struct tier_statistics {
  std::int64_t num_places = 0;
  std::int64_t num_records = 0;
  std::int64_t hit_blocks = 0;
  std::int64_t hit_tokens = 0;
  std::int64_t written = 0;
  std::int64_t adopted = 0;
  std::int64_t loaded_into = 0;
  std::int64_t evictions = 0;
  std::int64_t dropped = 0;
  std::int64_t handed_over = 0;
  std::int64_t num_owed = 0;
  std::int64_t lost_writes = 0;
  std::int64_t failed_writes = 0;
  std::int64_t late_writes = 0;
  std::int64_t loads = 0;
  std::int64_t missing_loads = 0;
  std::int64_t failed_loads = 0;
  std::int64_t refused_loads = 0;
  std::int64_t num_erasing = 0;
  std::int64_t num_orphans = 0;
};

/// Lengths, in tokens, of the prefix that a prompt would find: on the device; with host memory behind that; and with the
/// slower tiers behind both. Each is at least the one before.
struct prefix_reach {
  std::int64_t on_device = 0;
  std::int64_t with_host_memory = 0;
  std::int64_t with_slower_tiers = 0;
};

namespace detail {

[[nodiscard]] constexpr auto tier_metrics() {
  using enum metric_kind;
  using rows = metrics_builder<tier_statistics>;
  using all = tier_statistics;
  return std::array{
      rows::row<&all::num_places>({gauge, "tier_places", "", "Records that the tier has room for; 0 if it says none."}),
      rows::row<&all::num_records>({gauge, "tier_records", "", "Records that the cache knows in the tier."}),
      rows::row<&all::hit_blocks>({counter, "tier_hit", "blocks", "Blocks that sequences took from the tier."}),
      rows::row<&all::hit_tokens>({counter, "tier_hit", "tokens", "Tokens in these blocks."}),
      rows::row<&all::written>({counter, "tier_written", "", "Records written, acknowledged by the tier."}),
      rows::row<&all::adopted>({counter, "tier_adopted", "", "Records from before that the cache took up."}),
      rows::row<&all::loaded_into>({counter, "tier_loaded_into", "", "Records that came in from a slower tier."}),
      rows::row<&all::evictions>({counter, "tier_evicted", "", "Records that made room for others."}),
      rows::row<&all::dropped>({counter, "tier_dropped", "", "Records that were invalid, or of use no more."}),
      rows::row<&all::handed_over>({counter, "tier_handed_over", "", "Records that the tier should get."}),
      rows::row<&all::num_owed>({gauge, "tier_owed", "", "Records that the tier should get and has not got yet."}),
      rows::row<&all::lost_writes>({counter, "tier_lost_writes", "", "Records given up before the tier had them."}),
      rows::row<&all::failed_writes>({counter, "tier_failed_writes", "", "Writes that failed, or found no room."}),
      rows::row<&all::late_writes>({counter, "tier_late_writes", "", "Writes to slower tiers put off, or repeated."}),
      rows::row<&all::loads>({counter, "tier_loads", "", "Records read whole."}),
      rows::row<&all::missing_loads>({counter, "tier_missing_loads", "", "Records asked for that the tier lacks."}),
      rows::row<&all::failed_loads>({counter, "tier_failed_loads", "", "Reads that failed, or brought other bytes."}),
      rows::row<&all::refused_loads>({counter, "tier_refused_loads", "", "Records not read for want of room."}),
      rows::row<&all::num_erasing>({gauge, "tier_erasing", "", "Invalid records that are not erased yet."}),
      rows::row<&all::num_orphans>({gauge, "tier_orphans", "", "Records from before whose ancestors are unknown."}),
  };
}

}  // namespace detail

template <>
inline constexpr auto metrics_of<tier_statistics> = detail::tier_metrics();

static_assert(sizeof(tier_statistics) == metrics_of<tier_statistics>.size() * sizeof(std::int64_t),
              "every field has a row in its table");

}  // namespace pagedkv
