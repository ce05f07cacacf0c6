// A cache with groups at its limits: the last length, block or node that suffices, and the first that does not.

#include <pagedkv/events/event_queues.hpp>
#include <pagedkv/pagedkv.hpp>

#include "group_engine.hpp"

#include <catch2/catch_test_macros.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

using namespace pagedkv;
using namespace pagedkv::test;

namespace group_limits_test {

namespace {

using plain = engine<group_cache<float32>>;

constexpr auto no_saving = state_saving{.at_branches = false, .at_prompt_end = false};

/// Evicts every evictable block, of which there are some.
void evict_all(plain& e) {
  const auto step = e.cache.begin_step().value();
  auto blocks = std::vector<block_id>(static_cast<std::size_t>(e.cache.num_blocks()));
  REQUIRE(e.cache.evict(blocks, step).value() > 0);
  REQUIRE(e.cache.retire_step(step));
}

/// Whether a sequence holds all that tokens from a length on may read.
bool holds_from(plain& e, sequence_id id, std::int64_t length) {
  auto slots = std::vector<slot>(e.sequences.at(id).text.size());
  for (std::size_t g = 0; g < e.cache.config().groups.size(); ++g) {
    REQUIRE(e.cache.slot_mapping(id, 0, slots, g));
    for (auto i = static_cast<std::size_t>(e.cache.config().groups[g].first_needed(length)); i < slots.size(); ++i) {
      if (slots[i] == skip_slot) {
        return false;
      }
    }
  }
  return true;
}

}  // namespace

TEST_CASE("a sequence of groups can be cut to each length behind which its windows are whole", "[group_cache]") {
  for (const auto& groups :
       {group_list{full, window}, {full, with_sinks}, {chunked, full}, {window, with_sinks, chunked}}) {
    auto num_refused = 0;
    for (const auto length : {7, 30, 47, 80}) {
      auto e = plain{config_of(groups)};
      const auto id = e.hold(counted(length));
      for (auto cut = 0; cut <= length; ++cut) {
        CAPTURE(length, cut);
        const auto forked = e.fork(id).value();
        const auto is_cut = e.truncate(forked, cut);
        CHECK(is_cut == holds_from(e, id, cut));
        num_refused += !is_cut;
        REQUIRE(e.append(forked, counted(9, 500)));
        e.compute(forked);
        e.check(forked);
        e.release(forked);
      }
      e.check(id);
      CHECK(e.cache.check_invariants() == sound);
    }
    CHECK(num_refused > 40);
  }
}

TEST_CASE("a fork of a state takes the last free blocks", "[group_cache]") {
  const auto config = config_of({state});
  const auto num = plan_memory(config.groups, size_of_element<float32>, config.block_size)->groups[0].blocks_per_state;
  auto e = plain{config_of({state}, 2 * num)};
  CHECK(e.cache.statistics().peak_in_use == 0);
  const auto id = e.hold(counted(10), {.saving = no_saving});
  REQUIRE(e.cache.num_available_blocks() == num);
  REQUIRE(e.fork(id));
  CHECK(e.cache.statistics().peak_in_use == 2 * num);
  const auto refused = e.cache.fork(id);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == error_code::capacity_exhausted);
  CHECK(refused.error().value == num);
  CHECK(refused.error().limit == 0);
  CHECK(e.cache.statistics().num_sequences == 2);
  CHECK(e.cache.check_invariants() == sound);
}

TEST_CASE("a sequence of groups makes its copies findable when it ends or publishes more", "[group_cache]") {
  auto wide = window;
  wide.window = 30;
  for (const auto& groups : {group_list{full}, {latent, full}, {window}, {wide}, {wide, chunked}}) {
    for (const auto ends : {false, true}) {
      auto e = plain{config_of(groups, 80)};
      const auto first = e.hold(counted(48));
      const auto second = e.hold(counted(48), {.max_cached_tokens = 0});
      e.release(first);
      evict_all(e);
      CHECK(e.cache.find_prefix(counted(60)) == 0);
      if (ends) {
        e.release(second);
      } else {
        REQUIRE(e.append(second, counted(8, 48)));
        e.compute(second);
      }
      const auto length = ends ? 48 : 56;
      CHECK(e.cache.find_prefix(counted(60)) == length);
      CHECK(e.cache.check_invariants() == sound);
      const auto third = e.create(counted(60)).value();
      CHECK(e.sequences.at(third).computed == length);
    }
  }
}

TEST_CASE("the caller's hashes are kept of runs that are full, and others are computed", "[group_cache]") {
  const auto told = std::array<std::uint64_t, 3>{0x123, 0x456, 0x789};
  const auto first_two = std::span{told}.first(2);
  const auto text = counted(13);
  auto queues = event_queues{4};
  auto cache = group_cache<float32, event_queues>{config_of({full, window}), queues};
  const auto id = cache.create_sequence(token_run{std::span{text}.first(8), {}, first_two}).value().id;
  REQUIRE(cache.append(id, std::span{text}.subspan(8)));
  REQUIRE(cache.commit(id, 13));
  CHECK(cache.find_prefix(token_run{text, {}, first_two}) == 12);
  auto published = std::vector<std::uint64_t>{};
  queues.drain([&](const cache_event& event) { published.push_back(event.hash); });
  REQUIRE(published.size() == 3);
  CHECK(published[0] == told[0]);
  CHECK(published[1] == told[1]);
  CHECK(published[2] != told[2]);
}

TEST_CASE("no state is saved where a prompt of single tokens leaves nothing that is cached", "[group_cache]") {
  auto e = plain{config_of({full, state}, 400, 1)};
  REQUIRE(e.cache.plan().hit_granularity == 1);
  const auto id = e.create(counted(9), {.saving = {.at_prompt_end = false}}).value();
  CHECK(e.cache.next_saved_length(id).value() == whole_length);
}

TEST_CASE("no step brings the block that an append over groups copies from a fork", "[group_cache]") {
  auto cache = group_cache<float32>{config_of({full}, 6)};
  const auto size = cache.plan().groups[0].block_size;
  const auto parent = cache.create_sequence(counted(size + 3)).value().id;
  REQUIRE(cache.commit(parent, size + 3));
  REQUIRE(cache.create_sequence(counted(4 * size, 1'000)));
  const auto step = cache.begin_step(std::array{parent}).value();
  REQUIRE(cache.truncate(parent, size + 2));
  const auto alone = cache.append(parent, token{7});
  REQUIRE_FALSE(alone);
  CHECK(alone.error().step == step);  // then it writes in place
  REQUIRE(cache.fork(parent));
  const auto shared = cache.append(parent, token{7});
  REQUIRE_FALSE(shared);
  CHECK(shared.error().code == error_code::capacity_exhausted);
  CHECK(shared.error().step == step_id{});
  CHECK(shared.error().value == 1);
  CHECK(shared.error().limit == 0);
}

TEST_CASE("a pool of groups whose blocks differ in size is cached to its last block", "[group_cache]") {
  const auto wide = group_config{.num_layers = 1, .key_dim = 4, .value_dim = 4};
  auto narrow = wide;
  narrow.kind = group_kind::window;
  narrow.num_layers = 8;
  narrow.window = 5;
  auto e = plain{config_of({wide, narrow}, 40)};
  const auto size = e.cache.plan().groups[0].block_size;
  REQUIRE(size > e.cache.plan().groups[1].block_size);
  const auto length = 30 * size;  // of more runs than the pool has blocks
  REQUIRE(length / e.cache.plan().hit_granularity > 2 * e.cache.num_blocks());
  const auto id = e.create(counted(length), {.first_chunk = size}).value();
  for (auto done = size; done < length; done += size) {
    e.compute(id);
    REQUIRE(e.append(id, counted(size, done)));
  }
  e.compute(id);
  CHECK(e.cache.find_prefix(counted(length + 1)) == length);
  e.release(id);
  CHECK(e.serve(counted(length + 1)) == length);
  CHECK(e.cache.check_invariants() == sound);
}

TEST_CASE("a forecast for groups is what creation does where a hit and its copy do not fit together", "[group_cache]") {
  for (const auto& groups : {group_list{full, window}, {full, chunked}, {full, state}, {latent, full}}) {
    auto num_without_hit = 0;
    for (auto num_blocks = 2; num_blocks < 40; ++num_blocks) {
      for (const auto chunk : {1, 2, 5, 14, 30}) {
        CAPTURE(num_blocks, chunk);
        auto e = plain{config_of(groups, num_blocks)};
        const auto first = e.create(counted(23));
        if (!first) {
          continue;
        }
        e.compute(*first);
        e.release(*first);
        auto other = counted(22);
        other.resize(40, -1);
        const auto known = e.cache.find_prefix(other);
        if (const auto made = e.create(other, {.first_chunk = chunk})) {  // compares with the forecast
          num_without_hit += known != 0 && e.sequences.at(*made).computed == 0;
        }
        CHECK(e.cache.check_invariants() == sound);
      }
    }
    CHECK(num_without_hit > 0);
  }
}

TEST_CASE("the newest state of an answer is found at its length, not where the answer ends", "[group_cache]") {
  auto e = plain{config_of({full, state})};
  const auto id = e.create(counted(22), {.saving = {.at_prompt_end = false, .at_end = true}}).value();
  REQUIRE(e.append(id, counted(8, 22)));
  for (const auto end : {24, 30}) {  // the second one publishes a run more, and keeps no state
    e.write(id, end);
    REQUIRE(e.cache.commit(id, end));
    e.sequences.at(id).computed = end;
  }
  e.release(id);
  CHECK(e.cache.find_prefix(counted(31)) == 24);
  const auto again = e.create(counted(31)).value();
  CHECK(e.sequences.at(again).computed == 24);
  CHECK(e.cache.check_invariants() == sound);
}

TEST_CASE("pins that have ended keep no room for runs of tokens", "[group_cache]") {
  for (const auto& groups : {group_list{full}, {window}, {full, window}}) {
    auto e = plain{config_of(groups, 20)};
    for (auto i = 0; i < 200; ++i) {  // with more runs of tokens than there is room for
      const auto text = counted(41, 1'000 * i);
      REQUIRE(e.serve(text) == 0);
      const auto pinned = e.cache.pin(text).value();
      REQUIRE(pinned.num_tokens == 40);
      REQUIRE(e.cache.unpin(pinned.id));
    }
    CHECK(e.cache.check_invariants() == sound);
  }
}

TEST_CASE("a saved state whose references are counted to the limit is no hit", "[group_cache]") {
  auto config = config_of({state}, 40);
  config.max_sequences = std::int32_t{block_state::max_count} + 1;
  auto e = plain{config};
  const auto prompt = counted(9);
  REQUIRE(e.serve(prompt) == 0);
  for (auto count = std::uint32_t{0}; count < block_state::max_count; ++count) {
    if (e.cache.pin(prompt).value().num_tokens != 8) {
      FAIL("a pin found nothing");
    }
  }
  CHECK(e.cache.pin(prompt).value().num_tokens == 0);
  CHECK(e.cache.would_fit(prompt).value().num_cached_tokens == 0);
  CHECK(e.cache.create_sequence(prompt).value().num_cached_tokens == 0);
  CHECK(e.cache.check_invariants() == sound);
  e.cache.unpin_all();
  CHECK(e.cache.find_prefix(prompt) == 8);
  CHECK(e.cache.check_invariants() == sound);
}

TEST_CASE("a fork makes copies findable as its parent does", "[group_cache]") {
  for (const auto& groups : {group_list{full}, {latent, full}, {window}}) {
    auto e = plain{config_of(groups, 80)};
    const auto first = e.hold(counted(48));
    const auto second = e.hold(counted(48), {.max_cached_tokens = 0});
    const auto forked = e.fork(second).value();
    e.release(second);  // the nodes have the blocks of the first one
    e.release(first);
    evict_all(e);
    CHECK(e.cache.find_prefix(counted(60)) == 0);
    e.release(forked);
    CHECK(e.cache.find_prefix(counted(60)) == 48);
    CHECK(e.cache.check_invariants() == sound);
  }
}

TEST_CASE("what a hit copied from a block is found when that block is gone", "[group_cache]") {
  for (const auto inside_both : {false, true}) {  // a hit ends inside a block of each group, or of the second one
    CAPTURE(inside_both);
    auto e = plain{config_of({latent, full}, 80)};
    const auto common = inside_both ? e.cache.plan().hit_granularity : e.cache.plan().groups[0].block_size;
    const auto size = e.cache.plan().groups[1].block_size;
    REQUIRE(common < size);
    REQUIRE(e.cache.plan().hit_granularity < e.cache.plan().groups[0].block_size);
    const auto prompt_from = [&](int first) {
      auto text = counted(common);
      const auto rest = counted(size - common, first);
      text.insert(text.end(), rest.begin(), rest.end());
      return text;
    };
    const auto first = e.hold(prompt_from(1'000));
    const auto second = e.create(prompt_from(2'000)).value();
    REQUIRE(e.sequences.at(second).computed == common);
    e.compute(second);
    e.release(first);
    evict_all(e);
    CHECK(e.cache.find_prefix(prompt_from(3'000)) == 0);
    e.release(second);
    CHECK(e.cache.find_prefix(prompt_from(3'000)) == common);
    CHECK(e.cache.check_invariants() == sound);
  }
}

TEST_CASE("hashes and keys of tokens that were cut off do not belong to those that follow", "[group_cache]") {
  auto cache = group_cache<float32>{config_of({full, window})};
  const auto told = std::array<std::uint64_t, 3>{0x123, 0x456, 0x789};
  const auto keys = std::array{prefix_key{.position = 0, .value = {1, 2}}, prefix_key{.position = 6, .value = {3, 4}}};
  const auto text = counted(13);
  const auto id = cache.create_sequence(token_run{std::span{text}.first(12), keys, told}).value().id;
  REQUIRE(cache.truncate(id, 4));
  REQUIRE(cache.append(id, std::span{text}.subspan(4)));
  REQUIRE(cache.commit(id, 13));
  CHECK(cache.find_prefix(token_run{text, std::span{keys}.first(1)}) == 12);
  CHECK(cache.find_prefix(token_run{text, keys}) == 4);
  CHECK(cache.check_invariants() == sound);
}

TEST_CASE("a fork of groups publishes with the keys of its parent", "[group_cache]") {
  auto cache = group_cache<float32>{config_of({full, window})};
  const auto key = prefix_key{.position = 5, .value = {1, 2}};
  const auto text = counted(9);
  const auto id = cache.create_sequence(token_run{std::span{text}.first(6), {&key, 1}}).value().id;
  REQUIRE(cache.commit(id, 6));
  const auto forked = cache.fork(id).value();
  REQUIRE(cache.append(forked, std::span{text}.subspan(6)));
  REQUIRE(cache.commit(forked, 9));
  CHECK(cache.find_prefix(token_run{text, {&key, 1}}) == 8);
  CHECK(cache.find_prefix(text) == 4);
  CHECK(cache.check_invariants() == sound);
}

}  // namespace group_limits_test
