#include "../support/cache_fixture.hpp"
#include "../support/policy_matrix.hpp"

#include <catch2/catch_template_test_macros.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string_view>

using namespace pagedkv;
using namespace pagedkv::test;

namespace {

/// `lru` that remembers what it was told of each block last.
class link_recorder : public lru {
 public:
  static constexpr std::string_view name = "link_recorder";

  using lru::lru;

  void insert(block_id block, const block_release& how) noexcept {
    told[block] = how;
    lru::insert(block, how);
  }

  static inline std::map<block_id, block_release> told;
};

static_assert(eviction_policy<link_recorder>);

using recording_cache = kv_cache<link_recorder>;

TEST_CASE("an eviction policy is told where a block hangs, however it is given back", "[cache][release]") {
  link_recorder::told.clear();
  auto cache = recording_cache{small_cache(8)};
  const auto check_told = [](block_id block, block_id parent, std::uint32_t depth) {
    REQUIRE(link_recorder::told.contains(block));
    const auto& how = link_recorder::told.at(block);
    CHECK(how.parent == parent);
    CHECK(how.depth == depth);
    CHECK(how.hash != 0);
  };
  SECTION("released with its sequence") {
    const auto id = create_committed(cache, text(0, 12));
    const auto blocks = table_of(cache, id);
    release_all(cache, {id});
    check_told(blocks[0], no_block, 0);
    check_told(blocks[1], blocks[0], 1);
    check_told(blocks[2], blocks[1], 2);
  }
  SECTION("copied on write") {
    const auto id = create_committed(cache, text(0, 8));
    const auto blocks = table_of(cache, id);
    REQUIRE(cache.truncate(id, 6));
    REQUIRE(cache.append(id, token{100}));
    REQUIRE(cache.statistics().copies == 1);
    check_told(blocks[1], blocks[0], 1);
    release_all(cache, {id});
  }
}

TEST_CASE("commits after a compaction continue the moved blocks", "[cache][compact]") {
  auto cache = kv_cache<>{small_cache(8)};
  const auto below = create_committed(cache, text(100, 8));
  const auto above = create_committed(cache, text(0, 8));
  REQUIRE(cache.release(below));
  REQUIRE(cache.reset_prefix_cache().has_error());
  const auto taker = cache.create_sequence(text(200, 24)).value().id;  // evicts what lay below
  REQUIRE(cache.release(taker));
  REQUIRE_FALSE(cache.compact().value().empty());
  check_sound(cache);
  REQUIRE(cache.append(above, text(8, 4)));
  REQUIRE(cache.commit(above, 12));
  check_sound(cache);
  release_all(cache, {above});
  for (const auto left : {8, 4, 0}) {
    const auto id = cache.create_sequence(text(300, static_cast<std::size_t>(32 - left))).value().id;
    CHECK(num_cached(cache, text(0, 12)) == left);
    REQUIRE(cache.release(id));
    REQUIRE(num_cached(cache, text(0, 12)) == left);
  }
}

}  // namespace

#define EVICTING_POLICIES \
  fifo, lru, clock_sweep, sieve, slru, arc, lfu, s3_fifo, tiny_lfu, priority, hit_density

TEMPLATE_TEST_CASE("a long chain is eaten from its tail", "[cache][release]", EVICTING_POLICIES) {
  constexpr auto length = 300;
  auto cache = kv_cache<TestType>{small_cache(length, 1)};
  release_all(cache, {create_committed(cache, text(0, length))});
  for (auto left = length; left > 0;) {
    const auto num_taken = std::min(left, 1 + left % 7);
    const auto taker = cache.create_sequence(text(1000, static_cast<std::size_t>(length - left + num_taken)));
    left -= num_taken;
    REQUIRE(taker);
    REQUIRE(num_cached(cache, text(0, length)) == left);
    REQUIRE(cache.release(taker->id));
  }
}
