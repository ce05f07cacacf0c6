#include "../support/full_numbers.hpp"
#include "../support/group_model.hpp"
#include "../support/model_runs.hpp"

#include <pagedkv/policy/eviction/all.hpp>
#include <pagedkv/policy/layout/hnd_block_major.hpp>
#include <pagedkv/policy/layout/shuffled_block_major.hpp>
#include <pagedkv/policy/layout/transposed_layer_major.hpp>
#include <pagedkv/policy/locking/sharded_mutex.hpp>
#include <pagedkv/storage/presets.hpp>

#include <catch2/catch_get_random_seed.hpp>
#include <catch2/catch_test_macros.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

using namespace pagedkv;
using namespace pagedkv::test;

namespace {

/// The groups of a preset, with few and small layers and short windows.
[[nodiscard]] group_list small(const group_list& preset) {
  auto groups = std::vector<group_config>(preset.begin(), preset.end());
  for (auto& group : groups) {
    group.num_layers = std::min(group.num_layers, group.kind == group_kind::full ? 1 : 3);
    group.num_kv_heads = std::min(group.num_kv_heads, 2);
    group.key_dim = std::min(group.key_dim, 4);
    group.value_dim = std::min(group.value_dim, 3);
    group.window = group.window == 0 ? 0 : 5 + group.window % 13;
    group.num_sinks = group.num_sinks == 0 ? 0 : 3;
    group.state_bytes = std::min<std::int64_t>(group.state_bytes, 48);
  }
  return group_list{std::span<const group_config>{groups}};
}

constexpr auto full = group_config{.num_layers = 2, .key_dim = 3, .value_dim = 3};
constexpr auto with_sinks = group_config{
    .kind = group_kind::window, .num_layers = 4, .key_dim = 3, .value_dim = 5, .window = 12, .num_sinks = 5};
constexpr auto chunked =
    group_config{.kind = group_kind::chunked, .num_kv_heads = 3, .key_dim = 2, .value_dim = 2, .window = 20};
constexpr auto latent = group_config{.kind = group_kind::latent, .num_layers = 3, .key_dim = 8, .value_dim = 5};
constexpr auto state = group_config{.kind = group_kind::state, .num_layers = 2, .num_kv_heads = 3, .state_bytes = 40};

[[nodiscard]] std::vector<std::pair<std::string, group_list>> all_groups() {
  return {{"Llama 3.1", small(presets::llama_3_1_8b)},
          {"Gemma 3", small(presets::gemma_3_27b)},
          {"gpt-oss", small(presets::gpt_oss_120b)},
          {"DeepSeek V3", small(presets::deepseek_v3)},
          {"Qwen3-Next", small(presets::qwen3_next_80b)},
          {"Jamba 1.5", small(presets::jamba_1_5_large)},
          {"Llama 4", small(presets::llama_4_scout)},
          {"sinks", {full, with_sinks}},
          {"every kind", {with_sinks, latent, full, chunked, state}}};
}

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
[[nodiscard]] std::vector<group_kind_under_test> all_kinds() {
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

/// Pools from those in which one prompt hardly fits to those that evict nothing.
[[nodiscard]] cache_config draw_config(const group_list& groups, std::int32_t piece, std::uint64_t seed) {
  auto random = std::mt19937_64{seed};
  const auto between = [&](int low, int high) { return std::uniform_int_distribution{low, high}(random); };
  auto config = cache_config{};
  config.groups = groups;
  config.block_size = std::max(piece, std::vector{1, 4, 8}[static_cast<std::size_t>(between(0, 2))]);
  config.max_sequences = between(1, 8);
  config.hash_seed = seed + 1;
  const auto plan = plan_memory(groups, size_of_element<float32>, config.block_size).value();
  const auto num_tokens = between(0, 3) == 0 ? between(500, 1000) : between(30, 200);
  for (const auto& group : plan.groups) {
    config.num_blocks += group.blocks_per_state * between(1, 6);
    config.num_blocks += group.block_size == 0 ? 0 : num_tokens / group.block_size + 1;
  }
  config.max_blocks = config.num_blocks + between(0, config.num_blocks);
  return config;
}

/// A run that met nothing interesting has tested nothing.
void check_coverage(const group_coverage& sum, const group_kind_under_test& kind) {
  INFO(kind.name);
  CHECK(sum.exact_hits > 0);
  CHECK(sum.moves > 0);
  CHECK((sum.evicted_ahead > 0) == kind.evicts);
  CHECK((sum.statistics.evictions > 0) == kind.evicts);
  CHECK(sum.statistics.refusals > 0);
}

/// Rarer events, of all kinds of cache together.
void check_coverage(const group_coverage& sum) {
  CHECK(sum.shortened_hits > 0);
  CHECK(sum.keyed_hits > 0);
  CHECK(sum.moves_with_states > 0);
  CHECK(sum.growths > 0);
  CHECK(sum.shrinkings > 0);
  CHECK(sum.invalidated > 0);
  CHECK(sum.failed_copies > 0);
  CHECK(sum.batch_entries > 0);
  CHECK(sum.skipped_blocks > 0);
  CHECK(sum.refused_cuts > 0);
  CHECK(sum.statistics.hit_blocks > 0);
  CHECK(sum.statistics.copies > 0);
}

}  // namespace

TEST_CASE("caches with groups behave as the model does", "[group_cache][model][random]") {
  auto seed = std::uint64_t{Catch::getSeed()};  // of the next run: no two share one, so that rare events are spread
  const auto num_runs = testing::scaled<std::uint64_t>(8, 100);
  auto total = group_coverage{};
  for (const auto& kind : all_kinds()) {
    auto sum = group_coverage{};
    for (const auto& [name, listed] : all_groups()) {
      const auto groups = kind.piece == 1 ? listed : in_pieces(listed, kind.piece);
      if (groups.empty()) {
        continue;
      }
      for (auto run = std::uint64_t{0}; run < num_runs; ++run, ++seed) {
        const auto config = draw_config(groups, kind.piece, seed);
        sum.add(run_random<group_model>(kind, config, name, seed, 250));
      }
    }
    check_coverage(sum, kind);
    total.add(sum);
  }
  check_coverage(total);
}
