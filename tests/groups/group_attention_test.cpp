#include <pagedkv/host/attend.hpp>
#include <pagedkv/pagedkv.hpp>

#include "../support/printing.hpp"

#include <catch2/catch_get_random_seed.hpp>
#include <catch2/catch_test_macros.hpp>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

using namespace pagedkv;

namespace {

constexpr auto num_heads = 4;
constexpr auto dim = 64;
constexpr auto window = 24;
constexpr auto stride = std::int64_t{num_heads} * dim;

/// A cache in which a group of full attention and one with a window hold the same K/V, where the second holds any.
class twin_groups {
 public:
  twin_groups() : cache(config()) {}

  sequence_id create(std::size_t length) {
    const auto made = cache.create_sequence(std::vector<token>(length, static_cast<token>(length))).value();
    write(made.id, 0, static_cast<std::int64_t>(length));
    return made.id;
  }
  void append(sequence_id id) {
    const auto length = cache.describe(id)->num_tokens;
    REQUIRE(cache.append(id, 1));
    write(id, length, length + 1);
  }

  [[nodiscard]] std::vector<float> attend(std::size_t group, std::span<const sequence_id> ids,
                                          const std::vector<float>& queries) {
    auto batch = compressed_batch{8, 200};
    REQUIRE(cache.update(batch, ids, group));
    auto output = std::vector<float>(queries.size());
    REQUIRE(cache.backend().attend<float32>(
        cache.view(group), 0, {batch.indptr(), batch.indices(), batch.last_block_len(), {}},
        {{queries.data(), stride, dim}, num_heads}, {{output.data(), stride, dim}, nullptr}, {.window = window},
        host_backend::stream{}));
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
  static cache_config config() {
    auto sizes = cache_config{.block_size = 16, .num_blocks = 200};
    const auto full = group_config{.num_kv_heads = 2, .key_dim = dim, .value_dim = dim};
    auto sliding = full;
    sliding.kind = group_kind::window;
    sliding.num_layers = 3;  // so that blocks of the groups hold different numbers of tokens
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
    REQUIRE(cache.commit(id, end));
  }

  std::mt19937 random_{Catch::getSeed()};
};

}  // namespace

TEST_CASE("attention over a window's table sees what it sees over all blocks", "[group_cache][random]") {
  auto twins = twin_groups{};
  REQUIRE(twins.cache.plan().groups[0].block_size != twins.cache.plan().groups[1].block_size);
  const auto ids = std::vector{twins.create(5), twins.create(24), twins.create(100), twins.create(217)};
  for (auto step = 0; step < 40; ++step) {
    const auto queries = twins.draw(ids.size() * stride);
    const auto whole = twins.attend(0, ids, queries);
    const auto windowed = twins.attend(1, ids, queries);
    auto worst = 0.0f;
    for (std::size_t i = 0; i < whole.size(); ++i) {
      worst = std::max(worst, std::abs(whole[i] - windowed[i]));
    }
    REQUIRE(worst < 1e-5f);
    for (const auto id : ids) {
      twins.append(id);
    }
  }
  CHECK(twins.cache.num_skipped_tokens(ids[3], 1).value() > 200);
}
