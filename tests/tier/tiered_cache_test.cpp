#include "../support/allocation_count.hpp"
#include "../support/eager_runs.hpp"
#include "fake_tiers.hpp"
#include "tiered_driver.hpp"

#include <pagedkv/metrics/prometheus.hpp>
#include <pagedkv/policy/allocator/host_allocator.hpp>
#include <pagedkv/policy/allocator/page_allocators.hpp>
#include <pagedkv/policy/eviction/sieve.hpp>
#include <pagedkv/policy/locking/sharded_mutex.hpp>

#include <catch2/catch_get_random_seed.hpp>

#include <array>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>

using namespace pagedkv;
using namespace pagedkv::test;

namespace {

tier_config written(write_policy policy) {
  auto config = tier_config{};
  config.write = policy;
  return config;
}
struct counted_hits {
  static constexpr auto kinds = event_kinds{event_kind::hit, event_kind::evicted};
  void emit(const cache_event& event) noexcept { ++(event.kind == event_kind::hit ? *num_hits : *num_evictions); }
  int* num_hits = nullptr;
  int* num_evictions = nullptr;
};

tier_config exclusive() {
  auto config = tier_config{};
  config.exclusive = true;
  return config;
}

}  // namespace

TEST_CASE("a prompt that the device has evicted comes back from host memory", "[tier][tiered_cache]") {
  auto cache = tiered_cache<float32>{small_device(4), {}, {16}};
  auto driver = tiered_driver{cache};
  CHECK(driver.serve(numbered(13)) == 0);
  CHECK(driver.serve(numbered(13, 100)) == 0);
  CHECK(driver.serve(numbered(13, 200)) == 0);
  CHECK(cache.tier(0).written == 6);  // three full blocks of each of the first two
  driver.check_invariants();
  const auto made = driver.create(numbered(13));
  REQUIRE(made);
  CHECK(made->num_cached_tokens == 12);
  CHECK(cache.describe(made->id)->num_cached_tokens == 12);
  CHECK(made->num_loading_tokens == 0);
  CHECK(made->num_new_blocks == 4);
  const auto counts = cache.tier(0);
  CHECK(counts.hit_blocks == 3);
  CHECK(counts.hit_tokens == 12);
  CHECK(counts.lost_writes == 0);
  driver.check_invariants();
  driver.compute(made->id);
  driver.release(made->id);
  // Once on the device again, it is shared there.
  CHECK(cache.find_prefix(numbered(13)) == 12);
  CHECK(cache.run_transfers() == 0);  // no other tier has any
}

TEST_CASE("tenants do not share in host memory", "[tier][tiered_cache]") {
  auto cache = tiered_cache<float32>{small_device(4), {}, {16}};
  auto driver = tiered_driver{cache};
  driver.serve(numbered(13), salt{1});
  driver.serve(numbered(13, 100), salt{1});
  CHECK(driver.serve(numbered(13), salt{2}) == 0);
  CHECK(driver.serve(numbered(13), salt{}) == 0);
  CHECK(driver.serve(numbered(13), salt{1}) == 12);
  driver.check_invariants();
}

TEST_CASE("records carry the keys of their blocks", "[tier][tiered_cache]") {
  auto cache = tiered_cache<float32>{small_device(4), {}, {16}};
  const auto tokens = numbered(13);
  const auto image = std::array{prefix_key{5, {1, 2}}};
  const auto other = std::array{prefix_key{5, {1, 3}}};
  const auto create = [&](std::span<const prefix_key> keys, const std::vector<token>& prompt) {
    const auto made = cache.create_sequence(token_run{prompt, keys});
    REQUIRE(made);
    REQUIRE(cache.commit(made->id, 13));
    REQUIRE(cache.release(made->id));
    return made->num_cached_tokens;
  };
  CHECK(create(image, tokens) == 0);
  CHECK(create({}, numbered(13, 100)) == 0);
  CHECK(create(other, tokens) == 4);
  CHECK(create(image, tokens) == 12);
  CHECK(cache.check_invariants().empty());
}

TEST_CASE("write-through puts each committed block into host memory, chunk by chunk", "[tier][tiered_cache]") {
  auto cache = tiered_cache<float32>{small_device(4), written(write_policy::through), {16}};
  auto driver = tiered_driver{cache};
  const auto made = driver.create(numbered(13), {}, {.first_chunk = 5});
  REQUIRE(made);
  driver.compute(made->id);
  CHECK(cache.tier(0).written == 1);
  for (token next = 5; next < 13; ++next) {
    REQUIRE(driver.append(made->id, next));
  }
  driver.compute(made->id);
  CHECK(cache.tier(0).written == 3);
  driver.release(made->id);
  driver.serve(numbered(13, 100));
  CHECK(driver.serve(numbered(13)) == 12);  // published again, and there already
  CHECK(cache.tier(0).written == 6);
  CHECK(cache.tier(0).evictions == 0);
  driver.check_invariants();
}

TEST_CASE("write-through from the k-th hit writes what is shared so often", "[tier][tiered_cache]") {
  auto cache = tiered_cache<float32>{small_device(8), written(write_policy::through_hits), {16}};
  auto driver = tiered_driver{cache};
  driver.serve(numbered(13));
  driver.serve(numbered(9));
  CHECK(cache.tier(0).written == 0);
  driver.serve(numbered(9));
  CHECK(cache.tier(0).written == 2);
  driver.serve(numbered(29, 100));
  driver.check_invariants();
  CHECK(driver.serve(numbered(13)) == 8);
}

TEST_CASE("an exclusive host tier gives up what the device has", "[tier][tiered_cache]") {
  auto cache = tiered_cache<float32>{small_device(4), exclusive(), {8}};
  auto driver = tiered_driver{cache};
  driver.serve(numbered(13));
  driver.serve(numbered(13, 100));
  CHECK(driver.serve(numbered(13)) == 12);
  CHECK(cache.tier(0).dropped == 3);
  driver.check_invariants();
  auto inclusive = written(write_policy::through);
  inclusive.exclusive = true;
  CHECK_THROWS_AS((tiered_cache<float32>{small_device(4), inclusive, {8}}), exception);
}

TEST_CASE("contents are saved when the last of several blocks that have them leaves the device",
          "[tier][tiered_cache]") {
  auto cache = tiered_cache<float32>{small_device(4), exclusive(), {8}};
  auto driver = tiered_driver{cache};
  const auto publish = [&] {  // one more block with the contents
    const auto made = driver.create(numbered(4), {}, {.max_cached_tokens = 0});
    REQUIRE(made);
    driver.compute(made->id);
    return made->id;
  };
  const auto give_up = [&](sequence_id id) {
    driver.release(id);
    const auto step = cache.begin_step();
    REQUIRE(step);
    auto victims = std::array<block_id, 4>{};
    CHECK(cache.evict(victims, *step).value() == 1);
    REQUIRE(cache.retire_step(*step));
    driver.check_invariants();
  };
  give_up(publish());
  CHECK(cache.tier(0).written == 1);
  auto held = std::vector<sequence_id>{publish(), publish(), publish()};
  CHECK(cache.tier(0).num_records == 0);
  give_up(held[2]);  // the newest
  held[2] = publish();
  give_up(held[0]);  // the oldest
  held[0] = publish();
  give_up(held[2]);  // one between others
  give_up(held[1]);
  CHECK(cache.tier(0).num_records == 0);
  CHECK(cache.tier(0).written == 1);
  give_up(held[0]);
  CHECK(cache.tier(0).written == 2);
  CHECK(driver.serve(numbered(5)) == 4);
}

TEST_CASE("chains lose their tails first in host memory", "[tier][tiered_cache]") {
  auto cache = tiered_cache<float32>{small_device(4), {}, {4}};
  auto driver = tiered_driver{cache};
  driver.serve(numbered(13));
  driver.serve(numbered(13, 100));
  driver.serve(numbered(9, 200));
  driver.check_invariants();
  CHECK(cache.tier(0).evictions > 0);
  CHECK(driver.serve(numbered(13, 100)) > 0);
}

TEST_CASE("host memory smaller than the device loses writes, and nothing else", "[tier][tiered_cache]") {
  auto cache = tiered_cache<float32>{small_device(8), written(write_policy::through), {2}};
  auto driver = tiered_driver{cache};
  driver.serve(numbered(29));
  driver.serve(numbered(29, 100));
  driver.serve(numbered(29));
  driver.check_invariants();
}

TEST_CASE("a copy on write saves the victim that it overwrites", "[tier][tiered_cache]") {
  auto cache = tiered_cache<float32>{small_device(3), {}, {8}};
  auto driver = tiered_driver{cache};
  driver.serve(numbered(5, 100));  // one full block stays, evictable
  const auto made = driver.create(numbered(6));
  REQUIRE(made);
  driver.compute(made->id);
  const auto second = cache.fork(made->id);
  REQUIRE(second);
  driver.live[*second] = driver.live[made->id];
  REQUIRE(driver.append(*second, 77));
  driver.compute(*second);
  driver.check_invariants();
  driver.release(made->id);
  driver.release(*second);
  CHECK(cache.tier(0).written == 1);
  CHECK(driver.serve(numbered(5, 100)) == 4);
}

TEST_CASE("the first chunk follows what the tiers bring", "[tier][tiered_cache]") {
  auto cache = tiered_cache<float32>{small_device(8), {}, {16}};
  auto driver = tiered_driver{cache};
  driver.serve(numbered(17));
  driver.serve(numbered(29, 100));
  const auto made = driver.create(numbered(27), {}, {.first_chunk = 3});
  REQUIRE(made);
  CHECK(made->num_cached_tokens == 16);
  CHECK(made->num_tokens == 19);
  CHECK(made->num_blocks == 5);
  const auto known = cache.describe(made->id);
  REQUIRE(known);
  CHECK(known->num_tokens == 19);
  CHECK(known->num_blocks == 5);
  driver.check_invariants();
}

TEST_CASE("without a first chunk, a sequence ends with what the tiers bring", "[tier][tiered_cache]") {
  auto cache = tiered_cache<float32>{small_device(8), {}, {16}};
  auto driver = tiered_driver{cache};
  driver.serve(numbered(17));
  driver.serve(numbered(29, 100));
  const auto made = driver.create(numbered(27), {}, {.first_chunk = 0});
  REQUIRE(made);
  CHECK(made->num_cached_tokens == 16);
  CHECK(made->num_tokens == 16);
  CHECK(made->num_blocks == 4);
  driver.check_invariants();
}

TEST_CASE("options limit what comes from tiers as what comes from the device", "[tier][tiered_cache]") {
  auto cache = tiered_cache<float32>{small_device(4), {}, {16}};
  auto driver = tiered_driver{cache};
  driver.serve(numbered(13));
  driver.serve(numbered(13, 100));
  const auto made = driver.create(numbered(13), {}, {.max_cached_tokens = 7});
  REQUIRE(made);
  CHECK(made->num_cached_tokens == 4);
  driver.release(made->id);
  CHECK(driver.serve(numbered(12)) == 8);  // the last token is left to compute
}

TEST_CASE("without a slower tier, a record in host memory has the bytes of its block", "[tier][tiered_cache]") {
  const auto config = small_device(4);
  const auto cache = tiered_cache<float32>{config, {}, {16}};
  const auto format = tiered_cache<float32>::format_of(config, "");
  CHECK(cache.host_bytes() == 16 * format.payload_bytes());
}

TEST_CASE("without a slower tier, nobody is asked for unknown blocks", "[tier][tiered_cache]") {
  auto config = tier_config{};
  config.ask_ahead = 4;
  auto cache = tiered_cache<float32>{small_device(4), config, {16}};
  auto driver = tiered_driver{cache};
  const auto made = driver.create(numbered(13));
  REQUIRE(made);
  CHECK(made->num_loading_tokens == 0);
  CHECK(cache.poll(made->id).done());
  driver.check_invariants();
}

TEST_CASE("a sequence settles though memory was short for its load", "[tier][tiered_cache]") {
  using cache_type = tiered_cache<float32, placed_tier>;
  const auto format = cache_type::format_of(small_device(4), "");
  auto num_without = 0;
  for (auto n = 1, found = 0; found != 12; ++n) {
    CAPTURE(n);
    REQUIRE(n < 1'000);
    auto tier = placed_tier{std::make_shared<fake_store>(), 32, format};
    auto cache = cache_type{small_device(4), by_hand(), {8}, {std::move(tier)}};
    auto driver = tiered_driver{cache};
    for (const auto first : {0, 100, 200, 300, 400}) {
      driver.serve(numbered(13, first));
      cache.wait_idle();
    }
    const auto prompt = numbered(13);
    fail_allocation(n);
    const auto made = cache.create_sequence(prompt);
    fail_allocation(0);
    REQUIRE(made);
    found = static_cast<int>(made->num_cached_tokens + made->num_loading_tokens);
    num_without += found != 12 ? 1 : 0;
    cache.wait(made->id);
    const auto num_tokens = cache.settle(made->id);
    REQUIRE(num_tokens);
    CHECK(*num_tokens == found);
    REQUIRE(cache.release(made->id));
    driver.check_invariants();
  }
  CHECK(num_without > 0);
}

TEST_CASE("what is invalidated comes back from no tier", "[tier][tiered_cache]") {
  auto cache = tiered_cache<float32>{small_device(4), {}, {16}};
  auto driver = tiered_driver{cache};
  const auto fill = [&] {
    driver.serve(numbered(13), salt{1});
    driver.serve(numbered(13, 100), salt{2});
  };
  driver.serve(numbered(13), salt{1});
  cache.invalidate_salt(salt{1});  // only the device has it, and it is not to be written
  CHECK(cache.tier(0).lost_writes == 0);
  fill();
  cache.invalidate_prefix(numbered(8), salt{1});
  CHECK(driver.serve(numbered(13), salt{1}) == 0);
  fill();
  cache.invalidate_salt(salt{1});
  CHECK(driver.serve(numbered(13), salt{1}) == 0);
  driver.check_invariants();
  REQUIRE(cache.reset_prefix_cache());
  CHECK(cache.tier(0).num_records == 0);
  CHECK(driver.serve(numbered(13), salt{1}) == 0);
  CHECK(driver.serve(numbered(13, 100), salt{2}) == 0);
  const auto made = driver.create(numbered(13), salt{1});
  REQUIRE(made);
  auto blocks = std::array<block_id, 4>{};
  REQUIRE(cache.block_table(made->id, blocks));
  driver.compute(made->id);
  REQUIRE(cache.invalidate_blocks(std::span{blocks}.first(1)));
  driver.release(made->id);
  driver.serve(numbered(13, 100), salt{2});
  CHECK(driver.serve(numbered(13), salt{1}) == 0);
  driver.check_invariants();
}

TEST_CASE("what was lost with its memory is saved when it is evicted again", "[tier][tiered_cache]") {
  auto cache = tiered_cache<float32, reserving_allocator>{small_device(8), {}, {16}};
  auto driver = tiered_driver{cache};
  driver.serve(numbered(29));
  REQUIRE(cache.resize(1));
  CHECK(cache.tier(0).lost_writes >= 6);
  REQUIRE(cache.resize(8));
  driver.serve(numbered(29));
  driver.serve(numbered(32, 100));
  CHECK(driver.serve(numbered(29)) == 28);
  driver.check_invariants();
}

TEST_CASE("blocks that a caller evicts are saved first", "[tier][tiered_cache]") {
  auto cache = tiered_cache<float32>{small_device(8), {}, {16}};
  auto driver = tiered_driver{cache};
  driver.serve(numbered(29));
  const auto step = cache.begin_step();
  REQUIRE(step);
  auto victims = std::array<block_id, 8>{};
  const auto num_evicted = cache.evict(victims, *step);
  REQUIRE(num_evicted);
  CHECK(*num_evicted == 7);
  CHECK(cache.tier(0).written == 7);
  REQUIRE(cache.retire_step(*step));
  CHECK(driver.serve(numbered(29)) == 28);
  REQUIRE(cache.compact());
  driver.check_invariants();
  REQUIRE(cache.resize(2));
  driver.check_invariants();
}

TEST_CASE("a sequence that is cut where its window begins drops blocks again", "[tier][tiered_cache]") {
  auto cache = tiered_cache<float32>{small_device(8), {}, {16}};
  auto driver = tiered_driver{cache};
  const auto made = driver.create(numbered(13));
  REQUIRE(made);
  driver.compute(made->id);
  REQUIRE(cache.drop_before(made->id, 13));
  REQUIRE(cache.truncate(made->id, 8));  // no block is left, nor that of the last committed tokens
  REQUIRE(cache.drop_before(made->id, 8));
  driver.check_invariants();
  CHECK(cache.find_prefix(numbered(13)) == 12);
  REQUIRE(cache.release(made->id));
  driver.check_invariants();
}

TEST_CASE("a user's events pass through", "[tier][tiered_cache]") {
  auto num_hits = 0;
  auto num_evictions = 0;
  auto cache = tiered_cache<float32, counted_hits>{
      small_device(4), {}, {16}, {}, {}, {}, counted_hits{&num_hits, &num_evictions}};
  auto driver = tiered_driver{cache};
  driver.serve(numbered(13));
  driver.serve(numbered(13));
  driver.serve(numbered(13, 100));
  CHECK(num_hits == 1);
  CHECK(num_evictions == 3);
}

TEST_CASE("counts of tiers are written for Prometheus", "[tier][metrics]") {
  auto cache = tiered_cache<float32>{small_device(4), {}, {16}};
  auto driver = tiered_driver{cache};
  driver.serve(numbered(13));
  driver.serve(numbered(13, 100));
  auto text = std::string{};
  const auto label = std::array{metric_label{"tier", cache.tier_names[0]}};
  append_prometheus(text, cache.tier(0), label);
  CHECK(text.find("pagedkv_tier_written_total{tier=\"host\"} 3\n") != std::string::npos);
  CHECK(text.find("pagedkv_tier_places{tier=\"host\"} 16\n") != std::string::npos);
}

TEST_CASE("tiers of one type have different names, as labels of one text need", "[tier][metrics]") {
  using cache_type = tiered_cache<float32, placed_tier, keyed_tier, placed_tier>;
  const auto again = std::string{placed_tier::name} + "_2";
  CHECK(cache_type::tier_names == std::array<std::string_view, 4>{"host", placed_tier::name, keyed_tier::name, again});
  CHECK(cache_type::tier_names[3].data() == again);  // C reads up to a zero
}

TEST_CASE("random operations bring back every token's own K/V from host memory", "[tier][tiered_cache][random]") {
  const auto seed = Catch::getSeed();
  for (const auto& tiers : {written(write_policy::on_eviction), written(write_policy::through),
                            written(write_policy::through_hits), exclusive()}) {
    for (const auto num_records : {3, 12, 200}) {
      CAPTURE(static_cast<int>(tiers.write), tiers.exclusive, num_records);
      auto cache = tiered_cache<float32>{small_device(12), tiers, {num_records}};
      run_randomly(cache, seed, 600);
      auto locked = tiered_cache<float32, rw_lock, sieve, host_tier<host_allocator, sieve>>{small_device(12), tiers,
                                                                                           {num_records}};
      run_randomly(locked, seed + 1, 200);
      auto sharded = tiered_cache<float32, sharded_mutex>{small_device(12), tiers, {num_records}};
      run_randomly(sharded, seed + 2, 100);
      auto in_runs = tiered_cache<float32, eager_runs>{small_device(30), tiers, {num_records}};
      run_randomly(in_runs, seed + 3, 100);
    }
  }
}
