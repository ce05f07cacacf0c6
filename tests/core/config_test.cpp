#include <pagedkv/core/config.hpp>

#include "../support/printing.hpp"

#include <catch2/catch_test_macros.hpp>

#include <string>

using namespace pagedkv;

namespace {

constexpr auto largest = std::numeric_limits<std::int32_t>::max();

cache_config usable() {
  auto config = cache_config{};
  config.num_blocks = 100;
  return config;
}

}  // namespace

TEST_CASE("a usable configuration is valid", "[config]") {
  CHECK(validate(usable()));

  auto config = usable();
  config.num_blocks = largest;
  config.block_size = 256;
  config.num_layers = largest;
  config.max_sequences = largest;
  CHECK(validate(config));
}

TEST_CASE("every field has to be positive, and the error names the first that is not", "[config]") {
  struct field {
    std::int32_t cache_config::* member;
    const char* name;
  };
  const field fields[] = {
      {&cache_config::block_size, "cache_config.block_size"},
      {&cache_config::num_blocks, "cache_config.num_blocks"},
      {&cache_config::num_layers, "cache_config.num_layers"},
      {&cache_config::num_kv_heads, "cache_config.num_kv_heads"},
      {&cache_config::head_dim, "cache_config.head_dim"},
      {&cache_config::max_sequences, "cache_config.max_sequences"},
  };
  for (const auto& [member, name] : fields) {
    for (const auto value : {0, -1, std::numeric_limits<std::int32_t>::min()}) {
      auto config = usable();
      config.*member = value;
      const auto valid = validate(config);
      INFO(name << " = " << value);
      REQUIRE_FALSE(valid);
      CHECK(valid.error().code == error_code::invalid_argument);
      CHECK(valid.error().subject == std::string{name});
      CHECK(valid.error().value == value);
      CHECK(valid.error().message().find(std::string{name} + " is " + std::to_string(value)) != std::string::npos);
    }
  }
  CHECK(validate(cache_config{}).error().subject == std::string{"cache_config.num_blocks"});
}

TEST_CASE("a pool may grow to max_blocks, which is num_blocks unless given", "[config]") {
  auto config = usable();
  config.num_blocks = 10;
  CHECK(config.capacity() == 10);
  config.max_blocks = 11;
  CHECK(validate(config));
  CHECK(config.capacity() == 11);
  for (const auto value : {9, 1, -1}) {
    config.max_blocks = value;
    const auto valid = validate(config);
    REQUIRE_FALSE(valid);
    CHECK(valid.error().subject == std::string{"cache_config.max_blocks"});
    CHECK(valid.error().limit == 10);
  }
}

TEST_CASE("K and V of one layer of one block are at most what an int32 indexes", "[config]") {
  auto config = usable();
  config.block_size = 1 << 15;
  config.num_kv_heads = 1 << 10;
  config.head_dim = 31;
  CHECK(validate(config));

  config.head_dim = 32;
  auto valid = validate(config);
  REQUIRE_FALSE(valid);
  CHECK(valid.error().code == error_code::size_overflow);
  CHECK(valid.error().value == std::int64_t{1} << 31);
  CHECK(valid.error().limit == largest);

  config.num_kv_heads = 1 << 16;
  config.head_dim = 1;
  valid = validate(config);
  REQUIRE_FALSE(valid);
  CHECK(valid.error().code == error_code::size_overflow);
  CHECK(valid.error().value == std::int64_t{1} << 31);

  config.block_size = config.num_kv_heads = config.head_dim = largest;
  valid = validate(config);
  REQUIRE_FALSE(valid);
  CHECK(valid.error().code == error_code::size_overflow);
  CHECK(valid.error().value == std::int64_t{largest} * largest);
}

TEST_CASE("scales are given beside sizes of layers, or with each group", "[config]") {
  const auto scale = 0.5f;
  auto config = usable();
  config.scales = &scale;
  CHECK(validate(config));
  auto group = group_config{};
  group.scales = &scale;
  config.groups = group_list{group};
  const auto refused = validate(config);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().message() ==
        "invalid argument: cache_config.scales beside groups, which have their own, is 1, limit 0");
  config.scales = nullptr;
  CHECK(validate(config));
  auto state = group_config{};
  state.kind = group_kind::state;
  state.key_dim = state.value_dim = 0;
  state.state_bytes = 64;
  state.scales = &scale;
  CHECK(validate(state).error().message() == "invalid argument: group_config.scales of a state is 1, limit 0");
}
