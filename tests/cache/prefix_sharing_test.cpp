#include "../support/cache_fixture.hpp"

#include <limits>

using namespace pagedkv;
using namespace pagedkv::test;

TEST_CASE("at least the last prompt token is left to compute", "[cache][create]") {
  auto cache = kv_cache<>{small_cache(16)};
  const auto first = create_committed(cache, text(0, 8));
  for (const auto& [size, cached] :
       {std::pair{8, 4}, std::pair{9, 8}, std::pair{4, 0}, std::pair{5, 4}, std::pair{0, 0}}) {
    CAPTURE(size);
    const auto made = cache.create_sequence(text(0, static_cast<std::size_t>(size)));
    REQUIRE(made);
    CHECK(made->num_cached_tokens == cached);
    CHECK(cache.describe(made->id)->num_computed_tokens == cached);
    CHECK(cache.release(made->id));
  }
  CHECK(cache.statistics().hit_blocks == 4);
  CHECK(cache.statistics().hit_tokens == 16);
  CHECK(cache.statistics().prompt_blocks == 8);
  release_all(cache, {first});
}

TEST_CASE("only committed full blocks are shared, and only under their salt", "[cache][commit]") {
  auto cache = kv_cache<>{small_cache(16)};
  const auto mine = sequence_options{.salt = salt{1}};
  const auto id = cache.create_sequence(text(0, 11), mine).value().id;
  CHECK(num_cached(cache, text(0, 11), salt{1}) == 0);
  REQUIRE(cache.commit(id, 7));
  CHECK(num_cached(cache, text(0, 11), salt{1}) == 4);
  REQUIRE(cache.commit(id, 11));
  CHECK(num_cached(cache, text(0, 11), salt{1}) == 8);
  CHECK(num_cached(cache, text(0, 11), salt{2}) == 0);
  CHECK(num_cached(cache, text(0, 11)) == 0);
  release_all(cache, {id});
  CHECK(num_cached(cache, text(0, 11), salt{1}) == 8);
  CHECK(cache.statistics().blocks.evictable == 2);
}

TEST_CASE("prompts of one step share what is committed before it is computed", "[cache][commit]") {
  auto cache = kv_cache<float32>{small_cache(128)};
  // Eight prompts begin with the same seven blocks, the last two with two more.
  auto prompts = std::vector<std::vector<token>>{};
  for (auto i = 0; i < 8; ++i) {
    prompts.push_back(text(0, i < 6 ? 28 : 36));
    prompts.back().insert(prompts.back().end(), 5, token{1'000 + i});
  }
  auto ids = std::vector<sequence_id>{};
  auto computed = std::vector<std::int64_t>{};  // from which token on
  for (const auto& prompt : prompts) {
    const auto made = cache.create_sequence(prompt).value();
    REQUIRE(cache.commit(made.id, std::ssize(prompt)));
    ids.push_back(made.id);
    computed.push_back(made.num_cached_tokens);
  }
  CHECK(cache.statistics().hit_blocks == 51);
  const auto step = cache.begin_step(ids).value();

  // The kernels of a layer: all that write come before all that read.
  const auto slots_of = [&](std::size_t i, std::int64_t first) {
    auto slots = std::vector<slot>(prompts[i].size() - static_cast<std::size_t>(first));
    REQUIRE(cache.slot_mapping(ids[i], first, slots));
    return slots;
  };
  for (auto i = std::size_t{0}; i < prompts.size(); ++i) {
    auto rows = std::vector<float>{};
    for (auto j = static_cast<std::size_t>(computed[i]); j < prompts[i].size(); ++j) {
      rows.insert(rows.end(), 2, static_cast<float>(prompts[i][j]));
    }
    const auto written = contiguous_rows(rows, 1, 2);
    REQUIRE(cache.write(0, slots_of(i, computed[i]), written, written));
  }
  for (auto i = std::size_t{0}; i < prompts.size(); ++i) {
    auto keys = std::vector<float>(2 * prompts[i].size());
    auto values = keys;
    REQUIRE(cache.read(0, slots_of(i, 0), contiguous_rows(keys, 1, 2), contiguous_rows(values, 1, 2)));
    for (auto j = std::size_t{0}; j < prompts[i].size(); ++j) {
      CHECK(keys[2 * j] == static_cast<float>(prompts[i][j]));
      CHECK(values[2 * j] == static_cast<float>(prompts[i][j]));
    }
  }
  REQUIRE(cache.retire_step(step));
  release_all(cache, ids);
}

TEST_CASE("a chain is eaten from its tail", "[cache][release]") {
  auto cache = kv_cache<>{small_cache(4)};
  release_all(cache, {create_committed(cache, text(0, 16))});
  for (const auto left : {12, 8, 4, 0}) {
    const auto taker = cache.create_sequence(text(100, static_cast<std::size_t>(16 - left))).value().id;
    CHECK(num_cached(cache, text(0, 16)) == left);
    release_all(cache, {taker});
  }
  CHECK(cache.statistics().evictions == 4);
}

TEST_CASE("hits on blocks that wait for a step need none of the free ones", "[cache][steps]") {
  auto cache = kv_cache<>{small_cache(3)};
  const auto first = create_committed(cache, text(0, 8));
  const auto step = cache.begin_step().value();
  REQUIRE(cache.release(first));
  CHECK(cache.statistics().blocks.retiring == 2);
  CHECK_FALSE(cache.create_sequence(text(100, 8)));
  const auto pinned = cache.pin(text(0, 4));
  REQUIRE(pinned);
  CHECK(pinned->num_tokens == 4);
  const auto second = cache.create_sequence(text(0, 9));
  REQUIRE(second);
  CHECK(second->num_cached_tokens == 8);
  check_sound(cache);
  REQUIRE(cache.unpin(pinned->id));
  REQUIRE(cache.release(second->id));
  CHECK(cache.statistics().blocks.retiring == 3);
  REQUIRE(cache.retire_step(step));
  CHECK(cache.statistics().blocks.retiring == 0);
  check_sound(cache);
}

TEST_CASE("a refused prompt leaves cached blocks evictable though a step is in flight", "[cache][create]") {
  auto cache = kv_cache<no_eviction>{small_cache(4)};
  release_all(cache, {create_committed(cache, text(0, 8))});
  REQUIRE(cache.create_sequence(text(100, 1)));
  REQUIRE(cache.begin_step());
  const auto before = cache.statistics().blocks;
  const auto refused = cache.create_sequence(text(0, 16));
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == error_code::capacity_exhausted);
  CHECK(cache.statistics().blocks == before);
  check_sound(cache);
}

TEST_CASE("pinned blocks are in use until unpinned, once", "[cache][pin]") {
  auto cache = kv_cache<>{small_cache(4)};
  release_all(cache, {create_committed(cache, text(0, 8))});
  const auto pinned = cache.pin(text(0, 10)).value();
  CHECK(pinned.num_tokens == 8);
  CHECK(cache.statistics().peak_in_use == 2);
  CHECK(cache.statistics().blocks.in_use == 2);
  CHECK_FALSE(cache.create_sequence(text(100, 9)));
  CHECK(cache.reset_prefix_cache().error().code == error_code::in_use);
  CHECK(num_cached(cache, text(0, 8)) == 8);
  REQUIRE(cache.unpin(pinned.id));
  CHECK(cache.unpin(pinned.id).error().code == error_code::unknown_pin);
  CHECK(cache.reset_prefix_cache().value() == 2);
  CHECK(num_cached(cache, text(0, 8)) == 0);
  const auto nothing = cache.pin(text(0, 8));
  REQUIRE(nothing);
  CHECK(nothing->num_tokens == 0);
  CHECK(cache.unpin(nothing->id));
}

TEST_CASE("a pin that takes blocks into use raises the peak", "[cache][pin]") {
  auto cache = kv_cache<>{small_cache(4)};
  const auto first = create_committed(cache, text(0, 8));
  REQUIRE(cache.release(first));
  const auto second = cache.create_sequence(text(100, 8)).value().id;
  CHECK(cache.statistics().peak_in_use == 2);
  const auto pinned = cache.pin(text(0, 8)).value();
  CHECK(cache.statistics().peak_in_use == 4);
  CHECK(cache.unpin(pinned.id));
  release_all(cache, {second});
}

TEST_CASE("a block that returns to where its children look for it breaks nothing", "[cache][commit]") {
  auto cache = kv_cache<>{small_cache(4)};
  // Two sequences that compute the same first block; the second goes on, then drops its own copy of it.
  const auto twin = cache.create_sequence(text(0, 4)).value().id;
  const auto id = cache.create_sequence(text(0, 8)).value().id;
  REQUIRE(cache.commit(id, 8));
  REQUIRE(cache.commit(twin, 4));
  const auto first = table_of(cache, id)[0];
  REQUIRE(cache.drop_before(id, 4));
  REQUIRE(cache.truncate(twin, 4));
  // That copy is evicted, and its block gets the same contents once more.
  const auto filler = cache.create_sequence(text(100, 4)).value().id;
  const auto again = cache.create_sequence(text(0, 4)).value().id;
  CHECK(table_of(cache, again)[0] == first);
  REQUIRE(cache.commit(again, 4));
  CHECK(num_cached(cache, text(0, 8)) == 8);
  check_sound(cache);
  release_all(cache, {filler, again, twin, id});
}

TEST_CASE("blocks that two sequences publish after a shared one are one to what continues them", "[cache][commit]") {
  for (const auto first_commit : {std::int64_t{4}, std::int64_t{8}}) {
    CAPTURE(first_commit);
    auto cache = kv_cache<>{small_cache(16)};
    const auto slow = cache.create_sequence(text(0, 20)).value().id;
    REQUIRE(cache.commit(slow, first_commit));  // the newest contents of all: nothing continues them so far
    const auto quick = create_committed(cache, text(0, 16));
    REQUIRE(cache.commit(slow, 20));
    CHECK(num_cached(cache, text(0, 20)) == 20);
    release_all(cache, {quick, slow});
    CHECK(num_cached(cache, text(0, 20)) == 20);
    check_sound(cache);
  }
}

TEST_CASE("of equal blocks one is evicted before any block that is the only one of its contents", "[cache][commit]") {
  auto cache = kv_cache<>{small_cache(6)};
  const auto other = create_committed(cache, text(100, 8));
  REQUIRE(cache.release(other));  // the least recently used
  // Admitted before either is computed, so they share nothing.
  const auto one = cache.create_sequence(text(0, 8)).value().id;
  const auto two = cache.create_sequence(text(0, 8)).value().id;
  REQUIRE(cache.commit(one, 8));
  REQUIRE(cache.commit(two, 8));
  release_all(cache, {one, two});
  const auto filler = cache.create_sequence(text(200, 8)).value().id;  // as many blocks as are there twice
  CHECK(num_cached(cache, text(0, 8)) == 8);
  CHECK(num_cached(cache, text(100, 8)) == 8);
  check_sound(cache);
  release_all(cache, {filler});
}

TEST_CASE("retention that no time can tell holds for ever", "[cache][release]") {
  auto cache = kv_cache<>{small_cache(4)};
  cache.advance_time(timestamp{1'000'000});
  const auto options = sequence_options{.retention = std::numeric_limits<std::int64_t>::max()};
  release_all(cache, {create_committed(cache, text(0, 8), options)});
  CHECK(num_cached(cache, text(0, 8)) == 8);
}

TEST_CASE("a window that moves keeps positions and gives blocks back", "[cache][drop_before]") {
  auto cache = kv_cache<>{small_cache(3)};
  const auto id = create_committed(cache, text(0, 4));
  for (auto end = std::int64_t{5}; end < 200; ++end) {
    REQUIRE(cache.append(id, static_cast<token>(end)));
    REQUIRE(cache.commit(id, end));
    REQUIRE(cache.drop_before(id, end - 5));
  }
  auto slots = std::vector<slot>(199);
  REQUIRE(cache.slot_mapping(id, 0, slots));
  CHECK(slots[0] == skip_slot);
  CHECK(slots[191] == skip_slot);
  CHECK(slots[192] != skip_slot);
  CHECK(cache.describe(id)->num_blocks == 50);
  CHECK(cache.statistics().peak_in_use <= 3);
  check_sound(cache);
  release_all(cache, {id});
}
