#include <pagedkv/core/config.hpp>

#include "../support/printing.hpp"

#include <catch2/catch_test_macros.hpp>

#include <limits>
#include <string>
#include <vector>

using namespace pagedkv;

namespace {

constexpr auto full = group_config{.num_layers = 2};
constexpr auto window = group_config{.kind = group_kind::window, .window = 8};
constexpr auto chunked = group_config{.kind = group_kind::chunked, .window = 8};
constexpr auto latent = group_config{.kind = group_kind::latent, .key_dim = 72, .value_dim = 64};
constexpr auto state = group_config{.kind = group_kind::state, .num_kv_heads = 4, .state_bytes = 1000};

template <class Change>
void check_refused(group_config group, Change change, const char* subject, std::int64_t value, std::int64_t limit) {
  change(group);
  const auto valid = validate(group);
  INFO(subject << " = " << value);
  REQUIRE_FALSE(valid);
  CHECK(valid.error().subject == std::string{subject});
  CHECK(valid.error().value == value);
  CHECK(valid.error().limit == limit);
}

}  // namespace

TEST_CASE("each kind of layers has a valid group", "[group_config]") {
  for (const auto& group : {full, window, chunked, latent, state}) {
    CHECK(validate(group));
  }
  auto with_sinks = window;
  with_sinks.num_sinks = 4;
  CHECK(validate(with_sinks));

  auto config = cache_config{.num_blocks = 1};
  CHECK(validate(config));
  config.groups = {full, window, chunked, latent, state};
  CHECK(validate(config));
}

TEST_CASE("a group is refused for a field that its kind needs or has no meaning for", "[group_config]") {
  constexpr auto any = std::int64_t{std::numeric_limits<std::int32_t>::max()};
  check_refused(
      full, [](auto& g) { g.num_layers = 0; }, "group_config.num_layers", 0, 1);
  check_refused(
      full, [](auto& g) { g.num_kv_heads = -1; }, "group_config.num_kv_heads", -1, 1);
  check_refused(
      full, [](auto& g) { g.key_dim = 0; }, "group_config.key_dim", 0, 1);
  check_refused(
      full, [](auto& g) { g.value_dim = 0; }, "group_config.value_dim", 0, 1);
  check_refused(
      full, [](auto& g) { g.window = 8; }, "group_config.window", 8, 0);
  check_refused(
      full, [](auto& g) { g.state_bytes = 8; }, "group_config.state_bytes", 8, 0);
  check_refused(
      window, [](auto& g) { g.window = 0; }, "group_config.window", 0, 1);
  check_refused(
      window, [](auto& g) { g.window = any + 1; }, "group_config.window", any + 1, any);
  check_refused(
      chunked, [](auto& g) { g.window = 0; }, "group_config.window", 0, 1);
  check_refused(
      chunked, [](auto& g) { g.num_sinks = 4; }, "group_config.num_sinks", 4, 0);
  check_refused(
      latent, [](auto& g) { g.num_kv_heads = 2; }, "group_config.num_kv_heads", 2, 1);
  check_refused(
      latent, [](auto& g) { g.value_dim = 73; }, "group_config.value_dim", 73, 72);
  check_refused(
      state, [](auto& g) { g.state_bytes = 0; }, "group_config.state_bytes", 0, 1);
  check_refused(
      state, [](auto& g) { g.num_layers = g.num_kv_heads = 1 << 16; }, "group_config.num_layers * num_kv_heads",
      std::int64_t{1} << 32, any);
}

TEST_CASE("a list has at most eight groups, of any kind", "[group_config]") {
  CHECK(validate(group_list{}));
  CHECK(validate(group_list{state}));
  CHECK(validate(group_list{state, window}));
  CHECK_FALSE(validate(group_list{full, group_config{.num_layers = 0}}));

  const auto eight = std::vector<group_config>(8, full);
  CHECK(validate(group_list{eight}));
  const auto nine = std::vector<group_config>(9, full);
  const auto valid = validate(group_list{nine});
  REQUIRE_FALSE(valid);
  CHECK(valid.error().subject == std::string{"number of cache_config.groups"});
  CHECK(valid.error().value == 9);
  CHECK(valid.error().limit == 8);
}

TEST_CASE("a group tells the first token that later ones may read", "[group_config]") {
  struct row {
    std::int64_t position, full, window, chunked, state;
  };
  for (const auto& r :
       {row{0, 0, 0, 0, 0}, row{7, 0, 0, 0, 7}, row{8, 0, 1, 8, 8}, row{9, 0, 2, 8, 9}, row{100, 0, 93, 96, 100}}) {
    CHECK(full.first_needed(r.position) == r.full);
    CHECK(latent.first_needed(r.position) == r.full);
    CHECK(window.first_needed(r.position) == r.window);
    CHECK(chunked.first_needed(r.position) == r.chunked);
    CHECK(state.first_needed(r.position) == r.state);
  }
}
