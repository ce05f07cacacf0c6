#pragma once

#include "../support/adapted_cache.hpp"
#include "slower_tiers.hpp"

#include <pagedkv/pagedkv.hpp>
#include <pagedkv/tier/remote_tier.hpp>
#include <pagedkv/tier/tiered_cache.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

// Kinds of caches with tiers, with one group or several. Their events are followed, and their copies fail.

namespace pagedkv::test {

/// Of all caches with tiers since a test began.
struct tier_coverage {
  std::int64_t host_hits = 0;
  std::int64_t slower_hits = 0;
  std::int64_t faults = 0;
};
inline tier_coverage covered;

/// The caches of one groups policy, for each locking policy and each list of tiers.
template <class Groups>
[[nodiscard]] std::vector<cache_kind> kinds_with_tiers();

/// A creation waits for what it loads, and takes it.
template <class Cache>
class adapted_cache_with_tiers final : public adapted_cache<Cache> {
  using base = adapted_cache<Cache>;
  using base::cache_;

 public:
  explicit adapted_cache_with_tiers(const cache_config& config)
      : adapted_cache_with_tiers(config, drawn_tiers{config.hash_seed}) {}
  ~adapted_cache_with_tiers() override {
    covered.host_hits += cache_.tier(0).hit_blocks;
    if constexpr (Cache::num_tiers > 1) {
      covered.slower_hits += cache_.tier(1).hit_blocks;
      covered.faults += cache_.tier(1).failed_loads + cache_.tier(1).failed_writes;
    }
  }

  result<admission> create_sequence(const token_run& prompt, const sequence_options& options) override {
    auto made = cache_.create_sequence(prompt, options);
    if (made && made->num_loading_tokens != 0) {
      cache_.wait(made->id);
      made->num_cached_tokens = cache_.settle(made->id).value();
    }
    return made;
  }
  result<void> release(sequence_id id, bool ended) override {
    cache_.run_transfers();
    return base::release(id, ended);
  }
  cache_statistics statistics() const override {
    auto taken = cache_.statistics();
    for (std::size_t tier = 0; tier < Cache::num_tiers; ++tier) {
      const auto num_tokens = const_cast<Cache&>(cache_).tier(tier).hit_tokens;
      taken.hit_tokens += num_tokens;
      taken.hit_blocks += num_tokens / cache_.config().block_size;
    }
    return taken;
  }

 private:
  adapted_cache_with_tiers(const cache_config& config, const drawn_tiers& drawn)
      : base(std::in_place, [&](cache_under_test& self) {
          return Cache(config, drawn.config, {drawn.num_host_records}, slower_of(config, drawn), host_allocator{},
                       failing_backend{self.copies_fail}, followed_events{&self.announced});
        }) {}

  [[nodiscard]] static typename Cache::slower_tiers_type slower_of([[maybe_unused]] const cache_config& config,
                                                                   [[maybe_unused]] const drawn_tiers& drawn) {
    if constexpr (Cache::num_tiers > 1) {
      const auto format = Cache::format_of(config, "");
      if constexpr (tier_with_places<std::tuple_element_t<0, typename Cache::slower_tiers_type>>) {
        return {make_tier_with_places(drawn, format)};
      } else {
        auto in_parts = remote_tier_config{};
        in_parts.max_value_bytes = drawn.in_parts ? format.record_bytes() / 2 : format.record_bytes();
        const auto store = std::make_shared<fake_store>(drawn.wrong, drawn.seed);
        return {remote_tier{fake_client{store}, format, in_parts}};
      }
    } else {
      return {};
    }
  }
};

template <class Groups, class Locking, class Eviction, class... Slower>
[[nodiscard]] cache_kind make_kind_with_tiers() {
  using cache =
      kv_cache<float32, Locking, Eviction, Groups, failing_backend, followed_events, host_tier<>, Slower...>;
  auto kind = describe_kind<float32, Locking, Eviction, nhd_layer_major>();
  kind.name += ", host";
  ((kind.name += ", " + std::string(Slower::name)), ...);
  kind.has_groups = cache::layers_differ;
  kind.has_tiers = kind.announces = true;
  kind.make = [](const cache_config& config) -> std::unique_ptr<cache_under_test> {
    return std::make_unique<adapted_cache_with_tiers<cache>>(config);
  };
  return kind;
}

/// Host memory alone, before a file, and before a remote store. Most of a cache's code depends on whether there are
/// slower tiers, and not on which.
template <class Groups, class Locking, class Eviction, class EvictionBeforeSlower>
void add_kinds_with_tiers(std::vector<cache_kind>& kinds) {
  kinds.push_back(make_kind_with_tiers<Groups, Locking, Eviction>());
  kinds.push_back(make_kind_with_tiers<Groups, Locking, EvictionBeforeSlower, any_tier_with_places>());
  kinds.push_back(make_kind_with_tiers<Groups, Locking, EvictionBeforeSlower, remote_tier<fake_client>>());
}

}  // namespace pagedkv::test
