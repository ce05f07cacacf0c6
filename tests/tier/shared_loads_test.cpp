#include "fake_tiers.hpp"
#include "tiered_driver.hpp"

#include <catch2/generators/catch_generators.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <vector>

using namespace pagedkv;
using namespace pagedkv::test;

namespace {

using placed_cache = tiered_cache<float32, placed_tier>;

/// Several requests wait for one prompt of three full blocks, which only a slow tier has.
struct waiting {
  static constexpr auto num_requests = std::size_t{4};

  std::shared_ptr<fake_store> store = std::make_shared<fake_store>();
  placed_cache cache{small_device(24), by_hand(), {32}, {{store, 64, placed_cache::format_of(small_device(24), "")}}};
  tiered_driver<placed_cache> driver{cache};
  std::vector<sequence_id> ids;

  explicit waiting(sequence_options options = {}) {
    for (token first = 0; first < 2'400; first += 100) {
      driver.serve(numbered(13, first));
      cache.wait_idle();
    }
    for (std::size_t i = 0; i < num_requests; ++i) {
      const auto made = driver.create(numbered(13), {}, i == 0 ? options : sequence_options{});
      REQUIRE(made);
      REQUIRE(made->num_loading_tokens == 12);
      ids.push_back(made->id);
    }
    driver.check_invariants();
  }

  std::int64_t settle(std::size_t request) {
    driver.settle(ids[request]);
    driver.check_invariants();
    return driver.live.at(ids[request]).num_written;
  }
  void compute(std::size_t request) {
    driver.compute(ids[request]);
    driver.check_invariants();
  }
  void release(std::size_t request) {
    driver.release(ids[request]);
    driver.check_invariants();
  }

  std::vector<block_id> table(std::size_t request) {
    auto blocks = std::vector<block_id>(4);
    REQUIRE(cache.block_table(ids[request], blocks));
    return blocks;
  }
  std::int64_t num_common(std::size_t request, std::size_t other) {
    const auto both = std::array{ids[request], ids[other]};
    return cache.common_prefix(both).value();
  }
  std::int64_t in_use() { return cache.statistics().blocks.in_use; }

  void end() {
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (driver.live.contains(ids[i])) {
        compute(i);
        release(i);
      }
    }
    CHECK(in_use() == 0);
  }
};

}  // namespace

TEST_CASE("requests that wait for the same records share the blocks that get them", "[tier][shared_loads]") {
  auto four = waiting{};
  const auto hits_before = four.cache.statistics().hit_tokens;
  CHECK(four.in_use() == 16);
  four.cache.wait(four.ids[0]);
  CHECK(four.store->num_reads == 3);
  for (std::size_t i = 0; i < waiting::num_requests; ++i) {
    CHECK(four.settle(i) == 12);
  }
  CHECK(four.in_use() == 3 + 4);
  CHECK(four.cache.tier(1).hit_blocks == 3);  // copied once
  CHECK(four.cache.statistics().hit_tokens == hits_before + 3 * 12);
  for (std::size_t i = 1; i < waiting::num_requests; ++i) {
    CHECK(four.num_common(0, i) == 3);
    CHECK(four.cache.describe(four.ids[i])->num_cached_tokens == 12);
  }
  for (std::size_t i = 0; i < waiting::num_requests; ++i) {
    four.compute(i);
    REQUIRE(four.driver.append(four.ids[i], static_cast<token>(i)));
  }
  four.end();
}

TEST_CASE("a load ends where its sequence is cut short of it", "[tier][shared_loads]") {
  auto four = waiting{};
  const auto cut = four.ids[0];
  four.driver.live.erase(cut);
  REQUIRE(four.cache.truncate(cut, 13));
  CHECK(four.cache.poll(cut).num_loading_tokens == 12);
  REQUIRE(four.cache.truncate(cut, 5));
  CHECK(four.cache.poll(cut).num_loading_tokens == 0);
  REQUIRE(four.cache.append(cut, numbered(10, 9'000)));  // other tokens than those that are loaded
  four.cache.wait(four.ids[1]);
  CHECK(four.cache.settle(cut).value() == 0);
  REQUIRE(four.cache.release(cut));
  CHECK(four.settle(1) == 12);
  four.end();
}

TEST_CASE("requests get a load whose first request has gone", "[tier][shared_loads]") {
  auto four = waiting{};
  const auto settled = GENERATE(false, true);
  if (settled) {
    four.cache.wait(four.ids[0]);
    four.settle(0);
  }
  four.release(0);
  four.cache.wait(four.ids[1]);
  CHECK(four.settle(1) == 12);
  CHECK(four.settle(2) == 12);
  four.release(1);
  CHECK(four.settle(3) == 12);
  CHECK(four.in_use() == 3 + 2);
  four.end();
}

TEST_CASE("requests whose load failed compute its tokens, or share them when another did", "[tier][shared_loads]") {
  auto four = waiting{};
  four.store->wrong = fake_store::fault::forgets;
  four.store->records.clear();
  four.cache.wait(four.ids[0]);
  CHECK(four.settle(0) == 0);
  CHECK(four.settle(1) == 0);
  four.compute(0);
  four.compute(1);
  CHECK(four.num_common(0, 1) == 0);  // both computed them
  CHECK(four.settle(2) == 12);
  CHECK(four.settle(3) == 12);
  CHECK(four.num_common(2, 3) == 3);
  four.end();
}

TEST_CASE("requests behind a late load share what another computed", "[tier][shared_loads]") {
  auto four = waiting{};
  CHECK(four.settle(0) == 0);
  four.driver.compute(four.ids[0], 4);
  CHECK(four.settle(1) == 4);
  four.cache.wait(four.ids[2]);
  CHECK(four.settle(2) == 12);
  CHECK(four.num_common(0, 2) == 1);
  four.compute(0);
  CHECK(four.settle(3) == 12);
  CHECK(four.num_common(2, 3) == 3);
  CHECK(four.cache.tier(1).hit_blocks == 2);
  four.end();
}

TEST_CASE("requests share nothing that was invalidated while they waited", "[tier][shared_loads]") {
  auto four = waiting{};
  four.cache.wait(four.ids[0]);
  const auto settled = GENERATE(false, true);
  if (settled) {
    CHECK(four.settle(0) == 12);
  }
  four.cache.invalidate_prefix(numbered(8));
  CHECK(four.settle(1) == 0);
  CHECK(four.settle(2) == 0);
  four.compute(1);
  CHECK(four.settle(3) == 12);  // computed since
  CHECK(four.num_common(1, 3) == 3);
  four.end();
}

TEST_CASE("a request shares nothing behind a block that was invalidated while it waited", "[tier][shared_loads]") {
  auto four = waiting{};
  CHECK(four.settle(0) == 0);
  four.driver.compute(four.ids[0], 4);
  const auto behind = four.driver.create(numbered(13));
  REQUIRE(behind);
  REQUIRE(behind->num_cached_tokens == 4);
  REQUIRE(behind->num_loading_tokens == 8);
  four.ids.push_back(behind->id);
  four.compute(0);
  switch (GENERATE(0, 1, 2)) {
    case 0: four.cache.invalidate_salt({}); break;
    case 1: four.cache.invalidate_prefix(numbered(4)); break;
    default: REQUIRE(four.cache.invalidate_blocks(std::array{four.table(4)[0]})); break;
  }
  CHECK(four.settle(4) == 4);
  CHECK(four.num_common(0, 4) == 1);
  four.end();
}

TEST_CASE("requests do not share a block whose sequence publishes nothing", "[tier][shared_loads]") {
  auto four = waiting{{.publish = false}};
  four.cache.wait(four.ids[0]);
  for (std::size_t i = 0; i < waiting::num_requests; ++i) {
    CHECK(four.settle(i) == 12);
  }
  CHECK(four.num_common(0, 1) == 0);
  CHECK(four.num_common(1, 3) == 3);
  four.end();
}

TEST_CASE("a request that waits shares as much as it may have from the cache", "[tier][shared_loads]") {
  auto four = waiting{};
  const auto limited = four.driver.create(numbered(13), {}, {.max_cached_tokens = 8});
  REQUIRE(limited);
  CHECK(limited->num_loading_tokens == 8);
  four.ids.push_back(limited->id);
  four.cache.wait(four.ids[0]);
  CHECK(four.settle(0) == 12);
  CHECK(four.settle(4) == 8);
  CHECK(four.num_common(0, 4) == 2);
  four.end();
}

TEST_CASE("blocks that a step uses stay until it retires when others take their place", "[tier][shared_loads]") {
  auto four = waiting{};
  const auto step = four.cache.begin_step(std::array{four.ids[1]});
  REQUIRE(step);
  const auto own = four.table(1);
  four.cache.wait(four.ids[0]);
  CHECK(four.settle(0) == 12);
  CHECK(four.settle(1) == 12);
  CHECK(four.cache.statistics().blocks.retiring == 3);
  CHECK(four.table(1)[3] == own[3]);
  REQUIRE(four.cache.retire_step(*step));
  CHECK(four.cache.statistics().blocks.retiring == 0);
  four.driver.check_invariants();
  four.end();
}

TEST_CASE("prompts with other keys do not share what they wait for", "[tier][shared_loads]") {
  const auto store = std::make_shared<fake_store>();
  auto cache = placed_cache{
      small_device(24), by_hand(), {32}, {{store, 64, placed_cache::format_of(small_device(24), "")}}};
  const auto tokens = numbered(13);
  const auto image = std::array{prefix_key{5, {1, 2}}};
  const auto other = std::array{prefix_key{5, {1, 3}}};
  const auto create = [&](std::span<const prefix_key> keys) { return cache.create_sequence(token_run{tokens, keys}).value(); };
  for (const auto& keys : {image, other}) {
    const auto made = create(keys);
    REQUIRE(cache.commit(made.id, 13));
    REQUIRE(cache.release(made.id));
  }
  auto driver = tiered_driver{cache};
  for (token first = 100; first < 2'400; first += 100) {
    driver.serve(numbered(13, first));
    cache.wait_idle();
  }
  const auto made = std::array{create(image), create(other), create(image)};
  for (const auto& each : made) {
    CHECK(each.num_loading_tokens == 12);
    cache.wait(each.id);
    CHECK(cache.settle(each.id).value() == 12);
    CHECK(cache.check_invariants().empty());
  }
  CHECK(cache.common_prefix(std::array{made[0].id, made[2].id}).value() == 3);
  CHECK(cache.common_prefix(std::array{made[0].id, made[1].id}).value() == 1);
}
