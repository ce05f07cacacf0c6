#include <pagedkv/pagedkv.hpp>
#include <pagedkv/policy/eviction/clock_sweep.hpp>
#include <pagedkv/policy/layout/all.hpp>
#include <pagedkv/policy/locking/sharded_mutex.hpp>

#include "../support/messages.hpp"
#include "group_engine.hpp"

#include <catch2/catch_get_random_seed.hpp>
#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>

#include <algorithm>
#include <array>
#include <limits>
#include <random>
#include <string>
#include <vector>

using namespace pagedkv;
using namespace pagedkv::test;

namespace {

using plain = engine<group_cache<float32>>;

}  // namespace

TEST_CASE("a resent prompt shares what every group can continue from", "[group_cache]") {
  for (const auto& [name, groups] : kinds) {
    INFO(name);
    auto e = plain{config_of(groups)};
    const auto first = e.create(counted(50)).value();
    e.compute(first);
    e.check(first);
    e.release(first);
    const auto again = e.create(counted(50)).value();
    CHECK(e.sequences.at(again).computed == 48);  // the last token is left to compute
    e.compute(again);
    e.check(again);
    CHECK(e.cache.check_invariants() == std::vector<std::string>{});
  }
}

TEST_CASE("a hit may end inside a block of a group, which is then copied", "[group_cache]") {
  auto e = plain{config_of({full, window})};
  REQUIRE(e.cache.plan().groups[0].block_size > 4);
  const auto first = e.create(counted(30)).value();
  e.compute(first);
  auto other = counted(21);
  other.push_back(-1);
  const auto branch = e.create(other).value();
  CHECK(e.sequences.at(branch).computed == 20);
  e.compute(branch);
  CHECK(e.append(first, counted(9, 100)));
  e.compute(first);
  e.check(first);
  e.check(branch);
}

TEST_CASE("an append inside a block that a pin took since the last one copies it", "[group_cache]") {
  auto e = plain{config_of({full, window})};
  REQUIRE(e.cache.plan().groups[0].block_size == 16);
  const auto id = e.create(counted(24)).value();
  e.compute(id);
  REQUIRE(e.append(id, counted(1, 100)));
  e.compute(id);
  const auto before = e.table(0, id);
  const auto pinned = e.cache.pin(counted(24)).value();
  CHECK(pinned.num_tokens == 24);
  REQUIRE(e.append(id, counted(1, 101)));
  CHECK(e.table(0, id).front() == before.front());
  CHECK(e.table(0, id).back() != before.back());
  e.compute(id);
  e.check(id);
  REQUIRE(e.cache.unpin(pinned.id).has_value());
  CHECK(e.cache.check_invariants() == std::vector<std::string>{});
}

TEST_CASE("a slot mapping outside of the sequence is refused", "[group_cache]") {
  auto e = plain{config_of({full, window})};
  const auto id = e.create(counted(30)).value();
  auto slots = std::array<slot, 2>{};
  for (const auto first : {std::int64_t{-1}, std::int64_t{29}, whole_length}) {
    CAPTURE(first);
    CHECK(e.cache.slot_mapping(id, first, slots).error().code == error_code::invalid_argument);
  }
  CHECK(e.cache.slot_mapping(id, 28, slots));
}

TEST_CASE("slots that a hit can find are not written again", "[group_cache]") {
  auto wide = window;
  wide.window = 100;
  auto e = plain{config_of({full, wide})};
  const auto first = e.create(counted(24)).value();
  e.compute(first);
  REQUIRE(e.truncate(first, 21));
  REQUIRE(e.append(first, counted(9, 500)));
  e.compute(first);
  const auto again = e.create(counted(25)).value();
  CHECK(e.sequences.at(again).computed == 24);
  e.check(first);
}

TEST_CASE("a table of a window does not grow, and only committed tokens move the window", "[group_cache]") {
  auto e = plain{config_of({full, window, with_sinks})};
  const auto id = e.create(counted(3)).value();
  for (auto i = 0; i < 300; ++i) {
    REQUIRE(e.append(id, counted(1, i)));
    if (i % 10 == 9) {
      const auto held = e.table(1, id);
      REQUIRE(e.append(id, counted(4, 7 * i)));  // a draft
      for (const auto block : held) {
        REQUIRE(std::ranges::count(e.table(1, id), block) == 1);
      }
      e.compute(id, static_cast<std::int64_t>(e.sequences.at(id).text.size()) - 4);
      REQUIRE(e.truncate(id, static_cast<std::int64_t>(e.sequences.at(id).text.size()) - 4));
      e.check(id);
    }
  }
  const auto& plan = e.cache.plan();
  CHECK(e.table(1, id).size() <= static_cast<std::size_t>(7 / plan.groups[1].block_size + 2 + 14));
  CHECK(e.table(0, id).size() ==
        static_cast<std::size_t>((303 + plan.groups[0].block_size - 1) / plan.groups[0].block_size));
  CHECK(e.cache.check_invariants() == std::vector<std::string>{});
}

TEST_CASE("states are saved where a prompt branches and before its end, or where the caller asks", "[group_cache]") {
  auto e = plain{config_of({full, state})};
  const auto first = e.create(counted(50)).value();
  CHECK(e.cache.next_saved_length(first).value() == 48);
  e.compute(first);
  CHECK(e.cache.next_saved_length(first).value() == whole_length);
  e.release(first);

  auto other = counted(31);
  other.resize(60, -1);
  const auto branch = e.create(other).value();
  CHECK(e.sequences.at(branch).computed == 0);  // no state was saved at the branch
  CHECK(e.cache.next_saved_length(branch).value() == 28);
  e.compute(branch);
  e.release(branch);

  auto third = counted(31);
  third.resize(60, -2);
  const auto hit = e.create(third).value();
  CHECK(e.sequences.at(hit).computed == 28);
  e.compute(hit);
  e.check(hit);
  e.release(hit);

  const auto often = e.create(counted(40, 500), {.saving = {.at_branches = false, .at_prompt_end = false, .every = 8}}).value();
  CHECK(e.cache.next_saved_length(often).value() == 8);
  e.compute(often);
  const auto resent = e.create(counted(40, 500)).value();
  CHECK(e.sequences.at(resent).computed == 32);
}

TEST_CASE("the state before the end of a prompt is saved when its answer is there already", "[group_cache]") {
  auto e = plain{config_of({full, state})};
  auto options = sequence_options{};
  options.num_prompt_tokens = 22;
  const auto again = e.create(counted(40), options).value();
  CHECK(e.cache.describe(again)->num_prompt_tokens == 22);
  CHECK(e.cache.next_saved_length(again).value() == 20);
  e.compute(again);
  const auto other = e.create(counted(22)).value();
  CHECK(e.sequences.at(other).computed == 20);
}

TEST_CASE("the next length whose commit saves a state is a multiple of both numbers, if there is one",
          "[group_cache]") {
  auto e = plain{config_of({full, state})};
  const auto next_of = [&](std::int64_t every) {
    const auto id = e.create(counted(40), {.saving = {.at_branches = false, .at_prompt_end = false, .every = every}}).value();
    const auto next = e.cache.next_saved_length(id).value();
    e.release(id);
    return next;
  };
  CHECK(next_of(0) == whole_length);
  CHECK(next_of(6) == 12);
  CHECK(next_of(whole_length) == whole_length);
  CHECK(next_of(whole_length / 4) == whole_length / 4 * 4);
  CHECK(next_of(whole_length / 2) == whole_length);

  auto without = plain{config_of({full, window})};
  const auto id = without.create(counted(40), {.saving = {.every = 8}}).value();
  CHECK(without.cache.next_saved_length(id).value() == whole_length);
}

TEST_CASE("a forked sequence has a state of its own", "[group_cache]") {
  auto e = plain{config_of({full, window, state})};
  const auto first = e.create(counted(22)).value();
  e.compute(first);
  const auto second = e.fork(first).value();
  REQUIRE(e.append(first, counted(9, 50)));
  e.compute(first);
  REQUIRE(e.append(second, counted(9, 80)));
  e.compute(second);
  e.check(first);
  e.check(second);
  REQUIRE(e.append(first, counted(1)));
  CHECK_FALSE(e.cache.fork(first));  // not computed
}

TEST_CASE("evicting a block of full attention takes along what it makes useless", "[group_cache]") {
  auto e = plain{config_of({full, window, state}, 60)};
  const auto long_ago = e.create(counted(40)).value();
  e.compute(long_ago);
  e.release(long_ago);
  const auto before = e.cache.statistics().blocks.evictable;
  REQUIRE(before > 8);
  const auto held = e.create(counted(24, 1000), {.publish = false}).value();
  e.compute(held);
  while (e.cache.num_free_blocks() > 0) {
    REQUIRE(e.append(held, counted(1)));
    e.compute(held);
  }
  while (e.cache.statistics().evictions == 0) {
    REQUIRE(e.append(held, counted(1)));
    e.compute(held);
  }
  CHECK(e.cache.check_invariants() == std::vector<std::string>{});
  CHECK(e.cache.find_prefix(counted(40)) < 36);
}

TEST_CASE("losing one of two equal blocks keeps the other findable", "[group_cache]") {
  auto e = plain{config_of({full, window, state}, 80)};
  const auto first = e.create(counted(40)).value();
  const auto second = e.create(counted(40)).value();
  e.compute(first);
  e.compute(second);
  e.release(first);
  const auto other = e.create(counted(20, 1000), {.publish = false}).value();
  while (e.cache.find_prefix(counted(40)) != 0) {
    REQUIRE(e.append(other, counted(1)));
    e.compute(other);
  }
  e.release(other);
  e.release(second);
  auto text = counted(41);
  REQUIRE(e.cache.pin(text));
  CHECK(e.cache.check_invariants() == std::vector<std::string>{});
  auto without_state = plain{config_of({full, window}, 40)};
  const auto a = without_state.create(counted(40)).value();
  const auto b = without_state.create(counted(40)).value();
  without_state.compute(a);
  without_state.compute(b);
  without_state.release(a);
  const auto c = without_state.create(counted(20, 1000), {.publish = false}).value();
  while (without_state.cache.find_prefix(counted(40)) != 0) {
    REQUIRE(without_state.append(c, counted(1)));
    without_state.compute(c);
  }
  without_state.release(b);
  const auto found = without_state.create(counted(41)).value();
  CHECK(without_state.sequences.at(found).computed == 40);
}

TEST_CASE("a batch of each group shows slots ahead where that is wished", "[group_cache]") {
  auto e = plain{config_of({full, window})};
  const auto a = e.create(counted(45)).value();
  e.compute(a);
  REQUIRE(e.cache.reserve_slots(a, 30));
  for (auto group = std::size_t{0}; group < 2; ++group) {
    const auto skipped = e.cache.num_skipped_tokens(a, group).value();
    const auto size = e.cache.plan().groups[group].block_size;
    auto batch = compressed_batch{1, 80};
    for (const auto& [num_ahead, length] : {std::pair{0, 45}, {1, 46}, {30, 75}, {31, 75}}) {
      REQUIRE(e.cache.update(batch, std::array{a}, group, num_ahead));
      CHECK(std::ssize(batch.indices()) == (length - skipped + size - 1) / size);
      CHECK(batch.last_block_len()[0] == (length - skipped - 1) % size + 1);
    }
    CHECK(!e.cache.update(batch, std::array{a}, group, -1));
  }
}

TEST_CASE("a window group's batch has the rows and lengths that kernels take", "[group_cache]") {
  auto e = plain{config_of({full, window})};
  const auto a = e.create(counted(45)).value();
  const auto b = e.create(counted(3, 900)).value();
  e.compute(a);
  e.compute(b);
  const auto ids = std::vector{a, b};
  const auto block_size = e.cache.plan().groups[1].block_size;
  auto padded = padded_batch{2, 40};
  auto compressed = compressed_batch{2, 80};
  for (auto round = 0; round < 20; ++round) {
    REQUIRE(e.cache.update(padded, ids, 1));
    REQUIRE(e.cache.update(compressed, ids, 1));
    for (std::size_t i = 0; i < 2; ++i) {
      const auto blocks = e.table(1, ids[i]);
      const auto length =
          static_cast<std::int64_t>(e.sequences.at(ids[i]).text.size()) - e.cache.num_skipped_tokens(ids[i], 1).value();
      CHECK(padded.lengths()[i] == length);
      CHECK(std::ranges::equal(blocks, padded.block_tables().subspan(i * 40, blocks.size())));
      const auto begin = static_cast<std::size_t>(compressed.indptr()[i]);
      CHECK(std::ranges::equal(blocks, compressed.indices().subspan(begin, blocks.size())));
      CHECK(compressed.last_block_len()[i] == (length - 1) % block_size + 1);
    }
    REQUIRE(e.append(a, counted(2)));
    REQUIRE(e.append(b, counted(1)));
    e.compute(a);
    e.compute(b);
  }
  CHECK(e.cache.update(padded, ids, 7).error().subject == std::string{"index of a group"});
}

/// Notes the kinds of all events.
struct noted_kinds {
  static constexpr auto kinds = all_event_kinds;

  std::vector<event_kind>* seen;

  void emit(const cache_event& event) noexcept { seen->push_back(event.kind); }
};

TEST_CASE("a cache with groups reports sequences and steps", "[group_cache]") {
  auto seen = std::vector<event_kind>{};
  auto cache = group_cache<noted_kinds>{config_of({full, window}), noted_kinds{&seen}};
  const auto made = cache.create_sequence(counted(20)).value();
  const auto step = cache.begin_step(std::array{made.id}).value();
  REQUIRE(cache.commit(made.id, 20).has_value());
  REQUIRE(cache.fork(made.id).has_value());
  REQUIRE(cache.release(made.id).has_value());
  REQUIRE(cache.retire_step(step).has_value());
  REQUIRE(cache.begin_step().has_value());
  using enum event_kind;
  CHECK(seen == std::vector{admitted, step_begun, stored, stored, stored, stored, stored, forked, released,
                            step_retired, step_begun});
}

TEST_CASE("a pin tells the blocks of a hit in each group", "[group_cache]") {
  auto e = engine<group_cache<float32>>{config_of({full, with_sinks, state})};
  const auto id = e.hold(counted(50), {.saving = {.every = 4}});
  const auto pinned = e.cache.pin(counted(50)).value();
  REQUIRE(pinned.num_tokens == 48);
  const auto next = e.create(counted(51)).value();  // the same hit
  REQUIRE(e.sequences.at(next).computed == 48);
  auto blocks = std::vector<block_id>(100);
  for (const auto group : {std::size_t{0}, std::size_t{1}}) {
    const auto shared = e.table(group, next);
    const auto size = e.cache.block_table(pinned.id, blocks, 0, group).value();
    CHECK(size + (48 % e.cache.plan().groups[group].block_size == 0 ? 1 : 0) == shared.size());
    const auto num_whole = size - (48 % e.cache.plan().groups[group].block_size == 0 ? 0 : 1);
    CHECK(std::equal(shared.begin(), shared.begin() + static_cast<std::ptrdiff_t>(num_whole), blocks.begin()));
  }
  CHECK(e.cache.block_table(pinned.id, blocks, 0, 2).value() == e.table(2, id).size());
  CHECK(e.cache.block_table(pinned.id, blocks, 0, 3).error().code == error_code::invalid_argument);
  REQUIRE(e.cache.unpin(pinned.id).has_value());
  CHECK(e.cache.block_table(pinned.id, blocks).error().code == error_code::unknown_pin);
}

TEST_CASE("pinned blocks count among those that were in use at once", "[group_cache]") {
  auto cache = group_cache<float32>{config_of({full, window})};
  const auto serve = [&](token first) {
    const auto made = cache.create_sequence(counted(20, first)).value();
    REQUIRE(cache.commit(made.id, 20).has_value());
    REQUIRE(cache.release(made.id).has_value());
  };
  serve(0);
  serve(100);
  const auto one = cache.pin(counted(20)).value();
  const auto other = cache.pin(counted(20, 100)).value();
  const auto in_use = cache.statistics().blocks.in_use;
  REQUIRE(cache.unpin(one.id).has_value());
  REQUIRE(cache.unpin(other.id).has_value());
  CHECK(cache.statistics().peak_in_use >= in_use);
}

TEST_CASE("configurations that no cache with groups supports are refused", "[group_cache][messages]") {
  const auto refusal = [](group_list groups, std::int32_t num_blocks = 400, std::int32_t granularity = 4) {
    return said(group_cache<float32>::create(config_of(groups, num_blocks, granularity)));
  };
  constexpr auto largest = std::numeric_limits<std::int32_t>::max();
  const auto unlike = group_list{full, group_config{.kind = group_kind::window, .num_layers = 64, .window = 8}};
  const auto num_hits = std::int64_t{plan_memory(unlike, size_of_element<float32>, 1)->groups[0].block_size};
  const auto wide = group_config{.num_layers = largest, .key_dim = 4096, .value_dim = 4096};
  check_messages({
      {refusal({}), invalid("number of cache_config.groups is 0, limit 1")},
      {refusal({full, state, state}), invalid("number of groups with a state is 2, limit 1")},
      {refusal({full, group_config{.num_layers = 0}}), invalid("group_config.num_layers is 0, limit 1")},
      {refusal({group_config{.key_dim = 1, .value_dim = 1}, wide}, largest, 1),
       "size overflow: number of blocks whose bytes 63 bits do not count is 2147483647"},
      {refusal(unlike, 200'000'000, 1), "size overflow: number of hits of the smallest length in the pool is " +
                                            std::to_string(200'000'000 * num_hits) + ", limit 2147483647"},
  });
  auto c = group_cache<float32>{config_of({full})};
  CHECK_FALSE(c.create_sequence(counted(4), {.priority = 101}));
  CHECK_FALSE(c.create_sequence(counted(4), {.answer = block_retention{.priority = 101}}));
  const auto key = prefix_key{.position = 9};
  CHECK_FALSE(c.create_sequence(token_run{counted(4), {&key, 1}}));
  CHECK(c.statistics().num_sequences == 0);
}

TEST_CASE("a refusal of a cache with groups names the argument, what it was, and what is allowed",
          "[group_cache][messages]") {
  auto e = plain{config_of({full, window, state}, 60)};
  const auto id = e.create(counted(40)).value();
  e.compute(id);
  const auto uncommitted = e.create(counted(6, 100)).value();
  auto slots = std::vector<slot>(20);
  auto out = tokens(20);
  auto none = std::vector<block_id>{};
  const auto key = std::array{prefix_key{.position = 6}};
  const auto only_keys = token_run{tokens{}, key};
  check_messages({
      {said(e.cache.slot_mapping(id, 0, slots, 3)), invalid("index of a group is 3, limit 2")},
      {said(e.cache.slot_mapping(id, 0, slots, 2)),
       invalid("index of a group, which holds a state and no tokens, is 2")},
      {said(e.cache.slot_mapping(id, 30, slots, 0)),
       invalid("end of the slot mapping, first_token + slots.size(), is 50, limit 40")},
      {said(e.cache.tokens(id, 30, out)),
       invalid("end of the tokens to copy, first_token + out.size(), is 50, limit 40")},
      {said(e.cache.commit(id, 41)), invalid("number of computed tokens, more than the sequence has, is 41, limit 40")},
      {said(e.cache.commit(id, 39)), invalid("number of computed tokens, fewer than committed, is 39, limit 40")},
      {said(e.cache.truncate(id, 41)), invalid("number of tokens to keep is 41, limit 40")},
      {said(e.cache.truncate(id, 39)), invalid("number of tokens to keep, before those held, is 39, limit 40")},
      {said(e.cache.drop_behind_windows(id, 41)), invalid("start of what is read is 41, limit 40")},
      {said(e.cache.drop_behind_windows(id, -1)), invalid("start of what is read is -1, limit 0")},
      {said(e.cache.fork(uncommitted)), invalid("number of tokens to fork that are not committed is 6, limit 0")},
      {said(e.cache.create_sequence(counted(4), {.saving = {.every = -1}})),
       invalid("state_saving.every is -1, limit 0")},
      {said(e.cache.would_fit(counted(4), {.saving = {.every = -1}})), invalid("state_saving.every is -1, limit 0")},
      {said(e.cache.invalidate_blocks(std::array{block_id{60}})), invalid("block to invalidate is 60, limit 59")},
      {said(e.cache.append(uncommitted, token_run{counted(2), key})), "no refusal"},
      {said(e.cache.append(uncommitted, token_run{counted(2), key})), invalid("position of a key is 6, limit 8")},
      {said(e.cache.append(uncommitted, only_keys)), invalid("number of keys without tokens is 1, limit 0")},
      {said(e.cache.create_sequence(only_keys)), invalid("number of keys without tokens is 1, limit 0")},
      {said(e.cache.would_fit(only_keys)), invalid("number of keys without tokens is 1, limit 0")},
      {said(e.cache.create_sequence(counted(4000, 200))),
       "never fits: number of blocks needed, more than the pool has, is " +
           std::to_string(e.cache.would_fit(counted(4000, 200)).error().value) + ", limit 60"},
  });
}

namespace {

/// Blocks of a sequence of so many tokens, none of them released.
std::size_t blocks_for(const cache_config& config, std::int64_t num_tokens) {
  const auto plan = plan_memory(config.groups, size_of_element<float32>, config.block_size).value();
  auto num = std::int64_t{0};
  for (std::size_t g = 0; g < config.groups.size(); ++g) {
    const auto& own = plan.groups[g];
    num += own.blocks_per_state != 0 ? own.blocks_per_state : (num_tokens + own.block_size - 1) / own.block_size;
  }
  return static_cast<std::size_t>(num);
}

struct coverage {
  std::int64_t hit_tokens = 0;
  std::int64_t copies = 0;
  std::int64_t evictions = 0;
  std::int64_t refusals = 0;
};

/// Random operations on a cache whose every byte is known.
template <class Cache>
coverage run_random(const group_list& groups, std::uint64_t seed, int num_operations) {
  auto random = std::mt19937_64{seed};
  const auto below = [&](std::size_t end) { return static_cast<std::size_t>(random() % end); };
  const auto granularity = std::array{1, 4, 8}[below(3)];
  auto config = config_of(groups, 1, granularity);
  config.num_blocks = static_cast<std::int32_t>(blocks_for(config, 40) * (10 + below(30)) / 10);
  auto e = engine<Cache>{config};
  auto texts = std::vector<tokens>{{}};
  auto pins = std::vector<pin_id>{};
  const auto any = [&] {
    auto found = e.sequences.begin();
    std::advance(found, static_cast<std::ptrdiff_t>(below(e.sequences.size())));
    return found->first;
  };
  const auto draw = [&](std::size_t most) {
    auto text = tokens(below(most) + 1);
    std::ranges::generate(text, [&] { return static_cast<token>(below(2)); });
    return text;
  };
  for (auto i = 0; i < num_operations; ++i) {
    const auto action = below(20);
    INFO("operation " << i << ", action " << action);
    if (action < 4 || e.sequences.empty()) {
      auto prompt = texts[texts.size() - 1 - below(std::min(texts.size(), below(4) + 1))];
      prompt.resize(below(2) == 0 ? prompt.size() : below(prompt.size() + 1));
      const auto more = draw(30);
      prompt.insert(prompt.end(), more.begin(), more.end());
      auto options = sequence_options{};
      options.publish = below(8) != 0;
      options.max_cached_tokens = below(8) == 0 ? static_cast<std::int64_t>(below(20)) : whole_length;
      options.first_chunk = below(4) == 0 ? static_cast<std::int64_t>(below(20)) : whole_length;
      options.saving = {below(2) == 0, below(2) == 0, below(3) == 0 ? 8 : 0, below(2) == 0};
      const auto before = e.cache.statistics();
      if (!e.create(prompt, options)) {
        CHECK(e.cache.statistics().blocks.in_use == before.blocks.in_use);
      }
    } else if (action < 8) {
      e.append(any(), draw(6));
    } else if (action < 12) {
      const auto id = any();
      const auto& s = e.sequences.at(id);
      e.compute(
          id, s.computed + static_cast<std::int64_t>(below(s.text.size() - static_cast<std::size_t>(s.computed) + 1)));
      texts.push_back(s.text);
      texts.back().resize(static_cast<std::size_t>(s.computed));
    } else if (action < 13) {
      e.fork(any());
    } else if (action < 14) {
      const auto id = any();
      const auto& s = e.sequences.at(id);
      texts.push_back(s.text);
      texts.back().resize(static_cast<std::size_t>(s.computed));
      const auto length = s.text.size();
      const auto cut = below(2) == 0 ? below(length + 1) : below(std::min(length, std::size_t{8}) + 1);
      e.truncate(id, static_cast<std::int64_t>(length - cut));
    } else if (action < 16) {
      e.release(any());
    } else if (action < 17) {
      if (pins.empty() || below(2) == 0) {
        if (const auto pinned = e.cache.pin(texts[below(texts.size())])) {
          pins.push_back(pinned->id);
        }
      } else {
        REQUIRE(e.cache.unpin(pins.back()));
        pins.pop_back();
      }
    } else if (action < 18) {
      if (e.open_steps.size() < 3) {
        e.begin_step({any()});
      }
    } else if (action < 19) {
      if (!e.open_steps.empty()) {
        e.retire_step(e.open_steps.begin()->first);
      }
    } else if (e.open_steps.empty()) {
      REQUIRE(e.cache.compact());
    }
    if (texts.size() > 20) {
      texts.erase(texts.begin() + 1);
    }
    REQUIRE(e.cache.check_invariants() == std::vector<std::string>{});
    e.check_statistics();
    for (const auto& [id, s] : e.sequences) {
      e.check(id);
    }
  }
  while (!e.open_steps.empty()) {
    e.retire_step(e.open_steps.begin()->first);
  }
  for (const auto pinned : pins) {
    REQUIRE(e.cache.unpin(pinned));
  }
  while (!e.sequences.empty()) {
    e.release(e.sequences.begin()->first);
  }
  const auto taken = e.cache.statistics();
  CHECK(taken.blocks.in_use == 0);
  CHECK(e.cache.check_invariants() == std::vector<std::string>{});
  return {taken.hit_tokens, taken.copies, taken.evictions, taken.refusals};
}

}  // namespace

TEMPLATE_TEST_CASE("no byte is ever wrong, whatever the operations", "[group_cache][random]", group_cache<float32>,
                   (group_cache<float32, rw_lock, clock_sweep, hnd_block_major>), (group_cache<float32, fifo>),
                   (group_cache<float32, sharded_mutex>)) {
  const auto seed = Catch::getSeed();
  auto covered = coverage{};
  for (const auto& [name, groups] : kinds) {
    for (auto round = std::uint64_t{0}; round < 8; ++round) {
      INFO(name << ", seed " << seed << ", round " << round);
      const auto [hit_tokens, copies, evictions, refusals] = run_random<TestType>(groups, seed * 1000 + round, 120);
      covered.hit_tokens += hit_tokens;
      covered.copies += copies;
      covered.evictions += evictions;
      covered.refusals += refusals;
    }
  }
  CHECK(covered.hit_tokens > 100);
  CHECK(covered.copies > 10);
  CHECK(covered.evictions > 10);
  CHECK(covered.refusals > 10);
}
