// Packed tokens move as bytes: into tiers, into files of sessions, and into copies on write.

#include "../groups/group_engine.hpp"
#include "temporary_folder.hpp"

#include <pagedkv/tier/session_file.hpp>
#include <pagedkv/tier/tiered_cache.hpp>

#include <catch2/catch_test_macros.hpp>

using namespace pagedkv;
using namespace pagedkv::test;

namespace {

using packed_engine = engine<kv_cache<float8_latent, layer_groups, host_tier<>>>;

constexpr auto packed = group_config{.kind = group_kind::latent, .num_layers = 2, .key_dim = 576, .value_dim = 512};

packed_engine device_of_packed_tokens() {
  return packed_engine{config_of({packed, state}, 24), tier_config{}, basic_host_tier<host_allocator, lru>{256}};
}

}  // namespace

TEST_CASE("packed tokens come back from a tier as they were", "[tier][packed]") {
  auto on = device_of_packed_tokens();
  CHECK(on.serve(counted(41)) == 0);
  for (auto i = 0; i < 6; ++i) {
    on.serve(counted(41, 10'000 + 1000 * i));
  }
  CHECK(on.cache.find_prefix(counted(41)) < 40);
  CHECK(on.serve(counted(41)) == 40);
  on.check_invariants();
}

TEST_CASE("packed tokens are copied where sequences part", "[group_cache][packed]") {
  auto on = device_of_packed_tokens();
  const auto one = on.hold(counted(30));
  const auto other = on.fork(one).value();
  REQUIRE(on.append(one, counted(5, 500)));
  REQUIRE(on.append(other, counted(5, 900)));
  on.compute(one);
  on.compute(other);
  on.check(one);
  on.check(other);
}

TEST_CASE("a session of packed tokens is restored where they have the same form", "[tier][session][packed]") {
  const auto folder = testing::temporary_folder{};
  const auto path = folder.file("session");
  auto one = device_of_packed_tokens();
  const auto id = one.hold(counted(50));
  REQUIRE(save_sequence(one.cache, id, path));
  auto another = device_of_packed_tokens();
  const auto restored = restore_sequence(another.cache, path);
  REQUIRE(restored);
  another.sequences[restored->id] = one.sequences.at(id);
  another.check(restored->id);
  auto unlike = group_cache<basic_float8_e4m3<token_scale>>{config_of({packed, state}, 40)};
  CHECK(!restore_sequence(unlike, path));
}
