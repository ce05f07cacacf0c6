#include <pagedkv/pagedkv.hpp>

#include "../support/small_granules.hpp"
#include "group_engine.hpp"

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

using namespace pagedkv;
using namespace pagedkv::test;

namespace {

struct stored_and_evicted {
  static constexpr auto kinds = event_kinds{event_kind::stored, event_kind::evicted};
  std::shared_ptr<std::map<event_kind, std::int64_t>> counts = std::make_shared<std::map<event_kind, std::int64_t>>();

  void emit(const cache_event& event) noexcept { ++(*counts)[event.kind]; }
};

using sized = engine<group_cache<float32, rw_lock, small_granules, stored_and_evicted>>;

cache_config growing(const group_list& groups, std::int32_t num_blocks, std::int32_t max_blocks) {
  auto config = config_of(groups, num_blocks);
  config.max_blocks = max_blocks;
  return config;
}

/// Blocks of all groups that a sequence holds.
std::vector<block_id> blocks_of(sized& e, sequence_id id) {
  auto all = std::vector<block_id>{};
  for (std::size_t g = 0; g < e.cache.config().groups.size(); ++g) {
    const auto own = e.table(g, id);
    all.insert(all.end(), own.begin(), own.end());
  }
  return all;
}

}  // namespace

TEST_CASE("a cache with groups grows when its blocks do not suffice", "[group_cache]") {
  for (const auto& [name, groups] : kinds) {
    INFO(name);
    auto e = sized{growing(groups, 12, 400)};
    CHECK(e.cache.num_blocks() == 12);
    const auto bytes = e.cache.memory().payload;
    REQUIRE_FALSE(e.create(counted(2000)));
    const auto* const base = e.cache.blocks().base;
    REQUIRE(e.cache.resize(400));
    CHECK(e.cache.num_blocks() == 400);
    CHECK(e.cache.memory().payload > bytes);
    CHECK(e.cache.blocks().base == base);
    CHECK(e.cache.statistics().blocks == block_counts{.free = 400});
    const auto id = e.create(counted(200)).value();
    e.compute(id);
    e.check(id);
    CHECK(e.cache.resize(401).error().code == error_code::invalid_argument);
    CHECK(e.cache.resize(0).error().code == error_code::invalid_argument);
    CHECK(e.cache.check_invariants() == sound);
  }
}

TEST_CASE("a cache with groups shrinks to what is in use, and keeps as much of the prefix cache as fits",
          "[group_cache]") {
  for (const auto& [name, groups] : kinds) {
    INFO(name);
    auto e = sized{growing(groups, 300, 300)};
    const auto bytes = e.cache.memory().payload;
    for (auto i = 0; i < 4; ++i) {
      const auto old = e.create(counted(60, 1000 * i)).value();
      e.compute(old);
      e.release(old);
    }
    const auto first = e.create(counted(60, 7000)).value();
    const auto cached = e.create(counted(60, 8000)).value();
    const auto last = e.create(counted(60, 9000)).value();
    for (const auto id : {first, cached, last}) {
      e.compute(id);
    }
    e.release(cached);
    const auto counts = e.cache.statistics().blocks;
    const auto used = static_cast<std::int32_t>(counts.in_use);
    CHECK(e.cache.resize(used - 1).error().code == error_code::in_use);
    CHECK(e.cache.num_blocks() == 300);

    const auto kept = static_cast<std::int32_t>(counts.evictable) / 2;
    REQUIRE(e.cache.resize(used + kept));
    CHECK(e.cache.num_blocks() == used + kept);
    CHECK(e.cache.memory().payload < bytes);
    CHECK(e.cache.statistics().evictions > 0);
    CHECK(e.cache.statistics().blocks.in_use == used);
    CHECK(e.cache.find_prefix(counted(61, 8000)) >= 56);
    CHECK(e.cache.check_invariants() == sound);
    for (const auto id : {first, last}) {
      e.check(id);
      CHECK(std::ranges::all_of(blocks_of(e, id), [&](block_id b) { return b < block_id{used + kept}; }));
    }
    REQUIRE(e.cache.resize(used));
    CHECK(e.cache.num_available_blocks() == 0);
    CHECK(e.cache.check_invariants() == sound);
    REQUIRE(e.cache.resize(300));
    for (const auto id : {first, last}) {
      REQUIRE(e.append(id, counted(20)));
      e.compute(id);
      e.check(id);
    }
  }
}

TEST_CASE("a cache with groups that shrinks evicts no more than what does not fit", "[group_cache]") {
  // Both groups are needed whole, so the eviction of a block makes the other group's block of its node useless.
  auto e = sized{growing({full, latent}, 200, 200)};
  for (auto i = 0; i < 4; ++i) {
    const auto old = e.create(counted(320, 1000 * i)).value();
    e.compute(old);
    e.release(old);
  }
  const auto cached = static_cast<std::int32_t>(e.cache.statistics().blocks.evictable);
  REQUIRE(cached >= 40);
  REQUIRE(e.cache.resize(cached - 30));
  const auto counts = e.cache.statistics();
  CHECK(counts.blocks.free <= 1);
  CHECK(counts.evictions == cached - counts.blocks.evictable);
  CHECK(e.cache.find_prefix(counted(321, 3000)) == 320);
  CHECK(e.cache.check_invariants() == sound);
}

TEST_CASE("a cache with groups shrinks while a step uses its blocks", "[group_cache]") {
  auto e = sized{growing({full, window, state}, 200, 200)};
  const auto gone = e.create(counted(100)).value();
  const auto id = e.create(counted(100, 500)).value();
  e.compute(id);
  e.release(gone);
  const auto step = e.cache.begin_step(std::array{id}).value();
  const auto used = static_cast<std::int32_t>(e.cache.statistics().blocks.in_use);
  const auto moves = e.cache.resize(used);
  REQUIRE(moves);
  CHECK_FALSE(moves->empty());
  e.check(id);
  REQUIRE(e.cache.release(id));
  e.sequences.clear();
  CHECK(e.cache.statistics().blocks.retiring > 0);
  CHECK(e.cache.resize(1).error().code == error_code::in_use);
  REQUIRE(e.cache.retire_step(step));
  CHECK(e.cache.resize(1));
  CHECK(e.cache.check_invariants() == sound);
}

TEST_CASE("a cache with groups shrinks where an eviction makes a block useless that a step uses", "[group_cache]") {
  const auto kind = GENERATE(group_kind::full, group_kind::window);
  const auto whole = group_config{.num_layers = 1, .key_dim = 8, .value_dim = 8};
  auto other = whole;
  other.kind = kind;
  other.window = kind == group_kind::window ? 8 : 0;
  auto config = cache_config{};
  config.groups = {whole, other};
  config.block_size = 4;
  config.num_blocks = 100;
  config.hash_seed = 1;
  auto cache = group_cache<float32>{config};
  const auto text = counted(40);
  const auto first = cache.create_sequence(text).value().id;
  REQUIRE(cache.commit(first, 40));
  REQUIRE(cache.release(first));
  const auto first_step = cache.begin_step().value();
  auto victims = std::array<block_id, 8>{};  // in a window those of the first nodes, whose other blocks stay
  REQUIRE(cache.evict(victims, first_step).value() == 8);
  REQUIRE(cache.retire_step(first_step));
  const auto second = cache.create_sequence(counted(21)).value().id;
  const auto step = cache.begin_step(std::array{second}).value();
  REQUIRE(cache.commit(second, 21));
  REQUIRE(cache.release(second));

  const auto before = cache.statistics().blocks;
  REQUIRE(before.retiring > 0);
  REQUIRE(before.evictable > 0);
  for (const auto num_blocks : {before.retiring + before.evictable - 1, before.retiring + 3, before.retiring}) {
    REQUIRE(cache.resize(static_cast<std::int32_t>(num_blocks)));
    CHECK(cache.num_blocks() == num_blocks);
    CHECK(cache.statistics().blocks.retiring == before.retiring);
    CHECK(cache.check_invariants() == sound);
  }
  REQUIRE(cache.retire_step(step));
  CHECK(cache.statistics().blocks.retiring == 0);
  CHECK(cache.check_invariants() == sound);
}

TEST_CASE("an invalidated prefix of groups is not found again, and stays with its users", "[group_cache]") {
  for (const auto& [name, groups] : kinds) {
    INFO(name);
    auto e = sized{config_of(groups)};
    const auto first = e.create(counted(40)).value();
    e.compute(first);
    const auto second = e.create(counted(50)).value();
    e.compute(second);
    e.release(second);
    const auto other = e.create(counted(40, 500)).value();
    e.compute(other);
    auto& counts = *e.cache.events().counts;
    const auto stored = counts[event_kind::stored];

    const auto in_use = e.cache.statistics().blocks.in_use;
    const auto num = e.cache.invalidate_prefix(counted(40));
    CHECK(num > 0);
    CHECK(e.cache.statistics().invalidations == num);
    CHECK(e.cache.statistics().evictions == 0);
    CHECK(counts[event_kind::evicted] == stored - 10);  // all but those of `other`
    CHECK(e.cache.statistics().blocks.in_use == in_use);
    CHECK(e.cache.find_prefix(counted(51)) == 0);
    CHECK(e.cache.find_prefix(counted(41, 500)) >= 36);
    CHECK(e.cache.invalidate_prefix(counted(40)) == 0);
    CHECK(e.cache.check_invariants() == sound);
    e.check(first);

    // Its user goes on, and publishes nothing that continues it.
    REQUIRE(e.append(first, counted(20, 40)));
    e.compute(first);
    e.check(first);
    CHECK(e.cache.find_prefix(counted(61)) == 0);
    e.release(first);
    CHECK(e.cache.find_prefix(counted(61)) == 0);
    CHECK(e.cache.check_invariants() == sound);

    const auto anew = e.create(counted(60)).value();
    e.compute(anew);
    e.release(anew);
    CHECK(e.cache.find_prefix(counted(60)) == 56);
  }
}

TEST_CASE("an invalidated salt, and invalidated blocks of groups, are not found again", "[group_cache]") {
  auto e = sized{config_of({full, window, state})};
  const auto tenant = sequence_options{.salt = salt{5}};
  for (const auto& options : {sequence_options{}, tenant}) {
    const auto id = e.create(counted(60), options).value();
    e.compute(id);
    e.release(id);
  }
  CHECK(e.cache.invalidate_salt(salt{5}) > 0);
  CHECK(e.cache.find_prefix(counted(60), salt{5}) == 0);
  CHECK(e.cache.find_prefix(counted(60)) == 56);
  CHECK(e.cache.invalidate_salt(salt{5}) == 0);

  const auto id = e.create(counted(60)).value();
  const auto held = e.table(0, id);
  REQUIRE(e.cache.invalidate_blocks(std::array{held[1]}).value() > 0);
  const auto before = e.cache.plan().groups[0].block_size;
  CHECK(e.cache.find_prefix(counted(60)) <= before);
  const auto outside = std::array{held[0], block_id{e.cache.num_blocks()}};
  CHECK(e.cache.invalidate_blocks(outside).error().code == error_code::invalid_argument);
  e.compute(id);
  e.check(id);
  e.release(id);
  CHECK(e.cache.find_prefix(counted(60)) <= before);
  CHECK(e.cache.check_invariants() == sound);
}

TEST_CASE("pinned blocks of an invalidated prefix are freed by unpin", "[group_cache]") {
  auto e = sized{config_of({full, window})};
  const auto id = e.create(counted(60)).value();
  e.compute(id);
  e.release(id);
  const auto pinned = e.cache.pin(counted(60)).value();
  CHECK(e.cache.invalidate_prefix(counted(60)) > 0);
  CHECK(e.cache.statistics().blocks.in_use > 0);
  REQUIRE(e.cache.unpin(pinned.id));
  CHECK(e.cache.statistics().blocks == block_counts{.free = 400});
}
