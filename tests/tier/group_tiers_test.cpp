// Tiers behind caches with groups.

#include "fake_tiers.hpp"
#include "restarts.hpp"

#include "../groups/group_engine.hpp"
#include "../support/allocation_count.hpp"
#include "../support/full_numbers.hpp"
#include "temporary_folder.hpp"

#include <pagedkv/tier/basic_file_tier.hpp>
#include <pagedkv/tier/file_engine.hpp>

#include <catch2/catch_get_random_seed.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <memory>
#include <random>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

using namespace pagedkv;
using namespace pagedkv::test;

namespace {

using file_tier_type = basic_file_tier<thread_files>;
template <class... Slower>
using cache_with = kv_cache<float32, layer_groups, host_tier<>, Slower...>;
using host_engine = engine<cache_with<>>;
using placed_engine = engine<cache_with<placed_tier>>;
using engine_on_files = engine<cache_with<file_tier_type>>;

constexpr auto num_places = std::int32_t{1024};
constexpr auto many_records = std::int32_t{1024};

/// A device on which few prompts have room.
[[nodiscard]] cache_config device_with(const group_list& groups) {
  auto config = config_of(groups, 1);
  const auto plan = plan_memory(groups, size_of_element<float32>, config.block_size).value();
  config.num_blocks = 0;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    config.num_blocks +=
        groups[g].holds_tokens() ? 2 * (44 / plan.groups[g].block_size + 1) + 1 : 5 * plan.groups[g].blocks_per_state;
  }
  return config;
}

template <class Cache>
[[nodiscard]] tier_statistics sum_of(Cache& cache) {
  auto sum = tier_statistics{};
  for (std::size_t i = 0; i < Cache::num_tiers; ++i) {
    sum.hit_blocks += cache.tier(i).hit_blocks;
    sum.hit_tokens += cache.tier(i).hit_tokens;
  }
  return sum;
}

/// With a store behind host memory, whose transfers run when the test says so.
[[nodiscard]] placed_engine with_store(const cache_config& device, std::int32_t num_host,
                                       const std::shared_ptr<fake_store>& store, tier_config config = {},
                                       std::int64_t num_in_store = num_places) {
  config.threads = false;
  return placed_engine{device, config, basic_host_tier<host_allocator, lru>{num_host},
                       std::tuple{placed_tier{store, num_in_store, cache_with<placed_tier>::format_of(device, "")}}};
}

/// Loses the records of a prompt's second blocks; returns the position at which these begin.
std::int64_t lose_second(fake_store& store, const cache_config& device) {
  const auto format = cache_with<placed_tier>::format_of(device, "");
  const auto position_of = [&](const auto& entry) {
    return read_record_header(format, {entry.second.bytes.get(), entry.second.size}).identity.position;
  };
  auto positions = std::set<std::int64_t>{};
  for (const auto& entry : store.records) {
    positions.insert(position_of(entry));
  }
  const auto second = *std::next(positions.begin());
  std::erase_if(store.records, [&](const auto& entry) { return position_of(entry) == second; });
  return second;
}

/// Gives the record that lies furthest from a sequence's start this index among those of its node.
void give_deepest_index(fake_store& store, const cache_config& device, std::int64_t index) {
  const auto format = cache_with<placed_tier>::format_of(device, "");
  const auto identity_of = [&](const auto& entry) {
    return read_record_header(format, {entry.second.bytes.get(), entry.second.size}).identity;
  };
  const auto position_of = [&](const auto& entry) { return identity_of(entry).position; };
  auto& deepest = *std::ranges::max_element(store.records, {}, position_of);
  auto identity = identity_of(deepest);
  const auto tokens = std::vector<token>(identity.contents.tokens.begin(), identity.contents.tokens.end());
  identity.contents.tokens = tokens;  // a copy: the header is written where they lie
  identity.index = index;
  REQUIRE(seal_record(format, identity, {deepest.second.bytes.get(), deepest.second.size}));
}

[[nodiscard]] bool attends_to_all(const group_list& groups) {
  return std::ranges::any_of(groups, [](const group_config& group) {
    return group.kind == group_kind::full || group.kind == group_kind::latent;
  });
}

/// Serves other prompts until nothing else is on the device.
template <class Engine>
void fill_device(Engine& on, int first) {
  for (auto i = 0; i < 6; ++i) {
    on.serve(counted(41, first + 1000 * i));
  }
}

}  // namespace

TEST_CASE("what every kind of group lost is found in host memory", "[group_cache][tier]") {
  for (const auto& [kind, groups] : kinds) {
    CAPTURE(kind);
    auto on = host_engine{device_with(groups), tier_config{}, basic_host_tier<host_allocator, lru>{many_records}};
    CHECK(on.serve(counted(41)) == 0);
    fill_device(on, 10'000);
    CHECK(on.cache.find_prefix(counted(41)) < 40);
    CHECK(on.serve(counted(41)) == 40);
    CHECK(sum_of(on.cache).hit_tokens > 0);
    CHECK(on.serve(counted(41), {.salt = salt{1}}) == 0);
    on.check_invariants();
  }
}

TEST_CASE("a sequence of groups is no longer than its first chunk where loads find no room", "[group_cache][tier]") {
  auto num_refused = 0;
  for (const auto& [kind, groups] : kinds) {
    for (const auto num_host : {2, 3, 4, 8}) {
      CAPTURE(kind, num_host);
      auto config = tier_config{};
      config.write = write_policy::through;
      auto on = with_store(device_with(groups), num_host, std::make_shared<fake_store>(), config);
      for (const auto first : {0, 50'000}) {
        on.serve(counted(41, first));
        on.cache.wait_idle();
      }
      fill_device(on, 10'000);
      on.cache.wait_idle();
      for (const auto first : {0, 50'000}) {
        const auto prompt = counted(41, first);
        const auto key = std::array{prefix_key{40, {1, 2}}};  // of the last token, which no hit reaches
        const auto made = on.cache.create_sequence({prompt, key}, {.first_chunk = 0}).value();
        CHECK(made.num_tokens == made.num_cached_tokens + made.num_loading_tokens);
        CHECK(on.cache.describe(made.id)->num_prompt_tokens == 41);
        auto kept = std::array<prefix_key, 2>{};
        CHECK(on.cache.keys(made.id, kept).value() == 1);
        num_refused += made.num_tokens < 40 ? 1 : 0;
      }
      CHECK(on.cache.check_invariants().empty());
    }
  }
  CHECK(num_refused > 0);
}

TEST_CASE("a sequence of groups gets no less from tiers than it is told, where memory is short",
          "[group_cache][tier]") {
  for (const auto& [kind, groups] : kinds) {
    auto num_without = 0;
    for (auto n = 1, found = 0; found != 40; ++n) {
      CAPTURE(kind, n);
      auto on = host_engine{device_with(groups), tier_config{}, basic_host_tier<host_allocator, lru>{many_records}};
      on.serve(counted(41));
      fill_device(on, 10'000);
      const auto prompt = counted(41);
      fail_allocation(n);
      const auto made = on.cache.create_sequence(prompt);
      fail_allocation(0);
      on.check_invariants();
      if (!made) {
        CHECK(made.error().code == error_code::out_of_memory);
        continue;
      }
      CHECK(made->num_cached_tokens == on.cache.describe(made->id)->num_computed_tokens);
      num_without += made->num_cached_tokens < 40;
      found = static_cast<int>(made->num_cached_tokens);
    }
    CHECK(num_without > 0);
  }
}

TEST_CASE("windows keep in tiers what the next token reads", "[group_cache][tier]") {
  auto on =
      host_engine{device_with({full, window}), tier_config{}, basic_host_tier<host_allocator, lru>{many_records}};
  on.serve(counted(41));
  fill_device(on, 10'000);
  const auto before = on.cache.tier(0).num_records;
  CHECK(before > 0);
  const auto num_full = on.cache.statistics().evictions;
  CHECK(before < num_full);
  CHECK(on.serve(counted(41)) == 40);
}

TEST_CASE("what leaves a device ahead of its launch is in no tier", "[group_cache][tier]") {
  const auto all = group_config{.num_layers = 1, .key_dim = 16, .value_dim = 16};
  auto last = all;
  last.kind = group_kind::window;
  last.window = 4;
  auto on = host_engine{config_of({all, last}, 40), tier_config{}, basic_host_tier<host_allocator, lru>{many_records}};
  on.serve(counted(24));
  const auto evict = [&](std::size_t count, step_id step) {
    auto lost = std::vector<block_id>(count);
    REQUIRE(on.cache.evict(lost, step));
  };
  const auto before = on.cache.begin_step().value();
  evict(5, before);  // of windows that no next token reads
  REQUIRE(on.cache.retire_step(before));
  auto text = counted(12);
  std::ranges::copy(counted(12, 1000), std::back_inserter(text));
  const auto step = on.cache.begin_step().value();
  const auto early = on.cache.create_sequence(text).value();
  REQUIRE(early.num_cached_tokens == 0);
  REQUIRE(on.cache.commit(early.id, 24));  // so what both have is of the first, but for the windows
  REQUIRE(on.cache.find_prefix(counted(13)) == 12);
  evict(20, step);
  CHECK(on.cache.find_prefix_in_tiers(counted(13)).with_host_memory == 0);
  CHECK(on.cache.find_prefix_in_tiers(counted(25)).with_host_memory == 24);
  REQUIRE(on.cache.retire_step(step));
  REQUIRE(on.cache.release(early.id));
  on.check_invariants();
}

TEST_CASE("what tiers have is used up to the last saved state", "[group_cache][tier]") {
  auto on = host_engine{device_with({full, state}), tier_config{}, basic_host_tier<host_allocator, lru>{many_records}};
  const auto answered = on.hold(counted(22));
  REQUIRE(on.append(answered, counted(19, 22)));
  on.compute(answered);
  on.release(answered);
  fill_device(on, 10'000);
  CHECK(on.cache.find_prefix(counted(41)) == 0);
  CHECK(on.serve(counted(41)) == 20);
  fill_device(on, 20'000);
  CHECK(on.serve(counted(41)) == 40);
}

TEST_CASE("a sequence takes what others compute while it waits for a slow tier", "[group_cache][tier]") {
  const auto text = counted(41);
  for (const auto& [kind, groups] : kinds) {
    for (const auto publish : {true, false}) {
      CAPTURE(kind, publish);
      const auto store = std::make_shared<fake_store>();
      auto on = with_store(device_with(groups), 24, store);
      for (auto i = 0; i < 30; ++i) {  // more than host memory has room for
        on.serve(counted(41, 1'000 * i));
        on.cache.wait_idle();
      }
      auto hashes = std::array<std::uint64_t, 3>{};
      REQUIRE(on.cache.hash_blocks(std::span{text}.first(12), hashes) == 3);
      const auto waiting = on.cache.create_sequence(token_run{text, {}, hashes}, {.publish = publish}).value();
      CHECK(waiting.num_loading_tokens == 40);
      const auto other = on.hold(text, {.max_cached_tokens = 0});
      CHECK(on.cache.poll(waiting.id).num_loaded_tokens == 40);
      CHECK(on.cache.settle(waiting.id).value() == 40);
      CHECK(store->num_reads == 0);
      if (attends_to_all({groups[0]})) {
        const auto num_full = static_cast<std::size_t>(40 / on.cache.plan().groups[0].block_size);
        const auto shared = on.table(0, waiting.id);
        const auto computed = on.table(0, other);
        CHECK(std::ranges::equal(std::span{shared}.first(num_full), std::span{computed}.first(num_full)));
      }
      on.sequences[waiting.id] = {text, 40};
      on.check(waiting.id);
      on.release(other);
      on.compute(waiting.id);
      REQUIRE(on.fork(waiting.id));
      on.check_invariants();
    }
  }
}

TEST_CASE("a sequence whose tokens were computed elsewhere waits for no tier", "[group_cache][tier]") {
  const auto store = std::make_shared<fake_store>();
  auto device = device_with({full, window});
  device.num_blocks *= 2;
  auto on = with_store(device, 24, store);
  for (auto first = 0; first < 16'000; first += 1'000) {
    on.serve(counted(41, first));
    on.cache.wait_idle();
  }
  const auto waiting = on.cache.create_sequence(counted(81)).value();
  REQUIRE(waiting.num_loading_tokens == 40);
  on.hold(counted(41), {.max_cached_tokens = 0});
  REQUIRE(on.cache.drop_behind_windows(waiting.id, 81));
  CHECK(on.cache.poll(waiting.id).num_loaded_tokens == 0);
  CHECK(on.cache.settle(waiting.id).value() == 0);
  REQUIRE(on.cache.commit(waiting.id, 81));
  on.check_invariants();
}

TEST_CASE("a sequence is told how much of it is loaded behind what the device has", "[group_cache][tier]") {
  auto on = with_store(device_with({full}), 24, std::make_shared<fake_store>());
  for (const auto first : {0, 1'000, 2'000, 3'000, 4'000, 5'000, 6'000, 7'000}) {
    on.serve(counted(41, first));
    on.cache.wait_idle();
  }
  const auto held = on.hold(counted(21));
  const auto waiting = on.cache.create_sequence(counted(41)).value();
  CHECK(waiting.num_cached_tokens == 20);
  CHECK(waiting.num_loading_tokens == 20);
  on.cache.wait(waiting.id);
  CHECK(on.cache.settle(waiting.id).value() == 40);
  on.release(held);
  on.check_invariants();
}

TEST_CASE("invalidated groups are found in no tier", "[group_cache][tier]") {
  for (const auto& [kind, groups] : kinds) {
    CAPTURE(kind);
    const auto store = std::make_shared<fake_store>();
    auto on = with_store(device_with(groups), many_records, store);
    on.serve(counted(41));
    fill_device(on, 10'000);
    on.cache.wait_idle();
    REQUIRE(!store->records.empty());
    on.cache.invalidate_prefix(counted(41));
    on.check_invariants();
    CHECK(on.serve(counted(41)) == 0);
    on.cache.invalidate_salt(salt::none);
    on.cache.wait_idle();
    on.cache.run_transfers();  // erasures
    on.check_invariants();
    CHECK(on.cache.tier(0).num_records == 0);
    CHECK(store->records.empty());
  }
}

TEST_CASE("a cache with groups that is made anew finds what was written", "[group_cache][tier][restart][random]") {
  const auto seed = Catch::getSeed();
  const auto chosen = any_plan();
  for (const auto& [kind, groups] : kinds) {
    if (!attends_to_all(groups)) {
      continue;  // see below
    }
    CAPTURE(seed, kind, static_cast<int>(chosen.write), chosen.exclusive, chosen.overloaded);
    const auto device = device_with(groups);
    const auto store = std::make_shared<fake_store>();
    auto left = std::shared_ptr<fake_store>{};
    {
      auto on = with_store(device, 24, store, config_of(chosen, false));
      serve_behind_hot_prompt(on, seed, 60, [&](auto& random) {
        if (!chosen.overloaded) {
          on.cache.wait_idle();
        } else if (random() % 2 == 0) {
          on.cache.run_transfers();
        }
        left = copy_of(*store);
      });
    }
    const auto num_found = std::ssize(left->records);
    CHECK(num_found > num_hot_blocks);
    auto on = with_store(device, many_records, left, config_of({chosen.write, chosen.exclusive}, false));
    check_restart(on.cache, on, num_found, chosen, 0);
  }
}

TEST_CASE("a record of a group that there is not is erased", "[group_cache][tier][restart]") {
  for (const auto index : {std::int64_t{-1}, std::int64_t{1} << 40}) {
    for (const auto& [kind, groups] : kinds) {
      CAPTURE(kind, index);
      const auto device = device_with(groups);
      const auto store = std::make_shared<fake_store>();
      {
        auto on = with_store(device, 24, store);
        on.serve(counted(41));
        fill_device(on, 10'000);
        on.cache.wait_idle();
      }
      give_deepest_index(*store, device, index);
      const auto num_left = std::ssize(store->records) - 1;
      auto on = with_store(device, many_records, store);
      on.serve(counted(41));
      fill_device(on, 10'000);  // records are adopted when what is before them has been computed
      on.cache.wait_idle();
      CHECK(on.cache.tier(1).adopted == num_left);
      on.check_invariants();
    }
  }
}

TEST_CASE("what computes faster than it loads is computed for groups, too", "[group_cache][tier][restart]") {
  for (const auto& [kind, groups] : kinds) {
    if (!attends_to_all(groups)) {
      continue;  // see below
    }
    CAPTURE(kind);
    const auto device = device_with(groups);
    const auto store = std::make_shared<fake_store>();
    {
      auto on = with_store(device, many_records, store);
      on.serve(counted(41));
      on.serve(counted(41, 50'000));
      fill_device(on, 10'000);
      on.cache.wait_idle();
    }
    auto config = tier_config{};
    config.prefill_tokens_per_second = std::int64_t{1} << 60;
    auto on = with_store(device, many_records, store, config);
    CHECK(on.serve(counted(41)) == 40);  // no speed is known yet
    CHECK(on.cache.tier(1).loads > 0);
    const auto made = on.cache.create_sequence(counted(41, 50'000)).value();
    CHECK(made.num_loading_tokens == 0);
    on.check_invariants();
  }
}

TEST_CASE("where no group attends to all tokens, records of an earlier cache wait until these were computed",
          "[group_cache][tier][restart]") {
  for (const auto& [kind, groups] : kinds) {
    if (attends_to_all(groups)) {
      continue;
    }
    CAPTURE(kind);
    const auto device = device_with(groups);
    const auto store = std::make_shared<fake_store>();
    {
      auto on = with_store(device, 24, store);
      on.serve(counted(41));
      fill_device(on, 10'000);
      on.cache.wait_idle();
      CHECK(on.serve(counted(41)) == 40);
    }
    auto on = with_store(device, many_records, store);
    CHECK(on.serve(counted(41)) == 0);
    fill_device(on, 20'000);
    const auto found_in_tiers = [&] { return on.cache.tier(1).loads + on.cache.tier(0).hit_blocks; };
    const auto before = found_in_tiers();
    CHECK(on.serve(counted(41)) == 40);
    CHECK(found_in_tiers() > before);
    on.check_invariants();
  }
}

TEST_CASE("what a batch commits is written through", "[group_cache][tier]") {
  auto config = tier_config{};
  config.write = write_policy::through;
  auto on = host_engine{config_of({full, window}), config, basic_host_tier<host_allocator, lru>{many_records}};
  const auto made = on.create(counted(41)).value();
  const auto more = tokens{41};
  auto slots = std::vector<slot>(2);
  auto failures = std::vector<batch_failure>(1);
  const auto entries = std::vector<batch_entry>{{made, more, 40}};
  REQUIRE(on.cache.append_batch(entries, {slots, failures, {}}).value().num_failures == 0);
  CHECK(on.cache.statistics().evictions == 0);
  CHECK(on.cache.tier(0).num_records > 0);
}

TEST_CASE("what a commit completes is written through, where other groups' blocks are incomplete, too",
          "[group_cache][tier]") {
  auto config = tier_config{};
  config.write = write_policy::through;
  const auto on_of = [&](const group_list& groups) {
    return host_engine{config_of(groups), config, basic_host_tier<host_allocator, lru>{many_records}};
  };
  auto of_two_sizes = on_of({full, latent});
  const auto& sizes = of_two_sizes.cache.plan().groups;
  REQUIRE(sizes[0].block_size > 41);
  of_two_sizes.hold(counted(41));
  CHECK(of_two_sizes.cache.tier(0).num_records == 41 / sizes[1].block_size);

  auto with_state = on_of({full, state});
  const auto& plan = with_state.cache.plan().groups;
  REQUIRE(40 % plan[0].block_size != 0);
  with_state.hold(counted(41));
  CHECK(with_state.cache.tier(0).num_records == 41 / plan[0].block_size + plan[1].blocks_per_state);
}

TEST_CASE("hits on groups are counted anew where nodes get other contents", "[group_cache][tier]") {
  auto config = tier_config{};
  config.write = write_policy::through_hits;
  auto on = host_engine{device_with({full, window}), config, basic_host_tier<host_allocator, lru>{many_records}};
  for (auto first = 0; first < 20'000; first += 1'000) {
    CHECK(on.serve(counted(41, first)) == 0);
    CHECK(on.serve(counted(41, first)) == 40);
    CHECK(on.cache.tier(0).written == 0);
  }
  REQUIRE(on.cache.statistics().evictions > 0);
  CHECK(on.serve(counted(41, 19'000)) == 40);
  CHECK(on.cache.tier(0).written > 0);
  on.check_invariants();
}

TEST_CASE("hits on groups write what the next hit needs, and no block more", "[group_cache][tier]") {
  auto config = tier_config{};
  config.write = write_policy::through_hits;
  const auto num_written = [&](const group_list& groups) {
    auto on = host_engine{config_of(groups), config, basic_host_tier<host_allocator, lru>{many_records}};
    for (auto i = 0; i < 3; ++i) {
      on.serve(counted(81));
    }
    return on.cache.tier(0).num_records;
  };
  CHECK(num_written({full}) == 20);                     // of 4 tokens
  CHECK(num_written({full, window}) == 5 + 2);          // of 16 and of 4: the last 7 tokens
  CHECK(num_written({full, with_sinks}) == 5 + 2 + 3);  // the first 5 tokens, and the last 12
  CHECK(num_written({full, chunked}) == 5);             // a chunk begins behind them
  CHECK(num_written({window}) == 2);
  CHECK(num_written({with_sinks}) == 2 + 3);
}

TEST_CASE("a saved state that a tier gives counts as the tier's hit of its own tokens alone", "[group_cache][tier]") {
  auto on = host_engine{config_of({full, state}), tier_config{}, basic_host_tier<host_allocator, lru>{many_records}};
  on.serve(counted(41));
  const auto step = on.cache.begin_step().value();
  auto evicted = std::array{no_block};
  REQUIRE(on.cache.evict(evicted, step).value() == 1);
  REQUIRE(on.cache.retire_step(step));
  REQUIRE(on.cache.find_prefix(counted(41)) == 0);
  CHECK(on.serve(counted(41)) == 40);
  CHECK(on.cache.tier(0).hit_blocks == on.cache.plan().groups[1].blocks_per_state);
  CHECK(on.cache.tier(0).hit_tokens == 4);
  CHECK(on.cache.statistics().hit_tokens == 36);
}

TEST_CASE("what a slower tier has of groups is not copied again with what continues it", "[group_cache][tier]") {
  auto on = with_store(device_with({full}), many_records, std::make_shared<fake_store>(), {.exclusive = true});
  on.serve(counted(41));
  fill_device(on, 10'000);
  on.cache.wait_idle();
  CHECK(on.serve(counted(41)) == 40);  // which host memory gives up
  auto before = std::int64_t{0};
  while (on.cache.find_prefix(counted(41)) == 40) {
    before = on.cache.tier(0).handed_over;
    const auto step = on.cache.begin_step().value();
    auto evicted = std::array{no_block};
    REQUIRE(on.cache.evict(evicted, step).value() == 1);
    REQUIRE(on.cache.retire_step(step));
  }
  CHECK(on.cache.tier(0).handed_over == before + 1);
  on.check_invariants();
}

TEST_CASE("chains of groups lose their tails first in a slower tier", "[group_cache][tier][restart]") {
  const auto store = std::make_shared<fake_store>();
  const auto open = [&] {
    return with_store(config_of({full}), many_records, store, {.write = write_policy::through}, 14);
  };
  {
    auto on = open();
    for (const auto& prompt : {counted(21), counted(41), counted(41, 1'000)}) {  // the first is the oldest
      on.serve(prompt);
      on.cache.wait_idle();
    }
    CHECK(on.cache.tier(1).evictions == 6);
  }
  auto on = open();
  CHECK(on.cache.tier(1).num_orphans == 0);
  CHECK(on.serve(counted(41, 1'000)) == 40);
  CHECK(on.serve(counted(41)) == 4 * 4);
  on.check_invariants();
}

TEST_CASE("a saved state inside a chain makes room in a slower tier like any other", "[group_cache][tier][restart]") {
  const auto store = std::make_shared<fake_store>();
  const auto open = [&] {
    return with_store(config_of({full, state}), many_records, store, {.write = write_policy::through}, 12);
  };
  {
    auto on = open();
    for (const auto& prompt : {counted(21), counted(41), counted(41, 1'000)}) {  // the state of the first is the oldest
      on.serve(prompt);
      on.cache.wait_idle();
    }
    REQUIRE(on.cache.tier(1).evictions == 1);
  }
  auto on = open();
  CHECK(on.serve(counted(41, 1'000)) == 40);
  CHECK(on.serve(counted(41)) == 40);
  on.check_invariants();
}

TEST_CASE("records of groups that waited for an ancestor are not written again", "[group_cache][tier][restart]") {
  const auto groups = GENERATE(group_list{full}, group_list{latent});
  const auto device = config_of(groups);
  const auto store = std::make_shared<fake_store>();
  const auto open = [&] { return with_store(device, many_records, store, {.write = write_policy::through}); };
  {
    auto on = open();
    on.serve(counted(41));
    on.cache.wait_idle();
  }
  const auto num_written = std::ssize(store->records);
  const auto second = lose_second(*store, device);
  const auto num_lost = num_written - std::ssize(store->records);
  auto on = open();
  CHECK(on.cache.tier(1).num_orphans > 0);
  CHECK(on.serve(counted(41)) == second);
  on.cache.wait_idle();
  CHECK(on.cache.tier(1).num_orphans == 0);
  CHECK(on.cache.tier(1).written == num_lost);
  CHECK(std::ssize(store->records) == num_written);
  on.check_invariants();
}

TEST_CASE("blocks of groups that are invalidated take records with them that wait for an ancestor",
          "[group_cache][tier][restart]") {
  const auto device = config_of({full});
  const auto store = std::make_shared<fake_store>();
  const auto open = [&] { return with_store(device, many_records, store, {.write = write_policy::through}); };
  {
    auto on = open();
    on.serve(counted(41));
    on.serve(counted(41), {.salt = salt{5}});
    on.cache.wait_idle();
  }
  lose_second(*store, device);
  auto on = open();
  const auto num_orphans = on.cache.tier(1).num_orphans;
  const auto num_records = std::ssize(store->records);
  REQUIRE(num_orphans > 0);
  const auto other = on.create(counted(6, 500)).value();
  on.compute(other);
  REQUIRE(on.cache.invalidate_blocks(std::array{on.table(0, other).front()}).value() > 0);
  on.cache.run_transfers();
  CHECK(on.cache.tier(1).num_orphans == num_orphans / 2);  // those of the other salt
  CHECK(std::ssize(store->records) < num_records);
  on.release(other);
  on.check_invariants();
}

TEST_CASE("tiers of groups refuse what they cannot do", "[group_cache][tier]") {
  using cache = cache_with<placed_tier>;
  auto asks = tier_config{};
  asks.ask_ahead = 1;
  const auto made = cache::create(device_with({full}), asks, {4}, std::tuple{placed_tier{}});
  REQUIRE_FALSE(made);
  CHECK(made.error().message().find("tier_config.ask_ahead, which is for one group,") != std::string::npos);
  constexpr auto most = std::numeric_limits<std::int32_t>::max();
  const auto store = std::make_shared<fake_store>();
  const auto places = std::tuple{placed_tier{store, most, cache::format_of(device_with({full}), "")}};
  CHECK(cache::create(device_with({full}), {}, {4}, places).error().code == error_code::size_overflow);
}

TEST_CASE("files of other groups are refused", "[group_cache][tier][restart]") {
  const auto folder = testing::temporary_folder{};
  const auto open = [&](const group_list& groups) {
    const auto format = cache_with<file_tier_type>::format_of(device_with(groups), "");
    const auto bytes = static_cast<std::int64_t>(format.header_bytes() + 8 * format.record_bytes());
    return file_tier_type::create({folder.file("a")}, bytes, format).has_value();
  };
  CHECK(open({full, window}));
  CHECK_FALSE(open({window, full}));
  CHECK_FALSE(open({full, with_sinks}));
  CHECK(open({full, window}));
}

TEST_CASE("a process with groups finds what one that was killed had written", "[group_cache][tier][restart][random]") {
  const auto seed = Catch::getSeed();
  auto random = std::mt19937{seed};
  const auto chosen = any_plan();
  const auto& [kind, groups] = kinds[random() % kinds.size()];
  CAPTURE(seed, kind, static_cast<int>(chosen.write), chosen.exclusive, chosen.overloaded);
  const auto folder = testing::temporary_folder{};
  const auto device = device_with(groups);
  const auto open = [&] {
    const auto format = cache_with<file_tier_type>::format_of(device, "");
    const auto bytes = static_cast<std::int64_t>(format.header_bytes() + num_places * format.record_bytes());
    return file_tier_type::create({folder.file("a")}, bytes, format).value();
  };
  for (auto round = 0; round < 2; ++round) {
    const auto num_served = 1 + static_cast<int>(random() % 50);
    const auto serve_seed = static_cast<std::uint32_t>(random());
    serve_and_kill(num_served, 30, [&](const auto& report) {
      auto on = engine_on_files{device, config_of(chosen, true), basic_host_tier<host_allocator, lru>{24},
                                std::tuple{open()}};
      serve_behind_hot_prompt(on, serve_seed, 1'000'000, [&](auto&) {
        report(on.cache.tier(1).num_records);
        if (!chosen.overloaded) {
          on.cache.wait_idle();
        }
      });
    });
    auto num_found = std::int64_t{0};
    auto tier = open();
    tier.for_each_record([&](std::int64_t, const record_identity&) { ++num_found; });
    auto on = engine_on_files{device, config_of({chosen.write, chosen.exclusive}, true),
                              basic_host_tier<host_allocator, lru>{many_records}, std::tuple{std::move(tier)}};
    check_restart(on.cache, on, num_found, chosen, 4);
  }
}

TEST_CASE("whenever a process with groups is killed, what it had written hits",
          "[group_cache][tier][restart][random]") {
  const auto seed = Catch::getSeed();
  auto random = std::mt19937{seed};
  const auto num_kills = testing::scaled(12, 100);
  auto num_written = std::int64_t{0};  // records
  auto num_hit = std::int64_t{0};
  for (auto kill = 0; kill < num_kills;) {
    const auto& [kind, groups] = kinds[random() % kinds.size()];
    if (!attends_to_all(groups)) {
      continue;
    }
    const auto write = static_cast<write_policy>(random() % 3);
    const auto plan = restart_plan{write, write == write_policy::on_eviction && random() % 2 == 0};
    const auto device = device_with(groups);
    const auto folder = testing::temporary_folder{};
    const auto open = [&] {
      const auto format = cache_with<file_tier_type>::format_of(device, "");
      const auto bytes = static_cast<std::int64_t>(format.header_bytes() + num_places * format.record_bytes());
      return file_tier_type::create({folder.file("a")}, bytes, format).value();
    };
    const auto make = [&](std::int32_t num_host, file_tier_type file) {
      return std::make_unique<engine_on_files>(device, config_of(plan, true),
                                               basic_host_tier<host_allocator, lru>{num_host},
                                               std::tuple{std::move(file)});
    };
    auto num_begun = 0;  // prompts
    for (auto round = 0; round < 2 && kill < num_kills; ++round, ++kill) {  // the second has what the first left
      const auto num_served = static_cast<int>(random() % 40);  // with 0, it may be killed while it makes the cache
      const auto num_turns = static_cast<int>(random() % 30);
      CAPTURE(seed, kill, kind, static_cast<int>(write), plan.exclusive, num_served, num_turns);
      const auto serve = [&](const auto& report) {
        const auto on = make(24, open());
        on->hold(behind_hot_prompt(no_prompt));
        for (auto number = num_begun;; ++number) {
          for (auto times = 0; times < 3; ++times) {
            on->serve(behind_hot_prompt(number));
          }
          on->cache.wait_idle();
          report(on->cache.tier(1).num_records);
        }
      };
      const auto reports = serve_and_kill(num_served, 0, serve, num_turns);
      num_begun += reports.count + 1;
      auto file = open();
      auto num_found = std::int64_t{0};
      file.for_each_record([&](std::int64_t, const record_identity&) { ++num_found; });
      CHECK(num_found >= reports.latest);
      const auto on = make(num_places, std::move(file));
      on->serve(behind_hot_prompt(num_begun));  // a new one, which reads what lies before the place where it parts
      for (auto number = no_prompt; number < num_begun; ++number) {
        on->serve(behind_hot_prompt(number));
      }
      on->check_invariants();
      num_written += num_found;
      num_hit += on->cache.tier(1).loads;
    }
  }
  if (testing::full_numbers()) {
    WARN(num_kills << " kills: " << num_hit << " of " << num_written << " records that were written hit");
  }
  CAPTURE(seed, num_written, num_hit);
  CHECK(num_written > 20 * num_kills);
  CHECK(num_hit * 100 >= num_written * 95);
}
