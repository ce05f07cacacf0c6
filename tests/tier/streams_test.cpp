// Every operation that copies does so on the stream that it was given.

#include "../support/recording_backend.hpp"
#include "../support/small_config.hpp"
#include "../support/tokens.hpp"
#include "temporary_folder.hpp"

#include <pagedkv/pagedkv.hpp>
#include <pagedkv/tier/file_tier.hpp>
#include <pagedkv/tier/hand_over.hpp>
#include <pagedkv/tier/session_file.hpp>
#include <pagedkv/tier/tiered_cache.hpp>

#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

using namespace pagedkv;
using namespace pagedkv::test;

namespace {

/// Runs operations, each on a stream of its own, and looks at the streams that the backend was given.
class streams {
 public:
  explicit streams(const recording_backend::log& log) : log_(log) {}

  /// Returns the value of `run(stream)`, which copies.
  template <class Run>
  auto copies(const char* operation, const Run& run) {
    const auto before = log_.calls.size();
    auto outcome = checked(operation, run);
    CAPTURE(operation);
    CHECK(log_.calls.size() > before);
    return std::move(outcome).value();
  }

  /// Returns the value of `run(stream)`, which may copy.
  template <class Run>
  auto made_by(const char* operation, const Run& run) {
    return checked(operation, run).value();
  }

 private:
  template <class Run>
  auto checked(const char* operation, const Run& run) {
    const auto before = log_.calls.size();
    auto outcome = run(++last_);
    CAPTURE(operation);
    REQUIRE(outcome);
    for (auto i = before; i < log_.calls.size(); ++i) {
      CAPTURE(log_.calls[i].first);
      CHECK(log_.calls[i].second == last_);
    }
    return outcome;
  }

  const recording_backend::log& log_;
  int last_ = 0;
};

/// Two sequences on the same blocks, the last of which is not full.
template <class Cache>
std::pair<sequence_id, sequence_id> twins(Cache& cache, streams& on, token first) {
  const auto prompt = text(first, 6);
  const auto made = on.made_by("create", [&](int s) { return cache.create_sequence(prompt, {}, s); });
  on.made_by("commit", [&](int s) { return cache.commit(made.id, 6, s); });
  return {made.id, on.made_by("fork", [&](int s) { return cache.fork(made.id, s); })};
}

/// Copies on write in every operation that can, and moves blocks. `append_batch(entries, stream)` is the cache's.
template <class Cache, class AppendBatch>
void write_to_shared_blocks(Cache& cache, streams& on, const AppendBatch& append_batch) {
  const auto one = twins(cache, on, 0);
  on.copies("append", [&](int s) { return cache.append(one.second, token{1}, s); });
  const auto two = twins(cache, on, 100);
  on.copies("append a run", [&](int s) { return cache.append(two.second, text(1, 3), s); });
  const auto three = twins(cache, on, 200);
  on.copies("reserve_slots", [&](int s) { return cache.reserve_slots(three.second, 2, s); });
  const auto four = twins(cache, on, 300);
  const auto more = text(1, 2);
  const auto entries = std::array<batch_entry, 1>{{{.id = four.second, .run = more}}};
  on.copies("append_batch", [&](int s) { return append_batch(entries, s); });
  for (const auto id : {one.first, one.second, two.first}) {
    REQUIRE(cache.release(id));
  }
  on.copies("compact", [&](int s) { return cache.compact(s); });
  for (const auto id : {two.second, three.first}) {
    REQUIRE(cache.release(id));
  }
  const auto in_use = static_cast<std::int32_t>(cache.statistics().blocks.in_use);
  on.copies("resize", [&](int s) { return cache.resize(in_use, s); });
}

/// Of a token in use; the pool has its first size again.
template <class Cache>
std::array<slot, 1> slot_in_use(Cache& cache) {
  REQUIRE(cache.resize(cache.config().capacity()));
  auto found = std::array<slot, 1>{};
  REQUIRE(cache.slot_mapping(cache.create_sequence(text(900, 1)).value().id, 0, found));
  return found;
}

/// Evicts blocks in every operation that can, and gets some back. A sequence may have eight blocks.
template <class Cache>
void evict_and_fetch(Cache& cache, streams& on) {
  const auto start = [&](token first, std::size_t count, bool evicts) {
    const auto prompt = text(first, count);
    const auto create = [&](int s) { return cache.create_sequence(prompt, {}, s); };
    const auto made = evicts ? on.copies("create", create) : on.made_by("create", create);
    on.made_by("commit", [&](int s) { return cache.commit(made.id, std::ssize(prompt), s); });
    return made;
  };
  // Seven blocks of another chain each time, so that all of them evict.
  REQUIRE(cache.release(start(0, 28, false).id));
  auto next = token{1000};
  const auto fill = [&] { REQUIRE(cache.release(start(next += 1000, 32, true).id)); };
  fill();
  const auto back = start(0, 28, true);
  CHECK(back.num_cached_tokens == 24);
  REQUIRE(cache.release(back.id));

  auto slots = std::array<slot, 32>{};
  auto failures = std::array<batch_failure, 1>{};
  const auto extend = [&](const char* operation, const auto& run) {
    fill();
    const auto id = start(next += 1000, 4, true).id;
    on.copies(operation, [&](int s) { return run(id, s); });
    REQUIRE(cache.release(id));
  };
  extend("append", [&](sequence_id id, int s) { return cache.append(id, token{1}, s); });
  extend("append a run", [&](sequence_id id, int s) { return cache.append(id, text(5, 9), s); });
  extend("reserve_slots", [&](sequence_id id, int s) { return cache.reserve_slots(id, 5, s); });
  const auto more = text(5, 9);
  extend("append_batch", [&](sequence_id id, int s) {
    return cache.append_batch(std::array<batch_entry, 1>{{{.id = id, .run = more}}}, {slots, failures, {}}, s);
  });
  fill();
  const auto step = cache.begin_step().value();
  auto evicted = std::array<block_id, 4>{};
  on.copies("evict", [&](int s) { return cache.evict(evicted, step, s); });
  REQUIRE(cache.retire_step(step));
}

template <class... Policies>
using recorded = kv_cache<float32, recording_backend, Policies...>;
using on_host = recorded<host_tier<>>;
using on_host_by_groups = recorded<host_tier<>, layer_groups>;

/// Blocks of four tokens, also with groups.
template <class Cache>
cache_config config_of(std::int32_t num_blocks) {
  auto config = small_config(num_blocks);
  if constexpr (Cache::layers_differ) {
    config.groups = {group_config{.num_layers = 1, .num_kv_heads = 1, .key_dim = 8, .value_dim = 8}};
  }
  return config;
}

template <class Cache>
Cache cache_of(std::int32_t num_blocks, recording_backend::log& log, [[maybe_unused]] const tier_config& tiers = {}) {
  const auto config = config_of<Cache>(num_blocks);
  if constexpr (requires { typename Cache::host_tier_type; }) {
    return Cache{config, tiers, {64}, {}, host_allocator{}, recording_backend{log}};
  } else {
    return Cache{config, host_allocator{}, recording_backend{log}};
  }
}

/// Serves requests until each evicts, forks one inside a block, and preempts and resumes one.
template <class Cache>
void evict_for_requests(Cache& cache, streams& on) {
  auto tracker = request_tracker{cache};
  auto next = token{50'000};
  const auto fill = [&] {
    const auto made = on.made_by("submit", [&](int s) { return tracker.submit(text(next += 1000, 32), {}, s); });
    on.made_by("commit", [&](int s) { return cache.commit(made.sequence, 32, s); });
    REQUIRE(tracker.finish(made.id));
  };
  fill();
  const auto prompt = text(next += 1000, 6);
  const auto made = on.copies("submit", [&](int s) { return tracker.submit(prompt, {}, s); });
  on.made_by("commit", [&](int s) { return cache.commit(made.sequence, 6, s); });
  const auto other = on.made_by("fork", [&](int s) { return tracker.fork(made.id, s); });
  on.copies("append to a fork", [&](int s) { return tracker.append(other.id, token{1}, s); });
  REQUIRE(tracker.finish(other.id));
  auto slots = std::array<slot, 32>{};
  auto failures = std::array<batch_failure, 1>{};
  const auto more = text(5, 22);
  const auto entries = std::array<batch_entry, 1>{{{.id = made.sequence, .run = more}}};
  on.copies("append_batch",
            [&](int s) { return tracker.append_batch(std::array{made.id}, entries, {slots, failures, {}}, s); });
  on.made_by("commit", [&](int s) { return cache.commit(made.sequence, 28, s); });
  on.made_by("preempt", [&](int s) { return tracker.preempt(made.id, s); });
  fill();
  auto tokens = prompt;
  tokens.insert(tokens.end(), more.begin(), more.end());
  CHECK(on.copies("resume", [&](int s) { return tracker.resume(made.id, tokens, s); }).num_cached_tokens > 0);
}

}  // namespace

TEST_CASE("every operation of a cache copies on its stream", "[cache][streams]") {
  auto log = recording_backend::log{};
  auto cache = kv_cache<float32, recording_backend>{small_config(32), host_allocator{}, recording_backend{log}};
  auto on = streams{log};
  auto slots = std::array<slot, 8>{};
  auto failures = std::array<batch_failure, 1>{};
  write_to_shared_blocks(cache, on, [&](const auto& entries, int s) {
    return cache.append_batch(entries, {slots, failures, {}}, s);
  });
  auto rows = std::vector<float>(std::size_t{1} * 2 * 8);
  const auto view = contiguous_rows(rows, 2, 8);
  const auto to = slot_in_use(cache);
  on.copies("write", [&](int s) { return cache.write(0, to, view, view, s); });
  on.copies("read", [&](int s) { return cache.read(0, to, view, view, s); });
}

TEST_CASE("every operation of a cache with groups copies on its stream", "[group_cache][streams]") {
  auto log = recording_backend::log{};
  auto config = small_config(96);
  const auto layers = group_config{.num_layers = 1, .num_kv_heads = 1, .key_dim = 4, .value_dim = 4};
  auto more_layers = layers;
  more_layers.num_layers = 2;
  config.groups = {layers, more_layers};
  auto slots = std::array<slot, 16>{};
  auto failures = std::array<batch_failure, 1>{};
  {
    auto cache = group_cache<float32, recording_backend>{config, host_allocator{}, recording_backend{log}};
    auto on = streams{log};
    write_to_shared_blocks(cache, on, [&](const auto& entries, int s) {
      return cache.append_batch(entries, {slots, failures}, s);
    });
    auto rows = std::vector<float>(4);
    const auto view = contiguous_rows(rows, 1, 4);
    const auto to = slot_in_use(cache);
    on.copies("write", [&](int s) { return cache.write(0, to, view, view, s); });
    on.copies("read", [&](int s) { return cache.read(0, to, view, view, s); });
  }
  auto state = group_config{};
  state.kind = group_kind::state;
  state.state_bytes = 64;
  config.groups = {layers, more_layers, state};
  auto cache = group_cache<float32, recording_backend>{config, host_allocator{}, recording_backend{log}};
  auto on = streams{log};
  const auto prompt = text(0, 13);
  const auto made = on.made_by("create", [&](int s) { return cache.create_sequence(prompt, {}, s); });
  on.copies("commit", [&](int s) { return cache.commit(made.id, 12, s); });
  on.made_by("commit", [&](int s) { return cache.commit(made.id, 13, s); });
  on.copies("fork", [&](int s) { return cache.fork(made.id, s); });
  const auto again = on.copies("create", [&](int s) { return cache.create_sequence(prompt, {}, s); });
  CHECK(again.num_cached_tokens == 12);
}

TEMPLATE_TEST_CASE("every operation of a cache with tiers copies on its stream", "[tiered_cache][streams]", on_host,
                   on_host_by_groups) {
  auto log = recording_backend::log{};
  auto on = streams{log};
  const auto prompt = text(0, 9);
  SECTION("where blocks are evicted") {
    auto cache = cache_of<TestType>(8, log);
    evict_and_fetch(cache, on);
    evict_for_requests(cache, on);
  }
  SECTION("where blocks are shared") {
    auto cache = cache_of<TestType>(32, log);
    auto slots = std::array<slot, 8>{};
    auto failures = std::array<batch_failure, 1>{};
    write_to_shared_blocks(
        cache, on, [&](const auto& entries, int s) { return cache.append_batch(entries, {slots, failures, {}}, s); });
  }
  SECTION("where commits write through") {
    auto cache = cache_of<TestType>(8, log, {.write = write_policy::through});
    const auto made = on.made_by("create", [&](int s) { return cache.create_sequence(prompt, {}, s); });
    on.copies("commit", [&](int s) { return cache.commit(made.id, 9, s); });
  }
  SECTION("where hits write through") {
    auto cache = cache_of<TestType>(8, log, {.write = write_policy::through_hits, .hits_before_write = 1});
    const auto made = on.made_by("create", [&](int s) { return cache.create_sequence(prompt, {}, s); });
    on.made_by("commit", [&](int s) { return cache.commit(made.id, 9, s); });
    CHECK(on.copies("create", [&](int s) { return cache.create_sequence(prompt, {}, s); }).num_cached_tokens == 8);
  }
}

TEMPLATE_TEST_CASE("what tiers copy on one stream waits for what they copied on others", "[tiered_cache][streams]", on_host,
                   on_host_by_groups) {
  auto log = recording_backend::log{};
  auto on = streams{log};
  auto cache = cache_of<TestType>(8, log);
  evict_and_fetch(cache, on);
  const auto& calls = log.calls;
  const auto is = [](std::string_view what) { return [=](const auto& call) { return call.first == what; }; };
  const auto first_mark = std::ranges::find_if(calls, is("mark"));
  auto num_swaps = 0;
  for (auto each = first_mark; each != calls.end(); ++each) {
    if (each->first == "swap") {
      ++num_swaps;
      CHECK(*std::prev(each) == std::pair{std::string{"wait"}, each->second});
    }
  }
  CHECK(num_swaps > 1);
}

TEMPLATE_TEST_CASE("sessions and offers are copied on the stream that they are given", "[session][streams]", recorded<>,
                   recorded<layer_groups>, on_host, on_host_by_groups) {
  auto log = recording_backend::log{};
  const auto folder = pagedkv::testing::temporary_folder{};
  const auto file = folder.file("session");
  auto cache = cache_of<TestType>(8, log);
  auto other = cache_of<TestType>(8, log);
  auto third = cache_of<TestType>(8, log);
  auto on = streams{log};
  const auto id = twins(cache, on, 0).first;
  on.copies("save_sequence", [&](int s) { return save_sequence(cache, id, file, {}, s); });
  on.copies("restore_sequence", [&](int s) { return restore_sequence(other, file, {}, s); });
  on.copies("hand_over", [&](int s) { return hand_over(cache, id, third, {}, s); });
}

TEMPLATE_TEST_CASE("what comes from a slower tier is copied on the stream that settles it", "[tiered_cache][streams]",
                   recorded<file_tier>, (recorded<file_tier, layer_groups>)) {
  auto log = recording_backend::log{};
  const auto folder = pagedkv::testing::temporary_folder{};
  const auto config = config_of<TestType>(8);
  const auto format = TestType::format_of(config, "");
  auto options = tier_config{};
  options.threads = false;
  auto files = file_tier::create({folder.file("records")}, 1 << 22, format).value();
  auto cache = TestType{config, options, {10}, std::tuple{std::move(files)}, host_allocator{}, recording_backend{log}};
  auto on = streams{log};
  const auto play = [&](token first) {
    const auto prompt = text(first, 32);
    const auto made = on.made_by("create", [&](int s) { return cache.create_sequence(prompt, {}, s); });
    on.made_by("commit", [&](int s) { return cache.commit(made.id, 32, s); });
    REQUIRE(cache.release(made.id));
    cache.run_transfers();
  };
  for (const auto first : {0, 1000, 2000, 3000}) {
    play(first);
  }
  const auto prompt = text(0, 13);
  auto tracker = request_tracker{cache};
  const auto submit = [&](int s) { return tracker.submit(prompt, {}, s); };
  const auto first = on.made_by("submit", submit);
  const auto second = on.made_by("submit", submit);
  CHECK(first.num_loading_tokens == 12);
  CHECK(second.num_loading_tokens == 12);
  cache.run_transfers();
  CHECK(on.copies("settle", [&](int s) { return cache.settle(first.sequence, s); }) == 12);
  // It shares the first one's blocks, whose copies may be under way on that one's stream.
  const auto num_calls = log.calls.size();
  CHECK(on.made_by("settle", [&](int s) { return cache.settle(second.sequence, s); }) == 12);
  REQUIRE(log.calls.size() > num_calls);
  CHECK(log.calls[num_calls].first == "wait");
}
