// Caches with groups and tiers beside the model: what was evicted is found again, whole and right.

#include "../tier/fake_tiers.hpp"
#include "group_kinds.hpp"
#include "group_lists.hpp"

#include "../support/model_runs.hpp"

#include <pagedkv/policy/eviction/sieve.hpp>
#include <pagedkv/policy/locking/sharded_mutex.hpp>
#include <pagedkv/tier/remote_tier.hpp>
#include <pagedkv/tier/tiered_cache.hpp>

#include <catch2/catch_get_random_seed.hpp>
#include <catch2/catch_test_macros.hpp>

#include <cstdint>
#include <memory>
#include <string>
#include <tuple>

using namespace pagedkv;
using namespace pagedkv::test;
using namespace pagedkv::test::lists;

namespace {

/// Hits of tiers, of all runs.
struct tier_coverage {
  std::int64_t host = 0;
  std::int64_t placed = 0;
  std::int64_t remote = 0;
  std::int64_t faults = 0;
};
tier_coverage covered;

constexpr auto num_slower = 400;  // records

/// How the tiers of a run are chosen, from the seed of its configuration.
[[nodiscard]] tier_config draw_tiers(const cache_config& config) {
  auto tiers = tier_config{};
  tiers.threads = false;
  tiers.known_records = num_slower;
  tiers.write = static_cast<write_policy>(config.hash_seed % 3);
  tiers.exclusive = tiers.write == write_policy::on_eviction && config.hash_seed % 2 == 0;
  return tiers;
}
[[nodiscard]] std::int32_t draw_host_records(const cache_config& config) {
  return static_cast<std::int32_t>(4 + config.hash_seed / 3 % 5 * 10);
}
[[nodiscard]] fake_store::fault draw_fault(const cache_config& config) {
  return config.hash_seed / 6 % 2 == 0 ? fake_store::fault::none
                                       : static_cast<fake_store::fault>(config.hash_seed / 12 % 7);
}

/// A creation waits for what it loads, and takes it.
template <class Cache>
class adapted_cache_with_tiers final : public adapted_cache<Cache> {
  using base = adapted_cache<Cache>;
  using base::cache_;

 public:
  explicit adapted_cache_with_tiers(const cache_config& config)
      : base(std::in_place, [&](cache_under_test& self) {
          return Cache(config, draw_tiers(config), {draw_host_records(config)}, slower_of(config), host_allocator{},
                       failing_backend{self.copies_fail}, followed_events{&self.announced});
        }) {}
  ~adapted_cache_with_tiers() override {
    covered.host += cache_.tier(0).hit_blocks;
    if constexpr (Cache::num_tiers > 1) {
      const auto is_remote = Cache::tier_names[1] == "remote_tier";
      (is_remote ? covered.remote : covered.placed) += cache_.tier(1).hit_blocks;
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
  [[nodiscard]] static typename Cache::slower_tiers_type slower_of([[maybe_unused]] const cache_config& config) {
    if constexpr (Cache::num_tiers > 1) {
      const auto store = std::make_shared<fake_store>(draw_fault(config), static_cast<std::uint32_t>(config.hash_seed));
      const auto format = Cache::format_of(config, "");
      if constexpr (tier_with_places<std::tuple_element_t<0, typename Cache::slower_tiers_type>>) {
        return {placed_tier{store, num_slower, format}};
      } else {
        auto in_parts = remote_tier_config{};
        in_parts.max_value_bytes = config.hash_seed % 5 == 0 ? format.record_bytes() / 2 : format.record_bytes();
        return {remote_tier{fake_client{store}, format, in_parts}};
      }
    } else {
      return {};
    }
  }
};

template <class Locking, class Eviction, class... Slower>
[[nodiscard]] cache_kind make_group_kind_with_tiers() {
  auto kind = describe_group_kind<Locking, Eviction>();
  kind.name += ", host";
  ((kind.name += ", " + std::string(Slower::name)), ...);
  kind.has_tiers = kind.announces = true;
  kind.make = [](const cache_config& config) -> std::unique_ptr<cache_under_test> {
    using cache =
        kv_cache<float32, Locking, Eviction, layer_groups, failing_backend, followed_events, host_tier<>, Slower...>;
    return std::make_unique<adapted_cache_with_tiers<cache>>(config);
  };
  return kind;
}

}  // namespace

TEST_CASE("caches with groups and tiers behave as the model of groups does", "[group_cache][tier][model][random]") {
  auto seed = std::uint64_t{Catch::getSeed()};
  const auto num_runs = testing::scaled<std::uint64_t>(12, 100);
  auto total = model_coverage{};
  covered = {};
  for (const auto& kind : {make_group_kind_with_tiers<single_thread, lru>(),
                           make_group_kind_with_tiers<single_thread, sieve, placed_tier>(),
                           make_group_kind_with_tiers<sharded_mutex, lru, remote_tier<fake_client>>()}) {
    for (const auto& [name, groups] : all_groups()) {
      for (auto run = std::uint64_t{0}; run < num_runs; ++run, ++seed) {
        total.add(run_random(kind, draw_config(groups, 1, seed), name, seed, 250));
      }
    }
  }
  CHECK(total.exact_hits > 0);
  CHECK(total.moves > 0);
  CHECK(total.invalidated > 0);
  CHECK(total.withdrawn > 0);
  CHECK(total.failed_copies > 0);
  CHECK(covered.host > 0);
  CHECK(covered.placed > 0);
  CHECK(covered.remote > 0);
  CHECK(covered.faults > 0);
}
