// Restarts: a cache finds the records that one before it wrote, where most prompts begin with the same blocks.

#include "fake_tiers.hpp"
#include "restarts.hpp"
#include "temporary_folder.hpp"
#include "tiered_driver.hpp"

#include <pagedkv/tier/basic_file_tier.hpp>
#include <pagedkv/tier/file_engine.hpp>

#include <catch2/catch_get_random_seed.hpp>
#include <catch2/generators/catch_generators.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

using namespace pagedkv;
using namespace pagedkv::test;

namespace {

using file_tier_type = basic_file_tier<thread_files>;
using file_cache = tiered_cache<float32, file_tier_type>;
using placed_cache = tiered_cache<float32, placed_tier>;

constexpr auto num_file_places = std::int32_t{256};  // more than there are blocks to write
constexpr auto num_host_records = std::int32_t{12};

file_tier_type open_file(const std::string& path) {
  const auto format = file_cache::format_of(small_device(24), "");
  const auto bytes = static_cast<std::int64_t>(format.header_bytes()) +
                     num_file_places * static_cast<std::int64_t>(format.record_bytes());
  return file_tier_type::create({path}, bytes, format).value();
}

}  // namespace

TEST_CASE("behind a hot prompt, a cache that is made anew finds what was written", "[tier][restart][random]") {
  const auto seed = Catch::getSeed();
  const auto chosen = any_plan();
  CAPTURE(seed, static_cast<int>(chosen.write), chosen.exclusive, chosen.overloaded);
  const auto format = placed_cache::format_of(small_device(24), "");
  const auto store = std::make_shared<fake_store>();
  auto left = std::shared_ptr<fake_store>{};
  {
    auto cache = placed_cache{
        small_device(24), config_of(chosen, false), {num_host_records}, {{store, num_file_places, format}}};
    auto driver = tiered_driver{cache};
    serve_behind_hot_prompt(driver, seed, 100, [&](auto& random) {
      if (random() % 2 == 0) {
        cache.run_transfers();
      }
      left = copy_of(*store);
    });
  }
  const auto num_found = std::ssize(left->records);
  CHECK(num_found > num_hot_blocks);
  const auto config = config_of({chosen.write, chosen.exclusive}, false);
  auto cache = placed_cache{small_device(24), config, {num_file_places}, {{left, num_file_places, format}}};
  auto driver = tiered_driver{cache};
  check_restart(cache, driver, num_found, chosen, 0);
}

TEST_CASE("behind a hot prompt, a process finds what one that was killed had written", "[tier][restart][random]") {
  const auto seed = Catch::getSeed();
  const auto chosen = any_plan();
  CAPTURE(seed, static_cast<int>(chosen.write), chosen.exclusive, chosen.overloaded);
  auto random = std::mt19937{seed};
  const auto folder = testing::temporary_folder{};
  for (auto round = 0; round < 3; ++round) {  // each of which goes on with what the one before it left
    const auto num_served = 1 + static_cast<int>(random() % 50);
    const auto serve_seed = static_cast<std::uint32_t>(random());
    serve_and_kill(num_served, 30, [&](const auto& report) {
      auto cache =
          file_cache{small_device(24), config_of(chosen, true), {num_host_records}, {open_file(folder.file("a"))}};
      auto driver = tiered_driver{cache};
      serve_behind_hot_prompt(driver, serve_seed, 1'000'000, [&](auto&) {
        report(cache.tier(1).num_records);
        if (!chosen.overloaded) {
          cache.wait_idle();
        }
      });
    });
    auto num_found = std::int64_t{0};
    auto tier = open_file(folder.file("a"));
    tier.for_each_record([&](std::int64_t, const record_identity&) { ++num_found; });
    const auto config = config_of({chosen.write, chosen.exclusive}, true);
    auto cache = file_cache{small_device(24), config, {num_file_places}, {std::move(tier)}};
    auto driver = tiered_driver{cache};
    check_restart(cache, driver, num_found, chosen, 4);
  }
}

namespace {

/// A cache whose transfers run when the test says so, and the store behind it.
struct hand_driven {
  std::shared_ptr<fake_store> store = std::make_shared<fake_store>();
  placed_cache cache;
  tiered_driver<placed_cache> driver{cache};

  hand_driven(std::int32_t num_blocks, std::int32_t num_records, bool exclusive = false)
      : cache{small_device(num_blocks),
              config_of({write_policy::on_eviction, exclusive}, false),
              {num_records},
              {{store, num_file_places, placed_cache::format_of(small_device(num_blocks), "")}}} {}

  /// Serves prompts while the blocks that they share stay on the device; writes end after each.
  void serve_tails(int first, int count) {
    for (auto i = first; i < first + count; ++i) {
      driver.serve(behind_hot_prompt(i));
      cache.wait_idle();
      driver.check_invariants();
    }
  }
};

}  // namespace

TEST_CASE("the head of a chain is not written before its K/V", "[tier][restart]") {
  auto [store, cache, driver] = hand_driven{8, 4};
  store->wrong = fake_store::fault::full;
  const auto window = driver.create(numbered(13));
  driver.compute(window->id);
  REQUIRE(cache.drop_before(window->id, 8));
  for (auto first = 100; first < 1'000; first += 100) {  // the first two blocks leave the device, and host memory
    driver.serve(numbered(21, first));
    cache.wait_idle();
  }
  store->wrong = fake_store::fault::none;
  driver.serve(numbered(21, 1'000));
  cache.wait_idle();
  REQUIRE(cache.tier(1).num_owed == 0);

  const auto early = driver.create(numbered(8));
  REQUIRE(early->num_cached_tokens == 0);
  REQUIRE(cache.commit(early->id, 8));  // ahead of the kernels
  REQUIRE(driver.create(numbered(16, 1'100)));
  cache.wait_idle();
  REQUIRE(cache.statistics().blocks.evictable == 0);
  REQUIRE(cache.release(window->id));
  driver.live.erase(window->id);
  REQUIRE(driver.create(numbered(8, 1'200)));
  REQUIRE(cache.statistics().blocks.evictable == 0);  // the third block has gone, too
  cache.wait_idle();
  const auto format = placed_cache::format_of(small_device(8), "");
  const auto num_of_chain = std::ranges::count_if(store->records, [&](const auto& entry) {
    const auto reading = read_record_header(format, {entry.second.bytes.get(), entry.second.size});
    return reading.identity.contents.tokens.front() < 100;
  });
  CHECK(num_of_chain == 1);
  driver.compute(early->id);
  driver.check_contents(early->id);
  driver.check_invariants();
}

TEST_CASE("the head of a chain is written from any of the blocks that have it", "[tier][restart]") {
  auto [store, cache, driver] = hand_driven{8, 16};
  const auto held = driver.create(numbered(8));
  driver.compute(held->id);
  driver.serve(numbered(8));  // with a second block of its own, for its last token
  const auto evict = [&](std::size_t num_tokens) {
    const auto before = cache.statistics().evictions;
    driver.release(driver.create(numbered(num_tokens, 100))->id);
    return cache.statistics().evictions - before;
  };
  REQUIRE(evict(21) == 1);  // that block
  driver.serve(numbered(13));
  REQUIRE(evict(21) == 1);  // the third one
  cache.wait_idle();
  CHECK(store->records.size() == 3);
  driver.check_invariants();
}

TEST_CASE("the head of a chain that host memory cannot hold follows with the next tails", "[tier][restart]") {
  auto test = hand_driven{24, 6};
  auto& [store, cache, driver] = test;
  driver.compute(driver.create(behind_hot_prompt(no_prompt))->id);
  const auto is_broken = GENERATE(false, true);
  store->wrong = is_broken ? fake_store::fault::full : fake_store::fault::none;
  test.serve_tails(0, 20);
  const auto num_gone = cache.statistics().evictions;
  const auto written = cache.tier(0).written;
  CHECK(cache.tier(0).lost_writes == 0);
  if (is_broken) {
    CHECK(written <= num_gone + 3);  // the tier is not offered the head again and again
  } else {
    CHECK(written == num_gone + num_hot_blocks);
    CHECK(std::ssize(store->records) == written);
  }
}

TEST_CASE("an exclusive host tier keeps what slower tiers have not got yet", "[tier][restart]") {
  auto test = hand_driven{24, 64, true};
  auto& [store, cache, driver] = test;
  driver.compute(driver.create(behind_hot_prompt(no_prompt))->id);
  store->wrong = fake_store::fault::full;
  test.serve_tails(0, 10);
  CHECK(cache.tier(0).dropped == 0);
  CHECK(cache.tier(1).lost_writes == 0);
  CHECK(cache.tier(1).num_owed == cache.statistics().evictions + num_hot_blocks);
  store->wrong = fake_store::fault::none;
  test.serve_tails(10, 10);
  CHECK(cache.tier(1).num_owed == 0);
  CHECK(cache.tier(1).lost_writes == 0);
  CHECK(cache.tier(0).dropped == num_hot_blocks);
}
