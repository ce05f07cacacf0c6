#include "../support/full_numbers.hpp"
#include "fake_tiers.hpp"
#include "temporary_folder.hpp"
#include "tiered_driver.hpp"

#include <pagedkv/tier/session_file.hpp>

#include <catch2/catch_get_random_seed.hpp>
#include <catch2/generators/catch_generators.hpp>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <random>
#include <thread>

using namespace pagedkv;
using namespace pagedkv::test;

namespace {

using fault = fake_store::fault;
using placed_cache = tiered_cache<float32, placed_tier>;
using keyed_cache = tiered_cache<float32, keyed_tier>;

/// Transfers run only when the test says so.
placed_tier places_in(const std::shared_ptr<fake_store>& store, std::int64_t count) {
  return {store, count, placed_cache::format_of(small_device(4), "")};
}

/// A device of 4 blocks, 8 records in host memory, and a tier behind them, which has four of five prompts; the first
/// one is nowhere else.
template <class Cache, class Tier>
struct filled {
  std::shared_ptr<fake_store> store = std::make_shared<fake_store>();
  Cache cache;
  tiered_driver<Cache> driver{cache};

  explicit filled(Tier tier, tier_config config = by_hand())
      : store(tier.store), cache{small_device(4), config, {8}, {tier}} {
    for (const auto first : {0, 100, 200, 300, 400}) {
      driver.serve(numbered(13, first), salt{1});
      cache.wait_idle();
    }
    driver.check_invariants();
  }
};

placed_cache writing_through(const placed_tier& tier) {
  auto config = by_hand();
  config.write = write_policy::through;
  return {small_device(4), config, {4}, {tier}};
}

/// A tier with one place, which has the first block of a prompt.
struct full_place {
  placed_cache cache;
  tiered_driver<placed_cache> driver{cache};

  explicit full_place(const placed_tier& tier) : cache(writing_through(tier)) {
    driver.serve(numbered(5));
    cache.wait_idle();
    REQUIRE(cache.tier(1).num_records == 1);
  }
};

auto filled_places(tier_config config = by_hand()) {
  return filled<placed_cache, placed_tier>{places_in(std::make_shared<fake_store>(), 32), config};
}

/// Gives up the highest place first.
struct highest_first {
  static constexpr std::string_view name = "highest_first";
  static constexpr bool concurrent = false;
  explicit highest_first(std::int32_t num_blocks) : evictable(static_cast<std::size_t>(num_blocks)) {}
  void insert(block_id block, const block_release&) noexcept { evictable[to_index(block)] = true; }
  void remove(block_id block) noexcept { evictable[to_index(block)] = false; }
  void erase(block_id block) noexcept { remove(block); }
  void rename(block_id, block_id) noexcept {}  // places have no other names
  block_id victim(auto&& offer, timestamp) noexcept {
    for (auto i = std::ssize(evictable); i > 0; --i) {
      const auto block = block_id{static_cast<std::int32_t>(i - 1)};
      if (evictable[to_index(block)] && offer(block) == eviction_answer::taken) {
        remove(block);
        return block;
      }
    }
    return no_block;
  }
  std::size_t metadata_bytes() const noexcept { return evictable.size(); }
  std::vector<char> evictable;
};

/// Its copies are done when the test says so.
struct late_backend : host_backend {
  struct mark {
    int number = 0;
  };
  struct progress {
    int marks = 0;
    int reached = 0;
  };

  static constexpr std::string_view name = "late";

  explicit late_backend(progress& of) : all(&of) {}

  [[nodiscard]] mark make_mark() noexcept { return {}; }
  [[nodiscard]] result<void> set_mark(mark& m, stream_type) noexcept {
    m.number = ++all->marks;
    return {};
  }
  [[nodiscard]] result<bool> reached(const mark& m) noexcept { return m.number <= all->reached; }
  [[nodiscard]] result<void> wait_for(const mark&, stream_type) noexcept { return {}; }

  progress* all;
};

/// Tokens of the first prompt that a tier with two places still has after four others.
template <class Tier>
std::int64_t kept_of_the_first() {
  auto config = by_hand();
  config.write = write_policy::through;
  using cache_type = tiered_cache<float32, Tier>;
  auto cache = cache_type{small_device(4), config, {2}, {Tier{places_in(std::make_shared<fake_store>(), 2)}}};
  auto driver = tiered_driver{cache};
  for (const auto first : {0, 100, 200, 300, 400}) {
    driver.serve(numbered(5, first));
    cache.wait_idle();
  }
  REQUIRE(cache.tier(1).evictions > 0);
  const auto made = driver.create(numbered(5));
  REQUIRE(made);
  REQUIRE(made->num_cached_tokens == 0);
  return made->num_loading_tokens;
}

}  // namespace

TEST_CASE("a slower tier's own policy chooses the records that make room", "[tier][slower_tiers]") {
  CHECK(kept_of_the_first<placed_tier>() == 0);
  CHECK(kept_of_the_first<evicted_by<placed_tier, highest_first>>() == 4);
}

TEST_CASE("a slower tier gets a record when its copy from the device is done", "[tier][slower_tiers]") {
  auto config = by_hand();
  config.write = write_policy::through;
  auto copies = late_backend::progress{};
  auto cache = kv_cache<float32, host_tier<>, placed_tier, late_backend>{
      small_device(4), config, {16}, {places_in(std::make_shared<fake_store>(), 32)}, {}, late_backend{copies}};
  auto driver = tiered_driver{cache};
  for (const auto round : {0, 1, 2}) {
    driver.serve(numbered(13, 100 * round));
    cache.run_transfers();
    CHECK(cache.tier(1).written == 3 * round);
    copies.reached = copies.marks;
    cache.wait_idle();
    CHECK(cache.tier(1).written == 3 * round + 3);
  }
  driver.check_invariants();
}

TEST_CASE("a hit does not write again what a slower tier has", "[tier][slower_tiers]") {
  auto config = by_hand();
  config.write = write_policy::through_hits;
  auto cache = placed_cache{small_device(16), config, {2}, {places_in(std::make_shared<fake_store>(), 32)}};
  auto driver = tiered_driver{cache};
  for (const auto first : {0, 100}) {
    for (int i = 0; i < 3; ++i) {
      driver.serve(numbered(9, first));
      cache.wait_idle();
    }
  }
  REQUIRE(cache.tier(1).written == 4);
  REQUIRE(cache.tier(0).evictions == 2);
  CHECK(driver.serve(numbered(9)) == 8);
  CHECK(cache.tier(0).written == 4);
  driver.check_invariants();
}

TEST_CASE("a record that was damaged in a store is written again", "[tier][slower_tiers]") {
  auto [store, cache, driver] = filled_places();
  const auto serve_all = [&] {
    auto hits = std::vector<std::int64_t>{};
    for (const auto first : {0, 100, 200, 300, 400}) {
      hits.push_back(driver.serve(numbered(13, first), salt{1}));
      cache.wait_idle();
    }
    return hits;
  };
  const auto before = serve_all();
  REQUIRE(before[0] == 12);
  for (auto& [place, record] : store->records) {
    record.bytes.get()[record.size - 1] ^= std::byte{1};
  }
  CHECK(serve_all()[0] < 12);
  serve_all();
  CHECK(serve_all() == before);
  driver.check_invariants();
}

TEST_CASE("a prompt that host memory has evicted comes back from a slower tier", "[tier][slower_tiers]") {
  auto [store, cache, driver] = filled_places();
  CHECK(cache.tier(1).written == 12);
  CHECK(cache.tier(1).num_records == 12);
  const auto made = driver.create(numbered(13), salt{1});
  REQUIRE(made);
  CHECK(made->num_cached_tokens == 0);
  CHECK(made->num_loading_tokens == 12);
  CHECK(cache.poll(made->id).num_loading_tokens == 12);
  CHECK(!cache.poll(made->id).done());
  driver.check_invariants();
  cache.run_transfers();
  CHECK(cache.poll(made->id).num_loaded_tokens == 12);
  CHECK(cache.poll(made->id).done());
  driver.settle(made->id);
  CHECK(driver.live.at(made->id).num_written == 12);
  CHECK(cache.tier(1).loads == 3);
  CHECK(cache.tier(1).hit_blocks == 3);
  CHECK(cache.tier(0).loaded_into == 3);
  CHECK(cache.tier(0).hit_blocks == 0);
  driver.check_invariants();
  driver.release(made->id);
  CHECK(cache.find_prefix(numbered(13), salt{1}) == 12);
}

TEST_CASE("without a first chunk, a sequence ends with what a slower tier loads", "[tier][slower_tiers]") {
  auto [store, cache, driver] = filled_places();
  const auto made = driver.create(numbered(15), salt{1}, {.first_chunk = 0});
  REQUIRE(made);
  CHECK(made->num_tokens == 12);
  CHECK(made->num_loading_tokens == 12);
  cache.run_transfers();
  driver.settle(made->id);
  CHECK(driver.live.at(made->id).num_written == 12);
  driver.check_invariants();
}

TEST_CASE("a sequence is no longer than its first chunk where loads find no room", "[tier][slower_tiers]") {
  const auto first_chunk = std::int64_t{GENERATE(0, 1)};
  auto config = by_hand();
  config.write = write_policy::through;
  auto cache = placed_cache{small_device(16), config, {8}, {places_in(std::make_shared<fake_store>(), 64)}};
  auto driver = tiered_driver{cache};
  for (auto first = 0; first < 1000; first += 100) {
    driver.serve(numbered(13, first), salt{1});
    cache.wait_idle();
  }
  auto lengths = std::vector<std::int64_t>{};
  for (const auto first : {0, 100, 200, 300}) {
    const auto made = driver.create(numbered(13, first), salt{1}, {.first_chunk = first_chunk});
    REQUIRE(made);
    CHECK(made->num_tokens == made->num_cached_tokens + made->num_loading_tokens + first_chunk);
    CHECK(made->num_blocks == (made->num_tokens + 3) / 4);
    CHECK(made->num_new_blocks == made->num_blocks);
    CHECK(cache.describe(made->id)->num_prompt_tokens == 13);
    lengths.push_back(made->num_loading_tokens);
    driver.check_invariants();
  }
  CHECK(lengths == std::vector<std::int64_t>{12, 12, 8, 0});
  cache.run_transfers();
  for (const auto& [id, s] : std::map(driver.live)) {
    driver.settle(id);
    driver.compute(id);
    driver.release(id);
  }
  driver.check_invariants();
}

TEST_CASE("a sequence that ends where loads found no room keeps the keys of its prompt", "[tier][slower_tiers]") {
  auto config = by_hand();
  config.write = write_policy::through;
  auto cache = placed_cache{small_device(16), config, {8}, {places_in(std::make_shared<fake_store>(), 64)}};
  const auto keys = std::vector<prefix_key>{{2, {7, 8}}, {9, {7, 8}}, {12, {1, 2}}};
  for (auto first = 0; first < 1000; first += 100) {
    const auto tokens = numbered(13, first);
    const auto made = cache.create_sequence({tokens, keys}).value();
    cache.commit(made.id, 13).value();
    cache.release(made.id).value();
    cache.wait_idle();
  }
  auto made = std::vector<admission>{};
  for (const auto first : {0, 100, 200, 300}) {
    const auto tokens = numbered(13, first);
    made.push_back(cache.create_sequence({tokens, keys}, {.first_chunk = 0}).value());
    auto kept = std::vector<prefix_key>(4);
    CHECK(cache.keys(made.back().id, kept).value() == 3);
    CHECK(std::equal(keys.begin(), keys.end(), kept.begin()));
  }
  CHECK(made[2].num_tokens < 12);
  cache.run_transfers();
  for (const auto& each : made) {
    REQUIRE(cache.settle(each.id));
    REQUIRE(cache.release(each.id));
  }
  CHECK(cache.check_invariants().empty());
}

TEST_CASE("a restored session shares what host memory has, and its file brings the rest", "[tier][slower_tiers]") {
  const auto folder = testing::temporary_folder{};
  auto from = kv_cache<float32>{small_device(8)};
  const auto save = [&](token first) {
    auto saver = tiered_driver{from};
    const auto id = saver.create(numbered(15, first), salt{1})->id;
    saver.compute(id, 14);
    REQUIRE(save_sequence(from, id, folder.file("session")));
    saver.release(id);
  };
  auto [store, cache, driver] = filled_places();
  const auto restore = [&](token first) {
    const auto made = restore_sequence(cache, folder.file("session"));
    REQUIRE(made);
    CHECK(made->num_loading_tokens == 0);
    CHECK(cache.poll(made->id).num_loading_tokens == 0);
    CHECK(cache.describe(made->id)->num_computed_tokens == 14);
    driver.live[made->id] = {numbered(15, first), salt{1}, 14};
    driver.check_contents(made->id);
    driver.check_invariants();
    return *made;
  };
  save(0);  // which the slower tier has, and needs a transfer for
  const auto loaded = restore(0);
  CHECK(loaded.num_cached_tokens == 0);
  driver.release(loaded.id);
  cache.wait_idle();
  save(400);
  const auto shared = restore(400);
  CHECK(shared.num_cached_tokens == 12);
  CHECK(cache.tier(0).hit_blocks == 3);

  // It is saved in its turn, for a cache without tiers.
  REQUIRE(save_sequence(cache, shared.id, folder.file("session")));
  driver.release(shared.id);
  driver.check_invariants();
  const auto back = restore_sequence(from, folder.file("session"));
  REQUIRE(back);
  auto reader = tiered_driver{from};
  reader.live[back->id] = {numbered(15, 400), salt{1}, 14};
  reader.check_contents(back->id);
}

TEST_CASE("tenants do not share in slower tiers", "[tier][slower_tiers]") {
  auto [store, cache, driver] = filled_places();
  CHECK(driver.serve(numbered(13), salt{2}) == 0);
  cache.wait_idle();
  CHECK(driver.serve(numbered(13), salt{}) == 0);
  cache.wait_idle();
  CHECK(driver.serve(numbered(13), salt{1}) == 12);
  driver.check_invariants();
}

TEST_CASE("a load that several requests want is one load", "[tier][slower_tiers]") {
  auto store = std::make_shared<fake_store>();
  auto cache = placed_cache{small_device(12), by_hand(), {16}, {places_in(store, 64)}};
  auto driver = tiered_driver{cache};
  for (const auto first : {0, 100, 200, 300, 400, 500, 600, 700, 800, 900}) {
    driver.serve(numbered(13, first));
    cache.wait_idle();
  }
  const auto first = driver.create(numbered(13));
  const auto second = driver.create(numbered(13));
  const auto shorter = driver.create(numbered(9));
  REQUIRE((first && second && shorter));
  CHECK(first->num_loading_tokens == 12);
  CHECK(second->num_loading_tokens == 12);
  CHECK(shorter->num_loading_tokens == 8);
  cache.wait(first->id);
  CHECK(store->num_reads == 3);
  for (const auto& made : {first, second, shorter}) {
    driver.settle(made->id);
    CHECK(driver.live.at(made->id).num_written == made->num_loading_tokens);
    driver.check_invariants();
  }
  CHECK(cache.tier(1).loads == 3);
  CHECK(cache.tier(1).hit_blocks == 3);
}

TEST_CASE("a load survives the request that began it", "[tier][slower_tiers]") {
  auto [store, cache, driver] = filled_places();
  const auto made = driver.create(numbered(13), salt{1});
  REQUIRE(made);
  driver.release(made->id);
  driver.check_invariants();
  cache.run_transfers();
  driver.check_invariants();
  const auto again = driver.create(numbered(13), salt{1});
  REQUIRE(again);
  CHECK(again->num_cached_tokens == 12);  // in host memory by now
  driver.check_invariants();
}

TEST_CASE("settling takes what is there, and the rest is computed", "[tier][slower_tiers]") {
  auto [store, cache, driver] = filled_places();
  const auto made = driver.create(numbered(13), salt{1});
  REQUIRE(made);
  driver.settle(made->id);
  CHECK(driver.live.at(made->id).num_written == 0);
  CHECK(cache.poll(made->id).done());
  driver.compute(made->id);
  cache.run_transfers();
  driver.check_invariants();
  driver.settle(made->id);  // without a load: nothing changes
  CHECK(driver.live.at(made->id).num_written == 13);
  driver.release(made->id);
  driver.check_invariants();
}

TEST_CASE("records that are missing, torn or of other contents are computed", "[tier][slower_tiers]") {
  const auto damage = GENERATE(0, 1, 2);
  auto [store, cache, driver] = filled_places();
  const auto made = driver.create(numbered(13), salt{1});
  REQUIRE(made);
  for (auto& [at, record] : store->records) {
    const auto reading =
        read_record_header(placed_cache::format_of(small_device(4), ""), {record.bytes.get(), record.size});
    REQUIRE(reading.fault == record_fault::none);
    if (reading.identity.position == 4 && reading.identity.contents.tokens.front() == 4) {
      if (damage == 0) {
        store->records.erase(at);
      } else if (damage == 1) {
        record.bytes.get()[record.size - record_alignment] ^= std::byte{1};
      } else {
        std::memcpy(record.bytes.get(), store->records.rbegin()->second.bytes.get(), record.size);
      }
      break;
    }
  }
  cache.wait(made->id);
  CHECK(cache.poll(made->id).num_loaded_tokens == 4);
  driver.settle(made->id);
  CHECK(driver.live.at(made->id).num_written == 4);
  const auto counts = cache.tier(1);
  CHECK(counts.missing_loads + counts.failed_loads == 1);
  CHECK(counts.missing_loads == (damage == 0 ? 1 : 0));
  CHECK(counts.dropped == 1);
  driver.check_invariants();
  driver.compute(made->id);
  driver.release(made->id);
  driver.check_invariants();
}

TEST_CASE("a queue that is full loses writes and refuses reads", "[tier][slower_tiers]") {
  auto config = by_hand();
  config.queue_records = 2;
  auto store = std::make_shared<fake_store>();
  auto cache = placed_cache{small_device(4), config, {8}, {places_in(store, 32)}};
  auto driver = tiered_driver{cache};
  driver.serve(numbered(13));
  driver.serve(numbered(13, 100));
  CHECK(cache.tier(1).failed_writes == 1);
  cache.wait_idle();
  driver.serve(numbered(13, 200));
  cache.wait_idle();
  driver.serve(numbered(13, 300));
  cache.wait_idle();
  driver.check_invariants();
  const auto made = driver.create(numbered(13));
  REQUIRE(made);
  cache.wait(made->id);
  driver.settle(made->id);
  driver.check_invariants();
}

TEST_CASE("a full tier costs records, not requests", "[tier][slower_tiers]") {
  auto [store, cache, driver] =
      filled<placed_cache, placed_tier>{places_in(std::make_shared<fake_store>(fault::full), 32)};
  CHECK(cache.tier(1).written == 0);
  CHECK(cache.tier(1).failed_writes == 12);
  CHECK(cache.tier(1).lost_writes == 4);  // which host memory has given up
  CHECK(cache.tier(1).num_owed == 8);
  CHECK(driver.serve(numbered(13), salt{1}) == 0);
  driver.check_invariants();
}

TEST_CASE("a tier with few places evicts its own tails", "[tier][slower_tiers]") {
  auto [store, cache, driver] = filled<placed_cache, placed_tier>{places_in(std::make_shared<fake_store>(), 4)};
  CHECK(cache.tier(1).num_records == 4);
  CHECK(cache.tier(1).evictions == 8);
  driver.serve(numbered(13), salt{1});
  driver.check_invariants();
}

TEST_CASE("a cache that is made anew finds the records of the one before", "[tier][slower_tiers]") {
  auto store = std::make_shared<fake_store>();
  {
    auto before = filled<placed_cache, placed_tier>{places_in(store, 32)};
  }
  auto cache = placed_cache{small_device(4), by_hand(), {8}, {places_in(store, 32)}};
  auto driver = tiered_driver{cache};
  CHECK(cache.tier(1).adopted == 12);
  driver.check_invariants();
  CHECK(driver.serve(numbered(13), salt{2}) == 0);
  CHECK(driver.serve(numbered(13), salt{1}) == 12);
  CHECK(driver.serve(numbered(13, 100), salt{1}) == 12);
  driver.check_invariants();
}

TEST_CASE("records without their ancestors are adopted when these come", "[tier][slower_tiers]") {
  auto store = std::make_shared<fake_store>();
  {
    auto before = filled<placed_cache, placed_tier>{places_in(store, 32)};
  }
  const auto format = placed_cache::format_of(small_device(4), "");
  std::erase_if(store->records, [&](const auto& entry) {
    return read_record_header(format, {entry.second.bytes.get(), entry.second.size}).identity.position == 4;
  });
  auto cache = placed_cache{small_device(4), by_hand(), {8}, {places_in(store, 32)}};
  auto driver = tiered_driver{cache};
  CHECK(cache.tier(1).adopted == 4);
  driver.check_invariants();
  CHECK(cache.tier(1).num_orphans == 4);
  CHECK(driver.serve(numbered(13), salt{1}) == 4);
  CHECK(cache.tier(1).adopted == 5);  // the third block, behind the second, which was computed
  CHECK(cache.tier(1).num_orphans == 3);
  driver.check_invariants();
  auto other = tier_config{by_hand()};
  other.model = "other weights";
  auto with_other_model = placed_cache{
      small_device(4), other, {4}, {{store, 32, placed_cache::format_of(small_device(4), other.model)}}};
  CHECK(with_other_model.tier(1).adopted == 0);
}

TEST_CASE("a keyed tier is asked for what another cache has written", "[tier][slower_tiers]") {
  const auto store = std::make_shared<fake_store>();
  {
    auto before = filled<keyed_cache, keyed_tier>{keyed_tier{store}};
  }
  auto config = by_hand();
  auto deaf = keyed_cache{small_device(4), config, {8}, {keyed_tier{store}}};
  CHECK(tiered_driver{deaf}.serve(numbered(13), salt{1}) == 0);
  config.ask_ahead = 2;
  auto cache = keyed_cache{small_device(4), config, {8}, {keyed_tier{store}}};
  auto driver = tiered_driver{cache};
  const auto made = driver.create(numbered(13), salt{1});
  REQUIRE(made);
  CHECK(made->num_loading_tokens == 8);
  cache.wait(made->id);
  driver.settle(made->id);
  CHECK(driver.live.at(made->id).num_written == 8);
  driver.release(made->id);
  driver.check_invariants();
  CHECK(driver.serve(numbered(13), salt{2}) == 0);
  CHECK(cache.tier(1).missing_loads == 2);
  driver.check_invariants();
}

TEST_CASE("tiers follow each other, and the fastest is read", "[tier][slower_tiers]") {
  auto places = std::make_shared<fake_store>();
  const auto keys = std::make_shared<fake_store>();
  auto cache = tiered_cache<float32, placed_tier, keyed_tier>{
      small_device(4), by_hand(), {8}, {places_in(places, 10), keyed_tier{keys}}};
  auto driver = tiered_driver{cache};
  for (const auto first : {0, 100, 200, 300, 400}) {
    driver.serve(numbered(13, first));
    cache.wait_idle();
  }
  CHECK(cache.tier(1).evictions > 0);
  CHECK(keys->num_writes == 12);
  CHECK(driver.serve(numbered(13)) == 12);
  CHECK(cache.tier(2).hit_blocks > 0);
  CHECK(cache.tier(1).hit_blocks + cache.tier(2).hit_blocks + cache.tier(0).hit_blocks == 3);
  driver.check_invariants();
}

TEST_CASE("what computes faster than it loads is computed", "[tier][slower_tiers]") {
  auto config = by_hand();
  config.prefill_tokens_per_second = std::int64_t{1} << 60;
  auto [store, cache, driver] = filled_places(config);
  CHECK(driver.serve(numbered(13), salt{1}) == 12);  // no speed is known yet
  CHECK(driver.serve(numbered(13, 100), salt{1}) == 0);
  driver.check_invariants();
}

TEST_CASE("behind host memory, a tier gets whole records from there", "[tier][slower_tiers]") {
  const auto tier = places_in(std::make_shared<fake_store>(), 32);
  const auto cache = placed_cache{small_device(4), {}, {8}, {tier}};
  CHECK(cache.host_bytes() == 8 * placed_cache::format_of(small_device(4), "").record_bytes());
}

TEST_CASE("a read takes at most a quarter of a tier's known speed, and what is missing none", "[tier][slower_tiers]") {
  using tier_type = detail::slower_tier_of<keyed_tier>;
  const auto store = std::make_shared<fake_store>();
  const auto format = keyed_cache::format_of(small_device(4), "");
  constexpr auto size = std::size_t{64};
  auto signal = transfer_signal{};
  auto queue = transfer_queue{std::make_unique<tier_type>(keyed_tier{store}), false, format, size, false, signal};
  auto memory = std::vector<std::byte>(format.record_bytes());
  store->write({0, 0}, memory);
  const auto read = [&](std::size_t num_there) {
    auto job = record_job{};
    for (std::size_t i = 0; i < size; ++i) {
      job.transfer = {{i < num_there ? 0U : 1U, 0}, 0, memory};
      REQUIRE(queue.try_push(job));
    }
    REQUIRE(queue.run() == size);
    while (queue.try_pop(job)) {
    }
    return queue.read_bytes_per_second();
  };
  CHECK(queue.read_bytes_per_second() == 0);
  const auto first = read(size);
  CHECK(first > 0);
  CHECK(read(0) == first);  // nothing was read
  CHECK(read(1) >= first * 0.75);
}

TEST_CASE("a tier that stalls costs its records until it goes on", "[tier][slower_tiers]") {
  auto config = tier_config{};
  auto [store, cache, driver] = filled_places(config);
  store->close();
  const auto made = driver.create(numbered(13), salt{1});
  REQUIRE(made);
  CHECK(made->num_loading_tokens == 12);
  CHECK(!cache.wait(made->id, std::chrono::steady_clock::now()).done());
  CHECK(!cache.wait_idle(std::chrono::steady_clock::now()));
  driver.settle(made->id);
  CHECK(driver.live.at(made->id).num_written == 0);
  driver.compute(made->id);
  driver.release(made->id);
  store->open();
  CHECK(cache.wait_idle());
  driver.check_invariants();
}

TEST_CASE("a load in flight outlives an invalidation and a reset", "[tier][slower_tiers]") {
  auto [store, cache, driver] = filled_places();
  auto made = driver.create(numbered(13), salt{1});
  REQUIRE(made);
  cache.invalidate_prefix(numbered(13), salt{1});
  cache.run_transfers();
  driver.check_invariants();
  driver.release(made->id);
  driver.check_invariants();
  CHECK(driver.serve(numbered(13), salt{1}) == 0);
  cache.wait_idle();
  made = driver.create(numbered(13, 100), salt{1});
  REQUIRE(made);
  CHECK(made->num_loading_tokens + made->num_cached_tokens == 12);
  driver.release(made->id);
  REQUIRE(cache.reset_prefix_cache());
  cache.wait_idle();
  driver.check_invariants();
  CHECK(cache.tier(0).num_records == 0);
  CHECK(cache.tier(1).num_records == 0);
}

TEST_CASE("a record that is owed when the cache is reset is let go", "[tier][slower_tiers]") {
  auto cache = writing_through(places_in(std::make_shared<fake_store>(), 32));
  auto driver = tiered_driver{cache};
  driver.serve(numbered(13));
  REQUIRE(cache.reset_prefix_cache());
  driver.check_invariants();
  cache.wait_idle();
  driver.check_invariants();
  CHECK(cache.tier(0).num_records == 0);
  CHECK(cache.tier(1).num_records == 0);
  CHECK(driver.serve(numbered(13)) == 0);
}

TEST_CASE("a load in flight brings nothing that was invalidated meanwhile", "[tier][slower_tiers]") {
  auto [store, cache, driver] = filled_places();
  const auto whole = GENERATE(true, false);
  const auto made = driver.create(numbered(13), salt{1});
  REQUIRE(made);
  REQUIRE(made->num_loading_tokens == 12);
  if (whole) {
    cache.invalidate_prefix(numbered(4), salt{1});
  } else {
    cache.invalidate_salt(salt{1});
  }
  cache.run_transfers();
  CHECK(cache.poll(made->id).num_loaded_tokens == 0);
  CHECK(cache.poll(made->id).done());
  driver.settle(made->id);
  CHECK(driver.live.at(made->id).num_written == 0);
  CHECK(cache.find_prefix(numbered(13), salt{1}) == 0);
  driver.check_invariants();
  driver.compute(made->id);
  driver.release(made->id);
  driver.check_invariants();
}

TEST_CASE("blocks behind invalidated ones are not written when they are evicted", "[tier][slower_tiers]") {
  auto config = by_hand();
  config.ask_ahead = 4;
  const auto store = std::make_shared<fake_store>();
  auto cache = keyed_cache{small_device(6), config, {8}, {keyed_tier{store}}};
  auto driver = tiered_driver{cache};
  driver.serve(numbered(9));
  driver.serve(numbered(17, 100));  // the end of the first prompt goes to the store
  const auto made = driver.create(numbered(9));
  cache.wait_idle();
  REQUIRE(made);
  driver.settle(made->id);
  driver.compute(made->id);
  for (const auto next : {1, 2, 3, 4}) {
    REQUIRE(driver.append(made->id, next));
  }
  driver.compute(made->id);  // a block that no tier knows
  cache.invalidate_prefix(numbered(4));
  driver.release(made->id);
  for (const auto first : {200, 300, 400}) {
    driver.serve(numbered(17, first));
    cache.wait_idle();
  }
  driver.check_invariants();
  driver.serve(numbered(9));
  auto prompt = numbered(9);
  prompt.insert(prompt.end(), {1, 2, 3, 4});
  CHECK(driver.serve(prompt) == 8);
  driver.check_invariants();
}

TEST_CASE("a store is not asked for what was invalidated while it was loaded", "[tier][slower_tiers]") {
  auto config = by_hand();
  config.ask_ahead = 1;
  auto [store, cache, driver] = filled<keyed_cache, keyed_tier>{keyed_tier{std::make_shared<fake_store>()}, config};
  driver.serve(numbered(5), salt{2});
  for (const auto first : {500, 600, 700, 800}) {
    driver.serve(numbered(13, first), salt{1});
    cache.wait_idle();
  }
  const auto waiting = driver.create(numbered(5), salt{2});
  REQUIRE(waiting);
  REQUIRE(waiting->num_loading_tokens == 4);
  cache.invalidate_salt(salt{2});
  driver.check_invariants();
  const auto arrives = GENERATE(false, true);
  if (arrives) {
    cache.run_transfers();
  } else {
    driver.release(waiting->id);
  }
  CHECK(driver.serve(numbered(5), salt{2}) == 0);
  driver.check_invariants();
}

TEST_CASE("a record that is written behind a read which missed it is known", "[tier][slower_tiers]") {
  auto config = tier_config{};
  config.write = write_policy::through;
  config.ask_ahead = 1;
  const auto store = std::make_shared<fake_store>();
  const auto num_written = [&] {
    const auto lock = std::lock_guard{store->mutex};
    return store->num_writes;
  };
  auto cache = keyed_cache{small_device(4), config, {4}, {keyed_tier{store}}};
  auto driver = tiered_driver{cache};
  store->close();
  const auto made = driver.create(numbered(5));
  REQUIRE(made);
  REQUIRE(made->num_loading_tokens == 4);
  driver.settle(made->id);
  driver.compute(made->id);
  store->open();
  while (num_written() == 0) {
    std::this_thread::yield();
  }
  cache.wait_idle();
  CHECK(cache.tier(1).num_records == 1);
  driver.release(made->id);
  cache.invalidate_salt({});
  driver.check_invariants();
  REQUIRE(store->await_erasures(1));
}

TEST_CASE("records behind invalidated ones go with them", "[tier][slower_tiers]") {
  auto [store, cache, driver] = filled_places();
  cache.invalidate_prefix(numbered(4), salt{1});
  CHECK(cache.tier(1).num_records == 9);
  driver.check_invariants();
  CHECK(driver.serve(numbered(13, 100), salt{1}) == 12);
}

TEST_CASE("a sequence whose block was invalidated writes nothing through behind it", "[tier][slower_tiers]") {
  auto cache = writing_through(places_in(std::make_shared<fake_store>(), 32));
  auto driver = tiered_driver{cache};
  const auto made = driver.create(numbered(9));
  REQUIRE(made);
  driver.compute(made->id, 4);
  cache.wait_idle();
  cache.invalidate_prefix(numbered(4));
  driver.compute(made->id);
  driver.check_invariants();
  cache.wait_idle();
  CHECK(cache.tier(1).num_records == 0);
  driver.release(made->id);
  CHECK(cache.find_prefix_in_tiers(numbered(9)).with_slower_tiers == 0);
  driver.serve(numbered(13, 100));  // in the blocks that are free now
  cache.wait_idle();
  REQUIRE(cache.compact());
  CHECK(driver.serve(numbered(9)) == 0);
  CHECK(driver.serve(numbered(9)) == 8);
  driver.check_invariants();
}

TEST_CASE("what is invalidated is erased from tiers, for every cache", "[tier][slower_tiers]") {
  const auto store = std::make_shared<fake_store>();
  auto config = by_hand();
  config.ask_ahead = 4;
  auto before = filled<keyed_cache, keyed_tier>{keyed_tier{store}, config};
  auto other = keyed_cache{small_device(4), config, {8}, {keyed_tier{store}}};
  const auto how = GENERATE(0, 1, 2, 3);
  if (how == 0) {
    before.cache.invalidate_prefix(numbered(4), salt{1});
  } else if (how == 1) {
    before.cache.invalidate_salt(salt{1});
  } else if (how == 2) {
    REQUIRE(before.cache.reset_prefix_cache());
  } else {
    auto deaf = keyed_cache{small_device(4), config, {8}, {keyed_tier{store}}};
    deaf.invalidate_prefix(numbered(13), salt{1});  // of another process
  }
  if (how != 3) {
    CHECK(before.cache.tier(1).num_erasing > 0);
    CHECK(before.cache.tier(0).num_erasing == 0);
    before.cache.run_transfers();
    CHECK(before.cache.tier(1).num_erasing == 0);
    before.driver.check_invariants();
  }
  CHECK(tiered_driver{other}.serve(numbered(13), salt{1}) == 0);
  CHECK(tiered_driver{other}.serve(numbered(13, 100), salt{1}) == (how == 1 || how == 2 ? 0 : 12));
}

TEST_CASE("a store that does not erase is not asked for what nobody has heard of", "[tier][slower_tiers]") {
  const auto store = std::make_shared<fake_store>();
  auto config = by_hand();
  config.ask_ahead = 4;
  auto [same, cache, driver] = filled<keyed_cache, keyed_tier>{keyed_tier{store}, config};
  store->wrong = fault::full;
  cache.invalidate_prefix(numbered(13), salt{1});
  cache.run_transfers();
  CHECK(cache.tier(1).num_erasing > 0);
  CHECK(driver.serve(numbered(13), salt{1}) == 0);
  driver.check_invariants();
  store->wrong = fault::none;
  cache.run_transfers();
  CHECK(cache.tier(1).num_erasing == 0);
  driver.check_invariants();
}

TEST_CASE("an erasure that is tried again leaves what was written anew under its key", "[tier][slower_tiers]") {
  const auto store = std::make_shared<fake_store>();
  auto config = by_hand();
  config.write = write_policy::through;
  auto cache = keyed_cache{small_device(4), config, {8}, {keyed_tier{store}}};
  auto driver = tiered_driver{cache};
  driver.serve(numbered(5));
  cache.wait_idle();
  store->erases = false;
  cache.invalidate_prefix(numbered(4));
  cache.run_transfers();
  CHECK(cache.tier(1).num_erasing > 0);
  driver.serve(numbered(5));
  const auto invalidated_again = GENERATE(false, true);
  if (invalidated_again) {
    cache.invalidate_prefix(numbered(4));
  }
  cache.wait_idle();
  CHECK(store->num_writes == 2);
  CHECK((cache.tier(1).num_erasing > 0) == invalidated_again);
  store->erases = true;
  cache.run_transfers();
  CHECK(cache.tier(1).num_erasing == 0);
  CHECK(store->records.size() == (invalidated_again ? 0 : 1));
  driver.check_invariants();
}

TEST_CASE("a tier's thread tries an erasure again until it succeeds", "[tier][slower_tiers]") {
  const auto tier = places_in(std::make_shared<fake_store>(), 4);
  auto& store = *tier.store;
  auto config = tier_config{};
  config.write = write_policy::through;
  auto cache = placed_cache{small_device(4), config, {4}, {tier}};
  tiered_driver{cache}.serve(numbered(5));
  cache.wait_idle();
  const auto set_erases = [&](bool erases) {
    const auto lock = std::lock_guard{store.mutex};
    store.erases = erases;
    return store.num_erasures;
  };
  set_erases(false);
  cache.invalidate_prefix(numbered(4));
  REQUIRE(store.await_erasures(2));
  CHECK(cache.tier(1).num_erasing == 1);
  REQUIRE(store.await_erasures(set_erases(true) + 1));
  while (cache.tier(1).num_erasing != 0) {
    std::this_thread::yield();
  }
  CHECK(store.records.empty());
}

TEST_CASE("erasures that fail do not keep others from being tried", "[tier][slower_tiers]") {
  const auto tier = places_in(std::make_shared<fake_store>(), 100);
  auto config = by_hand();
  config.write = write_policy::through;
  auto cache = placed_cache{small_device(101), config, {202}, {tier}};
  tiered_driver{cache}.serve(numbered(401));
  cache.wait_idle();
  REQUIRE(tier.store->records.size() == 100);
  for (auto place = std::uint64_t{0}; place < 100; ++place) {
    if (place % 4 != 0) {
      tier.store->unerasable.emplace(place, 0);
    }
  }
  cache.invalidate_salt(salt{});
  for (auto i = 0; i < 4; ++i) {
    cache.run_transfers();
  }
  CHECK(cache.tier(1).num_erasing == 75);
  CHECK(tier.store->records.size() == 75);
  tier.store->unerasable.clear();
  cache.run_transfers();
  cache.run_transfers();
  CHECK(cache.tier(1).num_erasing == 0);
  CHECK(tier.store->records.empty());
  tiered_driver{cache}.check_invariants();
}

TEST_CASE("a cache that is made anew finds nothing that was invalidated", "[tier][slower_tiers]") {
  const auto threads = GENERATE(true, false);
  auto config = by_hand();
  config.threads = threads;
  auto store = std::make_shared<fake_store>();
  {
    auto before = filled<placed_cache, placed_tier>{places_in(store, 32), config};
    before.cache.invalidate_prefix(numbered(4), salt{1});
  }
  auto cache = placed_cache{small_device(4), by_hand(), {8}, {places_in(store, 32)}};
  CHECK(cache.tier(1).adopted == 9);
  CHECK(tiered_driver{cache}.serve(numbered(13), salt{1}) == 0);
}

TEST_CASE("a tier without places takes more records than the cache remembers", "[tier][slower_tiers]") {
  const auto store = std::make_shared<fake_store>();
  auto config = by_hand();
  config.known_records = 9;
  auto cache = keyed_cache{small_device(4), config, {8}, {keyed_tier{store}}};
  auto driver = tiered_driver{cache};
  for (token first = 0; first < 5'000; first += 100) {
    driver.serve(numbered(13, first));
    cache.wait_idle();
  }
  CHECK(store->num_writes == 147);
  CHECK(cache.tier(0).lost_writes == 0);
  CHECK(cache.tier(1).num_records == 9);
  CHECK(cache.tier(1).evictions == 138);
  driver.check_invariants();
  CHECK(driver.serve(numbered(13, 4'600)) == 12);
  CHECK(cache.tier(1).loads + cache.tier(0).hit_blocks >= 3);
}

TEST_CASE("memory figures count the records that the cache remembers", "[tier][slower_tiers]") {
  const auto index_bytes = [](std::int32_t known_records) {
    auto config = by_hand();
    config.known_records = known_records;
    const auto keys = keyed_tier{std::make_shared<fake_store>()};
    return keyed_cache{small_device(4), config, {8}, {keys}}.memory().index;
  };
  const auto num_more = std::int64_t{1} << 14;
  const auto more_bytes = index_bytes(1 << 15) - index_bytes(1 << 14);
  const auto expected = num_more * (132 + 4 * small_device(4).block_size);
  CHECK(std::abs(more_bytes - expected) < num_more);  // buckets of hashes are rounded
}

TEST_CASE("memory figures count what is known of records that wait for an ancestor", "[tier][slower_tiers]") {
  const auto store = std::make_shared<fake_store>();
  {
    auto before = filled<placed_cache, placed_tier>{places_in(store, 32)};
  }
  const auto format = placed_cache::format_of(small_device(4), "");
  const auto header_of = [&](const auto& entry) {
    return read_record_header(format, {entry.second.bytes.get(), entry.second.size}).identity;
  };
  std::erase_if(store->records, [&](const auto& entry) { return header_of(entry).position == 0; });
  auto cache = placed_cache{small_device(4), by_hand(), {8}, {places_in(store, 32)}};
  auto driver = tiered_driver{cache};
  const auto num_orphans = cache.tier(1).num_orphans;
  REQUIRE(num_orphans > 0);
  const auto before = cache.memory().index;
  for (const auto first : {0, 100, 200, 300}) {
    driver.serve(numbered(13, first), salt{1});
  }
  REQUIRE(cache.tier(1).num_orphans == 0);
  const auto bytes_of_each = sizeof(record_key) + sizeof(found_record) + 4 * sizeof(token);
  const auto bytes_of_salt = sizeof(std::pair<const salt, std::size_t>);
  CHECK(before - cache.memory().index ==
        num_orphans * static_cast<std::int64_t>(bytes_of_each) + static_cast<std::int64_t>(bytes_of_salt));
}

TEST_CASE("records whose writes failed are written when the tier works again", "[tier][slower_tiers]") {
  const auto by_hit = GENERATE(false, true);
  auto store = std::make_shared<fake_store>(fault::full);
  auto cache = placed_cache{small_device(4), by_hand(), {16}, {places_in(store, 32)}};
  auto driver = tiered_driver{cache};
  for (const auto first : {0, 100, 200}) {
    driver.serve(numbered(13, first));
    cache.wait_idle();
  }
  CHECK(cache.tier(0).num_records == 6);
  CHECK(cache.tier(1).failed_writes == 6);
  CHECK(cache.tier(1).num_owed == 6);
  CHECK(cache.tier(0).late_writes == 0);
  driver.check_invariants();
  store->wrong = fault::none;
  driver.serve(numbered(by_hit ? 13 : 9, by_hit ? 0 : 300));
  cache.wait_idle();
  driver.check_invariants();
  CHECK(cache.tier(1).num_records == cache.tier(0).num_records);
  CHECK(cache.tier(0).late_writes == 6);
  CHECK(cache.tier(1).num_owed == 0);
  CHECK(cache.tier(1).lost_writes == 0);
}

TEST_CASE("each record that a slower tier does not get is counted once", "[tier][slower_tiers][random]") {
  const auto seed = Catch::getSeed();
  CAPTURE(seed);
  auto random = std::mt19937{seed};
  auto config = by_hand();
  config.queue_records = 3;
  const auto store = std::make_shared<fake_store>();
  auto cache = placed_cache{small_device(8), config, {6}, {places_in(store, 200)}};
  auto driver = tiered_driver{cache};
  for (auto first = 0; first < 10'000; first += 100) {  // a block each, and no two alike
    store->wrong = random() % 4 == 0 ? fault::full : fault::none;
    driver.serve(numbered(5, first));
    if (random() % 8 == 0) {
      driver.release(driver.create(numbered(29, 50))->id);  // all of them go at once
    }
    if (random() % 2 == 0) {
      cache.run_transfers();
    }
    driver.check_invariants();
    const auto host = cache.tier(0);
    const auto slower = cache.tier(1);
    CHECK(host.handed_over == cache.statistics().evictions);
    CHECK(host.written + host.lost_writes == host.handed_over);
    CHECK(slower.handed_over == host.written);
    CHECK(slower.written == std::ssize(store->records));
    CHECK(slower.written + slower.num_owed + slower.lost_writes == host.written);
    CHECK(slower.num_owed <= host.num_records);
    CHECK(slower.lost_writes <= host.evictions);
  }
  CHECK(cache.tier(0).lost_writes > 0);
  CHECK(cache.tier(1).lost_writes > 0);
  CHECK(cache.tier(1).written > 0);
}

TEST_CASE("a small host tier loads while it is written to slower tiers", "[tier][slower_tiers]") {
  auto store = std::make_shared<fake_store>();
  auto cache = placed_cache{small_device(4), by_hand(), {3}, {places_in(store, 32)}};
  auto driver = tiered_driver{cache};
  for (const auto first : {0, 100, 200, 300}) {
    driver.serve(numbered(13, first));
    cache.wait_idle();
  }
  const auto made = driver.create(numbered(13));
  REQUIRE(made);
  CHECK(made->num_loading_tokens == 8);
  driver.check_invariants();
  cache.wait(made->id);
  driver.settle(made->id);
  CHECK(driver.live.at(made->id).num_written == 8);
  driver.release(made->id);
  driver.check_invariants();
}

TEST_CASE("random operations over faulty tiers bring back every token's own K/V", "[tier][slower_tiers][random]") {
  const auto seed = Catch::getSeed();
  const auto threads = testing::under_thread_sanitizer || GENERATE(false, true);  // without, it would see nothing
  const auto wrong =
      GENERATE(fault::none, fault::fails, fault::tears, fault::lies, fault::full, fault::forgets, fault::all);
  const auto write = GENERATE(write_policy::on_eviction, write_policy::through);
  auto config = tier_config{};
  config.threads = threads;
  config.write = write;
  config.queue_records = 16;
  config.known_records = 2'000;  // far fewer than the default: each check of the invariants looks at all
  CAPTURE(threads, static_cast<int>(wrong), static_cast<int>(write));
  auto store = std::make_shared<fake_store>(wrong, seed);
  {
    auto cache = placed_cache{small_device(12), config, {10}, {places_in(store, 40)}};
    run_randomly(cache, seed, testing::halved_if_sanitized(250));
  }
  {
    auto again = placed_cache{small_device(12), config, {10}, {places_in(store, 40)}};
    run_randomly(again, seed + 1, testing::halved_if_sanitized(100));
  }
  config.ask_ahead = 3;
  auto exclusive = config;
  exclusive.exclusive = write == write_policy::on_eviction;
  const auto keys = std::make_shared<fake_store>(wrong, seed);
  auto cache = tiered_cache<float32, rw_lock, placed_tier, keyed_tier>{
      small_device(12), exclusive, {10}, {places_in(std::make_shared<fake_store>(wrong, seed), 15), {keys}}};
  run_randomly(cache, seed + 2, testing::halved_if_sanitized(250));
}

TEST_CASE("a later cache does not find what was invalidated while its place was promised to another", "[slower_tiers]") {
  const auto tier = places_in(std::make_shared<fake_store>(), 1);
  {
    auto [cache, driver] = full_place{tier};
    driver.serve(numbered(5, 100));
    cache.poll();
    REQUIRE(cache.tier(1).evictions == 1);
    cache.invalidate_salt(salt{});
  }
  auto cache = writing_through(tier);
  CHECK(cache.tier(1).adopted == 0);
}

TEST_CASE("records without their ancestors are erased with what may be before them", "[slower_tiers]") {
  const auto tier = places_in(std::make_shared<fake_store>(), 4);
  {
    auto cache = writing_through(tier);
    tiered_driver{cache}.serve(numbered(9));
    cache.wait_idle();
  }
  REQUIRE(tier.store->records.size() == 2);
  tier.store->records.begin()->second.bytes.get()[0] ^= std::byte{1};  // of the first block
  {
    auto cache = writing_through(tier);
    REQUIRE(cache.tier(1).adopted == 0);
    cache.invalidate_salt(salt{});
    tiered_driver{cache}.serve(numbered(5));
    cache.wait_idle();
  }
  auto cache = writing_through(tier);
  CHECK(cache.tier(1).adopted == 1);
}

TEST_CASE("records without their ancestors make room first", "[slower_tiers]") {
  const auto tier = places_in(std::make_shared<fake_store>(), 4);
  auto config = by_hand();
  config.write = write_policy::through;
  const auto open = [&] { return placed_cache{small_device(8), config, {8}, {tier}}; };
  {
    auto cache = open();
    tiered_driver{cache}.serve(numbered(17));
    cache.wait_idle();
  }
  REQUIRE(tier.store->records.size() == 4);
  tier.store->records.begin()->second.bytes.get()[0] ^= std::byte{1};  // of the first block
  auto cache = open();
  auto driver = tiered_driver{cache};
  REQUIRE(cache.tier(1).num_orphans == 3);
  driver.serve(numbered(9, 100));
  cache.wait_idle();
  CHECK(cache.tier(1).num_orphans == 2);  // one place was free
  driver.check_invariants();
  driver.serve(numbered(9, 200));
  cache.wait_idle();
  CHECK(cache.tier(1).num_orphans == 0);
  CHECK(cache.tier(1).num_records == 4);
  CHECK(cache.tier(1).evictions == 0);
  driver.check_invariants();
}

TEST_CASE("a later cache does not find what was invalidated while it was written", "[slower_tiers]") {
  auto config = tier_config{};
  config.write = write_policy::through;
  const auto tier = places_in(std::make_shared<fake_store>(), 4);
  const auto num_stored = [&] {
    const auto lock = std::lock_guard{tier.store->mutex};
    return tier.store->records.size();
  };
  {
    auto cache = placed_cache{small_device(4), config, {4}, {tier}};
    tiered_driver{cache}.serve(numbered(5));
    while (num_stored() == 0) {
      std::this_thread::yield();
    }
    cache.invalidate_salt(salt{});
  }
  CHECK(num_stored() == 0);
}

TEST_CASE("a later cache does not find what was invalidated while it was loaded", "[slower_tiers]") {
  const auto has_arrived = GENERATE(false, true);
  const auto tier = places_in(std::make_shared<fake_store>(), 32);
  {
    auto [store, cache, driver] = filled<placed_cache, placed_tier>{tier};
    const auto made = driver.create(numbered(13), salt{1});
    REQUIRE(made);
    REQUIRE(made->num_loading_tokens == 12);
    if (has_arrived) {
      cache.wait(made->id);
    }
    cache.invalidate_salt(salt{1});
  }
  CHECK(tier.store->records.empty());
}

TEST_CASE("a later cache does not find what was invalidated on its way to a second tier", "[slower_tiers]") {
  using cache_type = tiered_cache<float32, placed_tier, keyed_tier>;
  auto config = by_hand();
  config.write = write_policy::through;
  const auto tier = places_in(std::make_shared<fake_store>(), 4);
  const auto second = keyed_tier{std::make_shared<fake_store>()};
  {
    auto cache = cache_type{small_device(4), config, {4}, {tier, second}};
    tiered_driver{cache}.serve(numbered(5));
    cache.run_transfers();
    REQUIRE(tier.store->records.size() == 1);
    REQUIRE(second.store->records.empty());
    cache.invalidate_salt(salt{});
  }
  CHECK(tier.store->records.empty());
  CHECK(second.store->records.empty());
}

TEST_CASE("a later cache does not find what was invalidated and a failed write left in place", "[slower_tiers]") {
  const auto invalidated_first = GENERATE(false, true);
  const auto tier = places_in(std::make_shared<fake_store>(), 1);
  {
    auto [cache, driver] = full_place{tier};
    tier.store->wrong = fault::full;
    driver.serve(numbered(5, 100));
    cache.poll();
    if (invalidated_first) {
      cache.invalidate_salt(salt{});
    }
    cache.wait_idle();
    REQUIRE(cache.tier(1).failed_writes == 1);
    tier.store->wrong = fault::none;
    if (!invalidated_first) {
      cache.invalidate_salt(salt{});
    }
    cache.run_transfers();
    CHECK(cache.tier(1).num_erasing == 0);
    const auto served_again = GENERATE(false, true);
    if (served_again) {
      driver.serve(numbered(5, 200));
      cache.wait_idle();
    }
    CHECK(cache.tier(1).num_records == (served_again ? 1 : 0));
  }
  auto cache = writing_through(tier);
  CHECK(tiered_driver{cache}.serve(numbered(5)) == 0);
}

TEST_CASE("a later cache does not find what was invalidated before its write was said to have failed",
          "[slower_tiers]") {
  using cache_type = tiered_cache<float32, placed_tier, keyed_tier>;
  auto config = by_hand();
  config.write = write_policy::through;
  const auto tier = places_in(std::make_shared<fake_store>(fault::denies), 4);
  const auto second = keyed_tier{std::make_shared<fake_store>(fault::denies)};
  const auto first_is_done = GENERATE(false, true);
  auto cache = cache_type{small_device(4), config, {4}, {tier, second}};
  auto driver = tiered_driver{cache};
  driver.serve(numbered(5));
  if (first_is_done) {
    tier.store->wrong = fault::none;
    cache.run_transfers();
  }
  cache.invalidate_salt(salt{});
  cache.wait_idle();
  CHECK(cache.tier(1).failed_writes + cache.tier(2).failed_writes == 1);
  cache.run_transfers();
  CHECK(tier.store->records.empty());
  CHECK(second.store->records.empty());
  CHECK(cache.tier(1).num_erasing + cache.tier(2).num_erasing == 0);
  driver.check_invariants();
}

TEST_CASE("a store is not served from when its contents were invalidated after a write was said to have failed",
          "[slower_tiers]") {
  const auto store = std::make_shared<fake_store>(fault::denies);
  auto config = by_hand();
  config.write = write_policy::through;
  config.ask_ahead = 1;
  auto cache = keyed_cache{small_device(4), config, {4}, {keyed_tier{store}}};
  auto driver = tiered_driver{cache};
  driver.serve(numbered(5));
  cache.wait_idle();
  REQUIRE(store->records.size() == 1);
  store->wrong = fault::none;
  cache.invalidate_salt(salt{});
  cache.run_transfers();
  CHECK(store->records.empty());
  CHECK(cache.tier(1).num_erasing == 0);
  CHECK(driver.serve(numbered(5)) == 0);
  driver.check_invariants();
}
