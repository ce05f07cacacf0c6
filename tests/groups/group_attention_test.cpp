#include <pagedkv/host/attend.hpp>
#include <pagedkv/pagedkv.hpp>

#include "../support/printing.hpp"

#include <catch2/catch_get_random_seed.hpp>
#include <catch2/catch_test_macros.hpp>

#include <algorithm>
#include <cmath>
#include <random>
#include <span>
#include <tuple>
#include <vector>

using namespace pagedkv;

namespace {

constexpr auto num_heads = 4;
constexpr auto dim = 64;
constexpr auto stride = std::int64_t{num_heads} * dim;

/// A cache in which a group of full attention and one with a window hold the same K/V, where the second holds any.
class twin_groups {
 public:
  /// `num_layers` are those of the windows: so blocks of the groups may hold different numbers of tokens.
  twin_groups(std::int32_t window, std::int32_t block_size, std::int32_t num_layers)
      : cache(config(window, block_size, num_layers)) {}

  sequence_id create(std::size_t length) {
    const auto made = cache.create_sequence(std::vector<token>(length, static_cast<token>(length))).value();
    write(made.id, 0, static_cast<std::int64_t>(length));
    commit(made.id);
    return made.id;
  }
  /// A token with its K/V, not committed: windows are still where its query needs them.
  void append(sequence_id id) {
    const auto length = cache.describe(id)->num_tokens;
    REQUIRE(cache.append(id, static_cast<token>(length)));
    write(id, length, length + 1);
  }
  void commit(sequence_id id) { REQUIRE(cache.commit(id, cache.describe(id)->num_tokens)); }

  [[nodiscard]] std::vector<float> attend(std::size_t group, std::span<const sequence_id> ids,
                                          const std::vector<float>& queries) {
    auto batch = compressed_batch{8, 1000};
    REQUIRE(cache.update(batch, ids, group));
    auto output = std::vector<float>(queries.size());
    const auto window = static_cast<std::int32_t>(cache.config().groups[1].window);
    const auto rows = attention_batch{batch.indptr(), batch.indices(), batch.last_block_len(), {}};
    const auto from = contiguous_rows(queries, num_heads, dim);
    const auto to = attention_output<float>{contiguous_rows(output, num_heads, dim)};
    REQUIRE(cache.attend(0, rows, from, to, {.window = window}, {}, group));
    CHECK(cache.attend(0, rows, from, to, {}, {}, 2).error().code == error_code::invalid_argument);
    return output;
  }

  std::vector<float> draw(std::size_t size) {
    auto numbers = std::vector<float>(size);
    auto number = std::uniform_real_distribution<float>{-1, 1};
    std::ranges::generate(numbers, [&] { return number(random_); });
    return numbers;
  }

  group_cache<float32> cache;

 private:
  static cache_config config(std::int32_t window, std::int32_t block_size, std::int32_t num_layers) {
    auto sizes = cache_config{.block_size = block_size, .num_blocks = 3200 / block_size, .hash_seed = 1};
    const auto full = group_config{.num_kv_heads = 2, .key_dim = dim, .value_dim = dim};
    auto sliding = full;
    sliding.kind = group_kind::window;
    sliding.num_layers = num_layers;
    sliding.window = window;
    sizes.groups = {full, sliding};
    return sizes;
  }

  void write(sequence_id id, std::int64_t first, std::int64_t end) {
    const auto rows = static_cast<std::size_t>(end - first);
    const auto keys = draw(rows * 2 * dim);
    const auto values = draw(rows * 2 * dim);
    for (auto group = std::size_t{0}; group < 2; ++group) {
      auto slots = std::vector<slot>(rows);
      REQUIRE(cache.slot_mapping(id, first, slots, group));
      REQUIRE(cache.write(0, slots, contiguous_rows(keys, 2, dim), contiguous_rows(values, 2, dim), {}, group));
    }
  }

  std::mt19937 random_{Catch::getSeed()};
};

/// The largest difference between attention over a window's own table and over a table of all tokens.
float worst_difference(twin_groups& twins, std::span<const sequence_id> ids) {
  const auto queries = twins.draw(ids.size() * stride);
  const auto whole = twins.attend(0, ids, queries);
  const auto windowed = twins.attend(1, ids, queries);
  auto worst = 0.0f;
  for (std::size_t i = 0; i < whole.size(); ++i) {
    worst = std::max(worst, std::abs(whole[i] - windowed[i]));
  }
  return worst;
}

}  // namespace

TEST_CASE("attention over a window's table sees what it sees over all blocks", "[group_cache][random]") {
  for (const auto& [window, block_size, num_layers] : {std::tuple{24, 16, 3}, {24, 1, 1}, {17, 1, 1}, {2, 1, 1}, {1, 1, 1}}) {
    CAPTURE(window, block_size, num_layers);
    auto twins = twin_groups{window, block_size, num_layers};
    const auto& plan = twins.cache.plan().groups;
    REQUIRE((plan[0].block_size == plan[1].block_size) == (num_layers == 1));
    const auto ids = std::vector{twins.create(5), twins.create(24), twins.create(100), twins.create(217)};
    for (auto step = 0; step < 40; ++step) {
      std::ranges::for_each(ids, [&](sequence_id id) { twins.append(id); });
      REQUIRE(worst_difference(twins, ids) < 1e-5f);
      std::ranges::for_each(ids, [&](sequence_id id) { twins.commit(id); });
    }
    CHECK(twins.cache.num_skipped_tokens(ids[3], 1).value() > 200);
  }
}

TEST_CASE("a window's table holds the tokens that attention with this window sees, and no other", "[group_cache]") {
  for (const auto window : {1, 2, 17, 24}) {
    CAPTURE(window);
    auto twins = twin_groups{window, 1, 1};
    REQUIRE(twins.cache.plan().groups[1].block_size == 1);
    const auto ids = std::vector{twins.create(3)};
    auto batch = compressed_batch{1, 100};
    for (auto length = 4; length < 60; ++length) {
      twins.append(ids.front());
      REQUIRE(twins.cache.update(batch, ids, 1));
      REQUIRE(std::ssize(batch.indices()) == std::min(length, window));
      twins.commit(ids.front());
    }
  }
}
