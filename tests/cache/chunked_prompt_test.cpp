#include "../support/cache_fixture.hpp"
#include "../support/policy_matrix.hpp"

#include <catch2/catch_template_test_macros.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <span>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

using namespace pagedkv;
using namespace pagedkv::test;

namespace {

using lockings = std::tuple<single_thread, rw_lock, basic_sharded_mutex<3>, lock_free>;

template <class Locking>
using cache_of = kv_cache<Locking, clock_sweep>;

/// An order that remembers what it was told last.
class recording_lru : public lru {
 public:
  static constexpr std::string_view name = "recording_lru";
  inline static block_release last_told;

  using lru::lru;

  void insert(block_id block, const block_release& release) noexcept {
    last_told = release;
    lru::insert(block, release);
  }
};

}  // namespace

TEMPLATE_LIST_TEST_CASE("a prompt is allocated chunk by chunk, and shared as if it came at once", "[cache][chunks]",
                        lockings) {
  auto cache = cache_of<TestType>{small_cache(16)};
  const auto prompt = text(0, 22);
  const auto first = create_committed(cache, text(0, 9));
  const auto before = cache.statistics().blocks.in_use;
  const auto made = cache.create_sequence(prompt, {.first_chunk = 0}).value();
  CHECK(made.num_cached_tokens == 8);
  CHECK(made.num_tokens == 8);
  CHECK(made.num_blocks == 2);
  CHECK(made.num_new_blocks == 0);
  CHECK(cache.statistics().blocks.in_use == before);
  CHECK(cache.statistics().prompt_blocks == 2 + 5);
  CHECK(cache.statistics().hit_blocks == 2);
  CHECK(cache.describe(made.id)->num_prompt_tokens == 22);
  check_sound(cache);

  for (auto done = std::size_t{8}; done < prompt.size();) {
    const auto chunk = std::span{prompt}.subspan(done).first(std::min(prompt.size() - done, std::size_t{5}));
    REQUIRE(cache.append(made.id, chunk));
    done += chunk.size();
    CHECK(cache.describe(made.id)->num_blocks == static_cast<std::int64_t>(done + 3) / 4);
    REQUIRE(cache.commit(made.id, static_cast<std::int64_t>(done)));
    CHECK(cache.find_prefix(prompt) == static_cast<std::int64_t>(done / 4 * 4));
    check_sound(cache);
  }
  CHECK(cache.describe(made.id)->num_prompt_tokens == 22);
  release_all(cache, {first, made.id});
}

TEMPLATE_LIST_TEST_CASE("a prompt can be cut, forked and given up in its middle", "[cache][chunks]", lockings) {
  auto cache = cache_of<TestType>{small_cache(16)};
  const auto prompt = text(0, 30);
  const auto id = cache.create_sequence(prompt, {.first_chunk = 10}).value().id;
  CHECK(cache.describe(id)->num_tokens == 10);
  REQUIRE(cache.truncate(id, 10));
  CHECK(cache.describe(id)->num_prompt_tokens == 30);  // nothing was cut
  REQUIRE(cache.commit(id, 10));
  const auto forked = cache.fork(id).value();
  CHECK(cache.describe(forked)->num_prompt_tokens == 30);
  REQUIRE(cache.append(forked, std::span{prompt}.subspan(10)));
  CHECK(cache.describe(forked)->num_tokens == 30);
  REQUIRE(cache.truncate(id, 6));
  CHECK(cache.describe(id)->num_prompt_tokens == 6);
  check_sound(cache);

  REQUIRE(cache.release(id));
  REQUIRE(cache.commit(forked, 30));
  REQUIRE(cache.release(forked));
  const auto again = cache.create_sequence(prompt, {.first_chunk = 0}).value();
  CHECK(again.num_cached_tokens == 28);
  release_all(cache, {again.id});
}

TEST_CASE("a prompt that never fits is refused when it comes, whatever its first chunk", "[cache][chunks]") {
  auto cache = kv_cache<>{small_cache(4)};
  CHECK(cache.create_sequence(text(0, 17), {.first_chunk = 1}).error().code == error_code::never_fits);
  const auto id = cache.create_sequence(text(0, 16), {.first_chunk = 1}).value().id;
  const auto other = cache.create_sequence(text(100, 12)).value().id;
  CHECK(cache.append(id, text(1, 4)).error().code == error_code::capacity_exhausted);
  CHECK(cache.describe(id)->num_tokens == 1);
  CHECK(cache.create_sequence(text(0, 8), {.first_chunk = -1}).error().code == error_code::invalid_argument);
  release_all(cache, {id, other});
}

TEST_CASE("the eviction policy is told of the whole prompt", "[cache][chunks]") {
  auto cache = kv_cache<recording_lru>{small_cache(16)};
  const auto id = cache.create_sequence(text(0, 40), {.first_chunk = 8}).value().id;
  REQUIRE(cache.commit(id, 8));
  REQUIRE(cache.release(id));
  CHECK(recording_lru::last_told.num_prompt_tokens == 40);
  CHECK(recording_lru::last_told.num_output_tokens == 0);
}

TEMPLATE_LIST_TEST_CASE("a request may read nothing from the prefix cache, or publish nothing to it", "[cache][chunks]",
                        lockings) {
  auto cache = cache_of<TestType>{small_cache(16)};
  const auto prompt = text(0, 17);
  const auto first = create_committed(cache, prompt);
  for (const auto& [most, found] : {std::pair{0, 0}, std::pair{7, 4}, std::pair{8, 8}, std::pair{100, 16}}) {
    const auto made = cache.create_sequence(prompt, {.max_cached_tokens = most}).value();
    CHECK(made.num_cached_tokens == found);
    REQUIRE(cache.commit(made.id, 17));
    check_sound(cache);
    REQUIRE(cache.release(made.id));
  }
  const auto secret = cache.create_sequence(text(0, 30), {.publish = false}).value();
  CHECK(secret.num_cached_tokens == 16);
  REQUIRE(cache.commit(secret.id, 30));
  CHECK(cache.find_prefix(text(0, 30)) == 16);
  const auto forked = cache.fork(secret.id).value();
  REQUIRE(cache.truncate(forked, 23));  // within a full block that both hold
  REQUIRE(cache.append(forked, text(500, 9)));
  REQUIRE(cache.commit(forked, 32));
  REQUIRE(cache.drop_before(secret.id, 26));
  CHECK(cache.find_prefix(text(0, 30)) == 16);
  check_sound(cache);
  REQUIRE(cache.truncate(secret.id, 25));
  check_sound(cache);
  release_all(cache, {first, secret.id, forked});
}

TEMPLATE_LIST_TEST_CASE("slots may be reserved ahead of the tokens that take them", "[cache][slots_ahead]", lockings) {
  auto cache = cache_of<TestType>{small_cache(8)};
  const auto id = create_committed(cache, text(0, 6));
  auto slots = std::array<slot, 5>{};
  CHECK(cache.slot_mapping(id, 6, slots).error().code == error_code::invalid_argument);
  REQUIRE(cache.reserve_slots(id, 5));
  CHECK(cache.describe(id)->num_tokens == 6);
  CHECK(cache.describe(id)->num_slots == 11);
  CHECK(cache.describe(id)->num_blocks == 3);
  REQUIRE(cache.slot_mapping(id, 6, slots));
  auto batch = padded_batch(1, 8);
  REQUIRE(cache.update(batch, std::array{id}));
  CHECK(batch.block_tables()[2] == no_block);  // the batch is that of the tokens
  CHECK(batch.lengths()[0] == 6);
  for (const auto& [num_ahead, length] : {std::pair{2, 8}, {3, 9}, {20, 11}, {0, 6}}) {
    REQUIRE(cache.update(batch, std::array{id}, 0, num_ahead));
    CHECK(batch.lengths()[0] == length);
    CHECK((batch.block_tables()[2] == no_block) == (length <= 8));
  }
  for (const auto num_ahead : {std::int64_t{-1}, std::numeric_limits<std::int64_t>::max()}) {
    const auto refused = cache.update(batch, std::array{id}, 0, num_ahead);
    REQUIRE(!refused);
    CHECK(refused.error().code == error_code::invalid_argument);
  }
  CHECK(batch.lengths()[0] == 6);

  const auto accepted = text(100, 4);
  REQUIRE(cache.append(id, accepted[0]));
  REQUIRE(cache.append(id, std::span{accepted}.subspan(1)));
  auto taken = std::array<slot, 4>{};
  REQUIRE(cache.slot_mapping(id, 6, taken));
  CHECK(std::ranges::equal(taken, std::span{slots}.first(4)));
  CHECK(cache.describe(id)->num_blocks == 3);
  check_sound(cache);

  REQUIRE(cache.reserve_slots(id, 6));
  CHECK(cache.describe(id)->num_blocks == 4);
  REQUIRE(cache.truncate(id, 10));  // the rest was rejected
  CHECK(cache.describe(id)->num_blocks == 3);
  CHECK(cache.describe(id)->num_slots == 10);
  CHECK(cache.reserve_slots(id, 100).error().code == error_code::never_fits);
  CHECK(cache.reserve_slots(id, -1).error().code == error_code::invalid_argument);
  check_sound(cache);
  release_all(cache, {id});
}

TEMPLATE_LIST_TEST_CASE("slots ahead are never in a block that others can see", "[cache][slots_ahead]", lockings) {
  auto cache = cache_of<TestType>{small_cache(8)};
  const auto id = create_committed(cache, text(0, 6));
  REQUIRE(cache.reserve_slots(id, 4));
  const auto forked = cache.fork(id).value();
  CHECK(cache.describe(forked)->num_blocks == 2);
  auto slots = std::array<slot, 4>{};
  CHECK(cache.slot_mapping(id, 6, slots).error().code == error_code::invalid_argument);
  REQUIRE(cache.reserve_slots(id, 4));  // copies the block
  CHECK(cache.statistics().copies == 1);
  REQUIRE(cache.slot_mapping(id, 6, slots));
  CHECK(slots[0] == make_slot(table_of(cache, id)[1], 4, 2));
  CHECK(table_of(cache, id)[1] != table_of(cache, forked)[1]);
  check_sound(cache);
  release_all(cache, {id, forked});
}

TEMPLATE_LIST_TEST_CASE("a batch reserves slots behind its tokens", "[cache][slots_ahead]", lockings) {
  auto cache = cache_of<TestType>{small_cache(8)};
  const auto id = create_committed(cache, text(0, 6));
  const auto one = text(50, 1);
  auto slots = std::array<slot, 4>{};
  auto failures = std::array<batch_failure, 1>{};
  auto blocks = std::array<new_block, 2>{};
  const auto entries = std::array<batch_entry, 1>{{{.id = id, .run = one, .num_ahead = 3}}};
  const auto done = cache.append_batch(entries, {slots, failures, blocks}).value();
  CHECK(done.num_slots == 4);
  CHECK(done.num_new_blocks == 1);
  auto asked = std::array<slot, 4>{};
  REQUIRE(cache.slot_mapping(id, 6, asked));
  CHECK(asked == slots);
  auto tail = std::array<block_id, 2>{};
  CHECK(cache.block_table(id, tail, 1).value() == 3);  // entries that an append after token 6 may have changed
  CHECK(tail[1] == blocks[0].block);
  CHECK(cache.block_table(id, tail, 4).error().code == error_code::invalid_argument);
  check_sound(cache);
  release_all(cache, {id});
}
