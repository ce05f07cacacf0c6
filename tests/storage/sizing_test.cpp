#include <pagedkv/policy/layout/all.hpp>
#include <pagedkv/storage/sizing.hpp>

#include "../support/messages.hpp"
#include "../support/printing.hpp"

#include <catch2/catch_test_macros.hpp>

#include <string>

using namespace pagedkv;
using namespace pagedkv::test;

namespace {

constexpr auto gibibyte = std::int64_t{1} << 30;
constexpr auto largest = std::int64_t{std::numeric_limits<std::int32_t>::max()};
constexpr element_size element_sizes[] = {{4, 0}, {2, 0}, {1, 4}};

template <class Layout>
std::int64_t storage_bytes(const cache_config& config, element_size element) {
  return plan_storage<Layout>(config, element).value().bytes;
}

}  // namespace

TEST_CASE("a memory budget is used up to less than one block", "[sizing]") {
  for (const auto& shape : {small_model, medium_model, large_model, model_shape{3, 5, 7}}) {
    for (const auto element : element_sizes) {
      for (const auto block_size : {1, 5, 16, 256}) {
        for (const auto budget : {gibibyte, 24 * gibibyte + 12'345, 640 * gibibyte}) {
          auto config = config_for_memory_budget(shape, element, budget, block_size);
          REQUIRE(config);
          REQUIRE(validate(*config));
          CHECK(config->block_size == block_size);
          CHECK(config->num_layers == shape.num_layers);
          CHECK(config->num_kv_heads == shape.num_kv_heads);
          CHECK(config->head_dim == shape.head_dim);
          CHECK(storage_bytes<nhd_layer_major>(*config, element) <= budget);
          CHECK(storage_bytes<hnd_block_major>(*config, element) <= budget);
          ++config->num_blocks;
          CHECK(storage_bytes<nhd_layer_major>(*config, element) > budget);
          CHECK(storage_bytes<hnd_block_major>(*config, element) > budget);
        }
      }
    }
  }
}

TEST_CASE("a budget of exactly n blocks gives n, one byte less n - 1", "[sizing]") {
  auto one = cache_config{};
  one.num_blocks = 1;
  one.num_layers = medium_model.num_layers;
  one.num_kv_heads = medium_model.num_kv_heads;
  one.head_dim = medium_model.head_dim;
  const auto block = storage_bytes<nhd_layer_major>(one, {2, 0});
  CHECK(block == 2 * 2 * 16 * 8 * 128 * 32);
  CHECK(config_for_memory_budget(medium_model, {2, 0}, 1000 * block)->num_blocks == 1000);
  CHECK(config_for_memory_budget(medium_model, {2, 0}, 1000 * block - 1)->num_blocks == 999);
  CHECK(config_for_memory_budget(medium_model, {2, 0}, block)->num_blocks == 1);

  const auto too_small = config_for_memory_budget(medium_model, {2, 0}, block - 1);
  CHECK(said(too_small) == "invalid argument: memory budget in bytes is 2097151, limit 2097152");
}

TEST_CASE("a budget of groups is used up to less than one block", "[sizing]") {
  auto model = cache_config{.block_size = 32, .num_blocks = 7, .max_blocks = 3};
  model.groups = presets::gemma_3_27b;
  const auto budget = 3 * gibibyte + 1;
  const auto config = config_for_memory_budget(model, {2, 0}, budget).value();
  CHECK(config.groups.size() == model.groups.size());
  CHECK(config.max_blocks == 0);
  const auto block = plan_memory(model.groups, {2, 0}, 32).value().block_bytes;
  CHECK(config.num_blocks == budget / block);
  CHECK(said(config_for_memory_budget(model, {2, 0}, block - 1)) ==
        invalid("memory budget in bytes is " + std::to_string(block - 1) + ", limit " + std::to_string(block)));
  CHECK(said(config_for_memory_budget(model, {0, 0}, budget)) == invalid("element_size.bytes is 0, limit 1"));
  model.block_size = 0;
  CHECK(said(config_for_memory_budget(model, {2, 0}, budget)) == invalid("cache_config.block_size is 0, limit 1"));
}

TEST_CASE("a budget of a configuration without groups is that of its shape", "[sizing]") {
  const auto shape = config_for_memory_budget(small_model, {1, 4}, gibibyte, 8).value();
  auto model = shape;
  model.num_blocks = -1;
  model.hash_seed = 5;
  const auto config = config_for_memory_budget(model, {1, 4}, gibibyte).value();
  CHECK(config.num_blocks == shape.num_blocks);
  CHECK(config.hash_seed == 5);
  CHECK(config_for_memory_budget({.num_layers = 2}, {2, 0}, gibibyte)->num_layers == 2);
}

TEST_CASE("a budget that cannot be used is refused", "[sizing]") {
  for (const auto bytes : {std::int64_t{0}, std::int64_t{-1}, std::numeric_limits<std::int64_t>::min()}) {
    const auto config = config_for_memory_budget(small_model, {2, 0}, bytes);
    REQUIRE_FALSE(config);
    CHECK(config.error().code == error_code::invalid_argument);
    CHECK(config.error().value == bytes);
  }
  for (const auto element : {element_size{}, element_size{-2, 0}, element_size{1, -4}}) {
    const auto config = config_for_memory_budget(small_model, element, 1'000'000);
    REQUIRE_FALSE(config);
    CHECK(config.error().code == error_code::invalid_argument);
  }
  const auto tiny = model_shape{1, 1, 1};
  CHECK(config_for_memory_budget(tiny, {1, 4}, 256 * largest, 1)->num_blocks == largest);
  const auto too_many = config_for_memory_budget(tiny, {1, 4}, 256 * (largest + 1), 1);
  REQUIRE_FALSE(too_many);
  CHECK(too_many.error().code == error_code::size_overflow);
  CHECK(too_many.error().value == largest + 1);

  const auto deep = model_shape{static_cast<std::int32_t>(largest), 1 << 15, 1 << 15};
  const auto overflow = config_for_memory_budget(deep, {8, 0}, gibibyte, 1);
  REQUIRE_FALSE(overflow);
  CHECK(overflow.error().code == error_code::size_overflow);
}

TEST_CASE("a context length takes whole blocks per sequence", "[sizing]") {
  const auto exact = config_for_context_length(medium_model, 8192, 32);
  REQUIRE(exact);
  CHECK(exact->num_blocks == 512 * 32);
  CHECK(exact->max_sequences == 32);
  CHECK(validate(*exact));
  CHECK(config_for_context_length(medium_model, 8193, 32)->num_blocks == 513 * 32);
  CHECK(config_for_context_length(medium_model, 1, 1)->num_blocks == 1);
  CHECK(config_for_context_length(large_model, 131'072, 7, 5)->num_blocks == 26'215 * 7);
  CHECK(config_for_context_length(large_model, largest, 1, 1)->num_blocks == largest);
}

TEST_CASE("a context length that cannot be held is refused", "[sizing]") {
  for (const auto tokens : {std::int64_t{0}, std::int64_t{-5}}) {
    const auto config = config_for_context_length(small_model, tokens, 1);
    CHECK(said(config) == invalid("context length in tokens is " + std::to_string(tokens) + ", limit 1"));
  }
  CHECK(said(config_for_context_length(small_model, 100, 0)) == invalid("number of sequences is 0, limit 1"));

  const auto too_many = config_for_context_length(small_model, largest + 1, 1, 1);
  REQUIRE_FALSE(too_many);
  CHECK(too_many.error().code == error_code::size_overflow);
  CHECK(too_many.error().value == largest + 1);

  CHECK(said(config_for_context_length(small_model, std::numeric_limits<std::int64_t>::max(), 2, 1)) ==
        "size overflow: context length in tokens whose blocks 63 bits do not count is 9223372036854775807");
}

TEST_CASE("a shape or block size that is not positive is refused by name", "[sizing]") {
  auto shape = small_model;
  shape.head_dim = 0;
  CHECK(config_for_memory_budget(shape, {2, 0}, gibibyte).error().subject == std::string{"cache_config.head_dim"});
  CHECK(config_for_context_length(shape, 10, 10).error().subject == std::string{"cache_config.head_dim"});
  CHECK(config_for_memory_budget(small_model, {2, 0}, gibibyte, 0).error().subject ==
        std::string{"cache_config.block_size"});
  CHECK(config_for_context_length(small_model, 10, 10, -1).error().subject == std::string{"cache_config.block_size"});
}
