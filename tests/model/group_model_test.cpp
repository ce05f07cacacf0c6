#include "../support/everyday_seed.hpp"
#include "../support/model_runs.hpp"
#include "group_kinds.hpp"
#include "group_lists.hpp"

#include <pagedkv/policy/eviction/all.hpp>
#include <pagedkv/policy/layout/all.hpp>
#include <pagedkv/policy/locking/sharded_mutex.hpp>

#include <catch2/catch_get_random_seed.hpp>
#include <catch2/catch_test_macros.hpp>

#include <cstdint>
#include <span>
#include <vector>

using namespace pagedkv;
using namespace pagedkv::test;
using namespace pagedkv::test::lists;

namespace {

/// The groups of a list that a layout in pieces takes, with sizes that whole pieces fill.
[[nodiscard]] group_list in_pieces(const group_list& list, std::int32_t piece) {
  auto groups = std::vector<group_config>{};
  for (auto group : list) {
    group.key_dim = group.value_dim = group.holds_tokens() ? piece : 0;
    if (group.kind != group_kind::latent) {
      groups.push_back(group);
    }
  }
  return group_list{std::span<const group_config>{groups}};
}

/// Every policy that evicts, under one of the locking policies, and none.
[[nodiscard]] std::vector<cache_kind> all_group_kinds() {
  return {make_group_kind<single_thread, nhd_layer_major, lru>(),
          make_group_kind<single_thread, nhd_layer_major, sieve>(),
          make_group_kind<single_thread, nhd_layer_major, hit_density>(),
          make_group_kind<single_thread, nhd_layer_major, priority>(),
          make_group_kind<single_thread, nhd_layer_major, tiny_lfu>(),
          make_group_kind<single_thread, nhd_layer_major, s3_fifo>(),
          make_group_kind<rw_lock, hnd_block_major, lru>(),
          make_group_kind<rw_lock, hnd_block_major, arc>(),
          make_group_kind<rw_lock, hnd_block_major, clock_sweep>(),
          make_group_kind<rw_lock, hnd_block_major, fifo>(),
          make_group_kind<rw_lock, hnd_block_major, lfu>(),
          make_group_kind<rw_lock, hnd_block_major, slru>(),
          make_group_kind<single_thread, transposed_layer_major, lru>(),
          make_group_kind<rw_lock, shuffled_block_major, clock_sweep>(),
          make_group_kind_with_runs<single_thread, lru>(),
          make_group_kind_with_runs<rw_lock, sieve>(),
          make_group_kind<sharded_mutex, nhd_layer_major, lru>(),
          make_group_kind<sharded_mutex, hnd_block_major, hit_density>(),
          make_group_kind_without_eviction<single_thread>(),
          make_group_kind_without_eviction<sharded_mutex>()};
}

/// A run that met nothing interesting has tested nothing. Another seed than that of every day may miss what is rare.
void check_group_coverage(const model_coverage& sum, const cache_kind& kind) {
  if (!has_everyday_seed()) {
    return;
  }
  INFO(kind.name);
  CHECK(sum.exact_hits > 0);
  CHECK(sum.moves > 0);
  CHECK((sum.evicted_ahead > 0) == kind.evicts);
  CHECK((sum.statistics.evictions > 0) == kind.evicts);
  CHECK(sum.statistics.refusals > 0);
}

/// Rarer events, of all kinds of cache together.
void check_group_coverage(const model_coverage& sum) {
  if (!has_everyday_seed()) {
    return;
  }
  CHECK(sum.shortened_hits > 0);
  CHECK(sum.keyed_hits > 0);
  CHECK(sum.moves_with_states > 0);
  CHECK(sum.growths > 0);
  CHECK(sum.shrinkings > 0);
  CHECK(sum.invalidated > 0);
  CHECK(sum.withdrawn > 0);
  CHECK(sum.failed_copies > 0);
  CHECK(sum.revivals_checked > 0);
  CHECK(sum.chunks > 0);
  CHECK(sum.batch_entries > 0);
  CHECK(sum.batch_failures > 0);
  CHECK(sum.skipped_blocks > 0);
  CHECK(sum.refused_cuts > 0);
  CHECK(sum.statistics.hit_blocks > 0);
  CHECK(sum.statistics.copies > 0);
}

}  // namespace

TEST_CASE("caches with groups behave as the model does", "[group_cache][model][random]") {
  auto seed = std::uint64_t{Catch::getSeed()};  // of the next run: no two share one, so that rare events are spread
  const auto num_runs = testing::scaled<std::uint64_t>(8, 100);
  auto total = model_coverage{};
  for (const auto& kind : all_group_kinds()) {
    auto sum = model_coverage{};
    for (const auto& [name, listed] : named_group_lists()) {
      const auto groups = kind.piece == 1 ? listed : in_pieces(listed, kind.piece);
      if (groups.empty()) {
        continue;
      }
      for (auto run = std::uint64_t{0}; run < num_runs; ++run, ++seed) {
        const auto config = draw_config(groups, kind.piece, seed);
        sum.add(run_random(kind, config, name, seed, 250));
      }
    }
    check_group_coverage(sum, kind);
    total.add(sum);
  }
  check_group_coverage(total);
}
