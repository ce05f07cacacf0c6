#include <pagedkv/events/event_queues.hpp>
#include <pagedkv/pagedkv.hpp>
#include <pagedkv/policy/locking/sharded_mutex.hpp>

#include "../support/allocation_count.hpp"
#include "../support/recording_backend.hpp"
#include "group_engine.hpp"

#include <catch2/catch_test_macros.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <span>
#include <utility>
#include <vector>

using namespace pagedkv;
using namespace pagedkv::test;

namespace {

using plain = engine<group_cache<float32>>;

/// A batch view in whose update another operation changes a sequence, once: behind the first look at it.
class interrupted_batch {
 public:
  explicit interrupted_batch(std::function<void()> change) : change_(std::move(change)) {}

  template <class VisitRow>
  [[nodiscard]] result<void> update(std::size_t num_rows, std::int32_t block_size, VisitRow&& visit_row) noexcept {
    auto num_visits = std::size_t{0};
    return rows_.update(num_rows, block_size, [&](std::size_t i, auto&& use) {
      if (num_visits++ == num_rows) {
        std::exchange(change_, [] {})();
      }
      return visit_row(i, use);
    });
  }
  [[nodiscard]] std::span<const std::int32_t> lengths() const { return rows_.lengths(); }

 private:
  padded_batch rows_{4, 32};
  std::function<void()> change_;
};

}  // namespace

TEST_CASE("slots ahead of the tokens exist in every group, and are given back", "[group_cache]") {
  auto e = plain{config_of({full, window, state})};
  const auto id = e.create(counted(23)).value();
  e.compute(id);
  auto slots = std::vector<slot>(7);
  CHECK_FALSE(e.cache.slot_mapping(id, 23, slots));
  REQUIRE(e.cache.reserve_slots(id, 7));
  CHECK(e.cache.describe(id)->num_slots == 30);
  CHECK(e.cache.check_invariants() == sound);
  auto in_use = e.cache.statistics().blocks.in_use;
  auto ahead = std::vector<slot>(7);
  for (auto g = std::size_t{0}; g < 2; ++g) {
    REQUIRE(e.cache.slot_mapping(id, 23, ahead, g));
    REQUIRE(e.append(id, counted(3, 40)));
    CHECK(e.cache.statistics().blocks.in_use == in_use);
    e.write(id, 26);
    REQUIRE(e.cache.commit(id, 26));
    e.sequences.at(id).computed = 26;
    REQUIRE(e.cache.slot_mapping(id, 23, slots, g));
    CHECK(slots == ahead);  // the tokens are where the slots were
    REQUIRE(e.cache.release(id));
    e.sequences.clear();
    if (g == 0) {
      const auto again = e.create(counted(23), {.max_cached_tokens = 0}).value();
      REQUIRE(again != id);
      e.release(again);
      break;
    }
  }
  const auto next = e.create(counted(23, 200)).value();
  e.compute(next);
  in_use = e.cache.statistics().blocks.in_use;
  REQUIRE(e.cache.reserve_slots(next, 30));
  CHECK(e.cache.statistics().blocks.in_use > in_use);
  auto batch = padded_batch{1, 100};
  REQUIRE(e.cache.update(batch, std::array{next}));
  CHECK(batch.lengths()[0] == 23);
  const auto forked = e.fork(next).value();
  CHECK_FALSE(e.cache.slot_mapping(next, 23, slots));  // others can see the block that they begin in
  REQUIRE(e.truncate(next, 23));
  CHECK(e.cache.describe(next)->num_slots == 23);
  CHECK(e.cache.check_invariants() == sound);
  REQUIRE(e.append(forked, counted(5, 900)));
  e.compute(forked);
  REQUIRE(e.append(next, counted(5, 800)));
  e.compute(next);
  e.check(forked);
  e.check(next);
  CHECK(e.cache.reserve_slots(next, -1).error().code == error_code::invalid_argument);
  CHECK(e.cache.reserve_slots(next, 100'000).error().code == error_code::never_fits);
}

TEST_CASE("a sequence of groups begins without a token, also where a block holds one", "[group_cache]") {
  auto config = cache_config{.block_size = 1, .num_blocks = 8};
  config.groups = {group_config{.num_layers = 1, .key_dim = 64, .value_dim = 64}};
  config.hash_seed = 1;
  auto cache = group_cache<float32>{config};
  REQUIRE(cache.plan().hit_granularity == 1);
  const auto id = cache.create_sequence(tokens{}).value().id;
  REQUIRE(cache.append(id, 7));
  REQUIRE(cache.append(id, tokens{8, 9}));
  REQUIRE(cache.commit(id, 3));
  auto kept = tokens(3);
  REQUIRE(cache.tokens(id, 0, kept));
  CHECK(kept == tokens{7, 8, 9});
  CHECK(cache.check_invariants() == sound);
}

TEST_CASE("tokens of a sequence of groups are its own where others commit in between", "[group_cache]") {
  auto cache = group_cache<float32>{config_of({full, window})};
  auto texts = std::array<tokens, 2>{};
  auto ids = std::array<sequence_id, 2>{};
  const auto size = static_cast<int>(cache.plan().hit_granularity);
  for (auto round = 0; round < 4; ++round) {
    for (auto i = std::size_t{0}; i < 2; ++i) {
      const auto more = counted(size, static_cast<int>(i + 1) * 10'000 + round * 100);
      if (round == 0) {
        ids[i] = cache.create_sequence(more).value().id;
      } else {
        REQUIRE(cache.append(ids[i], more));
      }
      texts[i].insert(texts[i].end(), more.begin(), more.end());
      REQUIRE(cache.commit(ids[i], std::ssize(texts[i])));
    }
  }
  for (auto i = std::size_t{0}; i < 2; ++i) {
    auto all = tokens(texts[i].size());
    REQUIRE(cache.tokens(ids[i], 0, all));
    CHECK(all == texts[i]);
    auto inner = tokens(all.size() - 3);
    REQUIRE(cache.tokens(ids[i], 2, inner));
    CHECK(std::ranges::equal(inner, std::span{texts[i]}.subspan(2, inner.size())));
  }
}

TEST_CASE("giving back slots ahead does not shorten a prompt of which tokens are to come", "[group_cache]") {
  auto cache = group_cache<float32>{config_of({full, window})};
  const auto id = cache.create_sequence(counted(40), {.first_chunk = 10})->id;
  REQUIRE(cache.reserve_slots(id, 7));
  REQUIRE(cache.truncate(id, 10));
  CHECK(cache.describe(id)->num_slots == 10);
  CHECK(cache.describe(id)->num_prompt_tokens == 40);
  REQUIRE(cache.truncate(id, 9));
  CHECK(cache.describe(id)->num_prompt_tokens == 9);
}

TEST_CASE("a forecast for groups is what creation does", "[group_cache]") {
  for (const auto& [name, groups] : kinds) {
    INFO(name);
    auto e = plain{config_of(groups, 90)};
    const auto first = e.create(counted(50)).value();
    e.compute(first);
    for (const auto length : {10, 51, 80, 120, 200, 400, 2'000}) {
      for (const auto chunk : {whole_length, std::int64_t{16}}) {
        INFO("length " << length << ", chunk " << chunk);
        auto options = sequence_options{};
        options.first_chunk = chunk;
        const auto refusals = e.cache.statistics().refusals;
        const auto fit = e.cache.would_fit(counted(length), options);
        CHECK(e.cache.statistics().refusals == refusals);
        const auto made = e.cache.create_sequence(counted(length), options);
        REQUIRE(fit.has_value() == made.has_value());
        if (made) {
          CHECK(fit->num_cached_tokens == made->num_cached_tokens);
          CHECK(fit->num_new_blocks == made->num_new_blocks);
          REQUIRE(e.cache.release(made->id));
        } else {
          CHECK(fit.error().code == made.error().code);
          CHECK(fit.error().value == made.error().value);
          CHECK(fit.error().limit == made.error().limit);
        }
      }
    }
  }
}

TEST_CASE("blocks of every group are evicted ahead of need and keep their contents for a step", "[group_cache]") {
  auto e = plain{config_of({full, window, state}, 200)};
  const auto id = e.create(counted(60)).value();
  e.compute(id);
  const auto whole = e.table(0, id);
  e.release(id);
  const auto before = e.cache.statistics();
  const auto step = e.cache.begin_step().value();
  auto blocks = std::vector<block_id>(200);
  const auto num = e.cache.evict(blocks, step).value();
  CHECK(num == before.blocks.evictable);
  blocks.resize(static_cast<std::size_t>(num));
  for (const auto block : whole) {
    CHECK(std::ranges::count(blocks, block) == 1);
  }
  CHECK(e.cache.find_prefix(counted(60)) == 0);
  CHECK(e.cache.statistics().blocks.retiring == num);
  CHECK(e.cache.statistics().evictions == num);
  CHECK(e.cache.check_invariants() == sound);
  REQUIRE(e.cache.retire_step(step));
  CHECK(e.cache.statistics().blocks.free == 200);
  CHECK(e.cache.evict(blocks, step).error().code == error_code::unknown_step);
}

TEST_CASE("a copy is found when the first of its contents is gone", "[group_cache]") {
  auto e = plain{config_of({full}, 20)};
  const auto first = e.create(counted(16)).value();
  const auto second = e.create(counted(16), {.max_cached_tokens = 0}).value();
  e.compute(first);
  e.compute(second);
  e.release(first);
  const auto step = e.cache.begin_step().value();
  auto blocks = std::array<block_id, 20>{};
  CHECK(e.cache.evict(blocks, step).value() == 4);
  REQUIRE(e.cache.retire_step(step));
  CHECK(e.cache.find_prefix(counted(17)) == 0);
  e.release(second);
  CHECK(e.cache.find_prefix(counted(17)) == 16);
  CHECK(e.cache.check_invariants() == sound);
}

TEST_CASE("blocks that a prompt shares are no gain for it", "[group_cache]") {
  auto e = plain{config_of({full}, 20)};
  const auto id = e.create(counted(16)).value();
  e.compute(id);
  const auto gain_for = [&](const std::vector<token>& prompt) {
    return e.cache.gain_of_releasing(std::array{id}, prompt)->at_once;
  };
  CHECK(gain_for({}) == 4);
  CHECK(gain_for(counted(9)) == 2);
  CHECK(gain_for(counted(9, 500)) == 4);
}

TEST_CASE("one victim takes along what it makes useless, under one fence", "[group_cache]") {
  auto e = plain{config_of({full, window, state}, 200)};
  const auto id = e.create(counted(60)).value();
  e.compute(id);
  e.release(id);
  const auto step = e.cache.begin_step().value();
  auto blocks = std::array<block_id, 1>{};
  CHECK(e.cache.evict(blocks, step).value() == 1);
  const auto counts = e.cache.statistics().blocks;
  CHECK(counts.retiring >= 1);
  CHECK(counts.retiring == e.cache.statistics().evictions);
  REQUIRE(e.cache.retire_step(step));
  CHECK(e.cache.check_invariants() == sound);
}

TEST_CASE("a reset frees the cached blocks of every group, and is one event", "[group_cache]") {
  auto queues = event_queues{4};
  auto e = engine<group_cache<float32, event_queues>>{config_of({full, window, state}, 200), queues};
  const auto id = e.create(counted(60)).value();
  e.compute(id);
  CHECK(e.cache.reset_prefix_cache().error().code == error_code::in_use);
  e.release(id);
  queues.drain([](const cache_event& event) { CHECK(event.kind == event_kind::stored); });
  const auto evictable = e.cache.statistics().blocks.evictable;
  REQUIRE(evictable > 0);
  CHECK(e.cache.reset_prefix_cache().value() == evictable);
  auto seen = std::vector<event_kind>{};
  queues.drain([&](const cache_event& event) { seen.push_back(event.kind); });
  CHECK(seen == std::vector{event_kind::reset});
  CHECK(e.cache.statistics().blocks.free == 200);
  CHECK(e.cache.statistics().evictions == 0);
  CHECK(e.cache.find_prefix(counted(60)) == 0);
  CHECK(e.cache.check_invariants() == sound);
  const auto again = e.create(counted(60)).value();
  CHECK(e.sequences.at(again).computed == 0);
}

TEST_CASE("a sequence that was cut inside an invalidated block publishes what it then writes", "[group_cache]") {
  for (const auto& groups : {group_list{full}, group_list{full, window}, group_list{chunked, full}}) {
    auto e = plain{config_of(groups)};
    const auto id = e.create(counted(6)).value();
    e.compute(id);
    REQUIRE(e.truncate(id, 3));
    REQUIRE(e.cache.invalidate_prefix(counted(6)) > 0);
    REQUIRE(e.append(id, counted(9, 50)));
    e.compute(id);
    const auto text = e.sequences.at(id).text;
    e.release(id);
    CHECK(e.cache.find_prefix(text) >= 8);
    CHECK(e.cache.check_invariants() == sound);
  }
}

TEST_CASE("all pins of a cache with groups end at once", "[group_cache]") {
  auto e = plain{config_of({full, window, state}, 200)};
  const auto id = e.create(counted(60)).value();
  e.compute(id);
  e.release(id);
  REQUIRE(e.cache.pin(counted(60)));
  REQUIRE(e.cache.pin(counted(30)));
  CHECK(e.cache.statistics().blocks.in_use > 0);
  CHECK(e.cache.unpin_all() == 2);
  CHECK(e.cache.unpin_all() == 0);
  CHECK(e.cache.statistics().blocks.in_use == 0);
  CHECK(e.cache.check_invariants() == sound);
}

TEST_CASE("blocks that a pin of groups gives back wait for a step that uses everything", "[group_cache]") {
  auto e = plain{config_of({full, window, state})};
  e.serve(counted(41));
  const auto pinned = e.cache.pin(counted(40)).value();
  REQUIRE(pinned.num_tokens == 40);
  const auto in_use = e.cache.statistics().blocks.in_use;
  const auto step = e.cache.begin_step().value();
  REQUIRE(e.cache.unpin(pinned.id));
  CHECK(e.cache.statistics().blocks.retiring == in_use);
  CHECK(e.cache.statistics().blocks.in_use == 0);
  REQUIRE(e.cache.retire_step(step));
  CHECK(e.cache.statistics().blocks.retiring == 0);
  CHECK(e.cache.check_invariants() == sound);
}

TEST_CASE("appending to groups allocates no memory up to the expected length", "[group_cache]") {
  for (const auto& [name, groups] : kinds) {
    INFO(name);
    auto cache = group_cache<float32>{config_of(groups)};
    const auto id = cache.create_sequence(counted(3), {.expected_tokens = 400, .saving = {.at_end = true}}).value().id;
    REQUIRE(cache.commit(id, 3));
    const auto forked = cache.fork(id).value();
    const auto before = allocation_count();
    auto all_done = true;
    for (const auto each : {id, forked}) {
      for (auto i = 3; i < 400; ++i) {
        all_done = cache.append(each, i) && cache.commit(each, i + 1) && all_done;
      }
    }
    CHECK(allocation_count() == before);
    CHECK(all_done);
  }
}

TEST_CASE("a sequence of groups may expect more tokens than there is room for", "[group_cache]") {
  for (const auto& [name, groups] : kinds) {
    INFO(name);
    auto cache = group_cache<float32>{config_of(groups)};
    const auto made = cache.create_sequence(counted(3), {.expected_tokens = sequence_options::no_limit});
    REQUIRE(made);
    REQUIRE(cache.commit(made->id, 3));
    CHECK(cache.fork(made->id));
  }
}

TEST_CASE("hashes of runs are those that events name", "[group_cache]") {
  auto queues = event_queues{4};
  auto cache = group_cache<float32, event_queues>{config_of({full, window}), queues};
  const auto made = cache.create_sequence(counted(40), {.salt = salt{5}}).value();
  REQUIRE(cache.commit(made.id, 40));
  auto hashes = std::array<std::uint64_t, 20>{};
  REQUIRE(cache.hash_blocks(counted(40), hashes, salt{5}) == 10);
  auto at = std::size_t{0};
  queues.drain([&](const cache_event& event) { CHECK(event.hash == hashes[at++]); });
  CHECK(at == 10);
}

TEST_CASE("the last state of an answer is there for what continues it, if the caller wants it", "[group_cache]") {
  auto e = plain{config_of({full, window, state})};
  const auto answer = [&](const state_saving& saving) {
    const auto id = e.create(counted(22), {.max_cached_tokens = 0, .saving = saving}).value();
    e.compute(id);
    for (auto i = 0; i < 29; ++i) {
      REQUIRE(e.append(id, counted(1, i)));
      e.compute(id);
    }
    REQUIRE(e.cache.check_invariants() == sound);
    auto text = e.sequences.at(id).text;
    REQUIRE(e.cache.compact());
    e.check(id);
    e.release(id);
    return text;
  };
  auto text = answer({});
  text.push_back(-1);
  CHECK(e.cache.find_prefix(text) == 20);  // before the end of the prompt
  answer({.at_end = true});
  const auto next = e.create(text).value();
  CHECK(e.sequences.at(next).computed == 48);
  e.compute(next);
  e.check(next);
  CHECK(e.cache.check_invariants() == sound);
}

TEST_CASE("a state of the answer that cannot be copied is given back", "[group_cache]") {
  auto log = recording_backend::log{};
  auto cache =
      group_cache<float32, recording_backend>{config_of({full, state}), host_allocator{}, recording_backend{log}};
  const auto made = cache.create_sequence(counted(22), {.saving = {.at_end = true}}).value();
  REQUIRE(cache.commit(made.id, 20));
  REQUIRE(cache.commit(made.id, 22));
  CHECK(cache.next_saved_length(made.id).value() == 24);
  REQUIRE(cache.append(made.id, counted(6)));
  const auto in_use = cache.statistics().blocks.in_use;
  REQUIRE(cache.commit(made.id, 24));
  const auto with_state = cache.statistics().blocks.in_use;
  CHECK(with_state > in_use);
  log.fail = true;
  CHECK_FALSE(cache.commit(made.id, 28));
  CHECK(cache.describe(made.id)->num_computed_tokens == 24);
  CHECK(cache.statistics().blocks.in_use == in_use);
  CHECK(cache.check_invariants() == sound);
  log.fail = false;
  REQUIRE(cache.commit(made.id, 28));
  CHECK(cache.statistics().blocks.in_use == with_state);
  REQUIRE(cache.release(made.id));
  CHECK(cache.find_prefix(counted(22)) == 20);
}

TEST_CASE("a batch for groups does what its parts do, one after the other", "[group_cache]") {
  auto batched = plain{config_of({full, window, state}, 45)};
  auto single = plain{config_of({full, window, state}, 45)};
  auto ids = std::array<std::vector<sequence_id>, 2>{};
  for (auto i = 0; i < 3; ++i) {
    ids[0].push_back(batched.create(counted(20 + i, 1000 * i)).value());
    ids[1].push_back(single.create(counted(20 + i, 1000 * i)).value());
    batched.compute(ids[0].back());
    single.compute(ids[1].back());
  }
  auto num_failed = std::size_t{0};
  for (auto round = 0; round < 80; ++round) {
    const auto more = counted(1 + round % 3, round);
    auto entries = std::vector<batch_entry>{};
    for (const auto id : ids[0]) {
      entries.push_back({id, more, batched.cache.describe(id)->num_tokens, round % 2 == 0 ? 3 : 0});
    }
    entries.push_back({sequence_id{12345}, more});
    auto slots = std::vector<slot>(200, slot{77});
    auto failures = std::vector<batch_failure>(entries.size());
    const auto done = batched.cache.append_batch(entries, {slots, failures}).value();
    auto at = std::size_t{0};
    auto failed = std::size_t{0};
    for (auto i = std::size_t{0}; i < 3; ++i) {
      const auto id = ids[1][i];
      const auto first = single.cache.describe(id)->num_tokens;
      REQUIRE(single.cache.commit(id, first));
      const bool fits = single.cache.append(id, more).has_value() &&
                        (round % 2 != 0 || single.cache.reserve_slots(id, 3).has_value());
      const auto count = more.size() + (round % 2 == 0 ? 3U : 0U);
      if (!fits && single.cache.describe(id)->num_tokens != first) {
        REQUIRE(single.cache.truncate(id, first));  // in a batch, all or nothing
      }
      for (auto g = std::size_t{0}; g < 2; ++g) {
        auto expected = std::vector<slot>(count, skip_slot);
        REQUIRE((!fits || batched.cache.slot_mapping(ids[0][i], first, expected, g)));
        CHECK(std::ranges::equal(expected, std::span(slots).subspan(g * done.num_slots + at, count)));
      }
      CHECK(batched.cache.describe(ids[0][i])->num_tokens == single.cache.describe(id)->num_tokens);
      failed += !fits;
      at += count;
    }
    REQUIRE(done.num_failures == failed + 1);
    CHECK(failures[failed].entry == 3);
    CHECK(failures[failed].reason.code == error_code::unknown_sequence);
    CHECK(slots[at] == skip_slot);
    CHECK(done.num_slots == at + more.size());
    num_failed += failed;
    REQUIRE(batched.cache.check_invariants() == sound);
  }
  CHECK(num_failed > 0);
  auto slots = std::vector<slot>(1);
  const auto one = counted(1);
  const auto entry = batch_entry{ids[0][0], one};
  CHECK(batched.cache.append_batch({&entry, 1}, {slots, {}}).error().code == error_code::invalid_argument);
}

TEST_CASE("a sequence is not cut before the blocks behind windows that were dropped", "[group_cache]") {
  for (const auto& groups : {group_list{full, window}, group_list{full, with_sinks}, group_list{chunked, full}}) {
    auto cache = group_cache<float32>{config_of(groups)};
    const auto id = cache.create_sequence(counted(80)).value().id;
    REQUIRE(cache.drop_behind_windows(id, 65));
    CHECK(cache.check_invariants() == sound);
    for (auto length = 0; length < 44; ++length) {  // of which no window that is held here can be continued
      REQUIRE(cache.truncate(id, length).error().code == error_code::invalid_argument);
    }
    REQUIRE(cache.commit(id, 65));
    REQUIRE(cache.truncate(id, 70));
    REQUIRE(cache.append(id, counted(3)));
    auto slots = std::vector<slot>(8);
    for (auto g = std::size_t{0}; g < groups.size(); ++g) {
      REQUIRE(cache.slot_mapping(id, 65, slots, g));
      CHECK(std::ranges::count(slots, skip_slot) == 0);
    }
    CHECK(cache.check_invariants() == sound);
    REQUIRE(cache.release(id));
  }
}

TEST_CASE("a batch view of a group is updated again where another thread changes a sequence", "[group_cache]") {
  auto cache = group_cache<float32, sharded_mutex>{config_of({full, window})};
  const auto ids = std::array{cache.create_sequence(counted(20)).value().id, cache.create_sequence({}).value().id};
  for (const auto group : {std::size_t{0}, std::size_t{1}}) {
    const auto change = [&] {
      REQUIRE(cache.truncate(ids[0], 3));
      REQUIRE(cache.append(ids[0], counted(21)));
    };
    auto batch = interrupted_batch{change};
    REQUIRE(cache.update(batch, ids, group));
    REQUIRE(batch.lengths().size() == 2);
    CHECK(batch.lengths()[0] == 24);
    CHECK(batch.lengths()[1] == 0);
    REQUIRE(cache.truncate(ids[0], 20));
  }
}

TEST_CASE("keys part prompts of equal tokens in a cache with groups", "[group_cache]") {
  auto cache = group_cache<float32>{config_of({full, window})};
  const auto text = counted(41);
  const auto key = prefix_key{.position = 18, .value = {1, 2}};
  const auto other = prefix_key{.position = 18, .value = {1, 3}};
  const auto late = prefix_key{.position = 30, .value = {4, 4}};
  const auto made = cache.create_sequence(token_run{std::span(text).first(20), {&key, 1}}).value();
  REQUIRE(cache.append(made.id, token_run{std::span(text).subspan(20), {&late, 1}}));
  CHECK(cache.append(made.id, token_run{std::span(text).first(1), {&key, 1}}).error().code ==
        error_code::invalid_argument);
  REQUIRE(cache.commit(made.id, 41));
  const auto found = [&](std::vector<prefix_key> keys) { return cache.find_prefix(token_run{text, keys}); };
  CHECK(found({key, late}) == 40);
  CHECK(found({key}) == 28);
  CHECK(found({other, late}) == 16);
  CHECK(found({}) == 16);
  const auto forked = cache.fork(made.id).value();
  REQUIRE(cache.truncate(forked, 39));
  REQUIRE(cache.append(forked, std::span(text).subspan(39)));
  REQUIRE(cache.commit(forked, 41));
  CHECK(cache.would_fit(token_run{text, {&key, 1}}).value().num_cached_tokens == 28);
  CHECK(cache.pin(token_run{text, {&other, 1}}).value().num_tokens == 16);
  CHECK(cache.check_invariants() == sound);
}

TEST_CASE("hashes that the caller tells find what was published with them", "[group_cache]") {
  auto queues = event_queues{4};
  auto cache = group_cache<float32, event_queues>{config_of({full, window}), queues};
  const auto text = counted(42);
  auto hashes = std::vector<std::uint64_t>{};
  for (auto i = std::uint64_t{1}; i <= 10; ++i) {
    hashes.push_back(i * 0x1234567);
  }
  const auto made = cache.create_sequence(token_run{std::span(text).first(18), {}, hashes}).value();
  REQUIRE(cache.append(made.id, token_run{std::span(text).subspan(18), {}, hashes}));
  REQUIRE(cache.commit(made.id, 9));
  REQUIRE(cache.commit(made.id, 42));
  CHECK(cache.find_prefix(token_run{text, {}, hashes}) == 40);
  CHECK(cache.find_prefix(text) == 0);
  auto published = std::vector<std::uint64_t>{};
  queues.drain([&](const cache_event& event) { published.push_back(event.hash); });
  CHECK(published == hashes);
  CHECK(cache.check_invariants() == sound);
}

TEST_CASE("sequences of groups have full blocks in common that they share", "[group_cache]") {
  auto e = engine<group_cache<float32>>{config_of({full, window, state})};
  const auto first = e.create(counted(70), {.saving = {.every = 4}}).value();
  e.compute(first);
  auto text = counted(50);
  text.push_back(-1);
  const auto second = e.create(text).value();
  REQUIRE(e.sequences.at(second).computed == 48);
  const auto third = e.fork(first).value();
  const auto block_size = e.cache.plan().groups[0].block_size;
  const auto common = [&](std::size_t group, const std::vector<sequence_id>& ids) {
    return e.cache.common_prefix(ids, group).value();
  };
  CHECK(common(0, {}) == 0);
  CHECK(common(0, {first}) == 70 / block_size);
  CHECK(common(0, {first, third}) == 70 / block_size);
  CHECK(common(0, {third, first, second}) == e.sequences.at(second).computed / block_size);
  CHECK(common(1, {first, third}) == 0);  // the window has moved
  CHECK(e.cache.common_prefix(std::vector{first}, 2).error().code == error_code::invalid_argument);
  e.release(third);
  CHECK(e.cache.common_prefix(std::vector{first, third}).error().code == error_code::unknown_sequence);
}
