#include <pagedkv/pagedkv.hpp>
#include <pagedkv/policy/eviction/clock_sweep.hpp>
#include <pagedkv/policy/eviction/lru.hpp>
#include <pagedkv/policy/eviction/priority.hpp>
#include <pagedkv/policy/free_list/all.hpp>
#include <pagedkv/policy/locking/sharded_mutex.hpp>

#include "../support/full_numbers.hpp"
#include "../support/offering_none.hpp"
#include "group_engine.hpp"

#include <catch2/catch_get_random_seed.hpp>
#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <vector>

using namespace pagedkv;
using namespace pagedkv::test;

namespace {

/// Evicts by a number that each block gets when it becomes evictable, the highest first: the newest, or any.
template <bool Newest>
class by_number {
 public:
  static constexpr std::string_view name = Newest ? "newest first" : "any order";
  static constexpr bool concurrent = false;

  explicit by_number(std::int32_t num_blocks) : numbers_(static_cast<std::size_t>(num_blocks)) {}

  void insert(block_id block, const block_release&) noexcept {
    ++num_inserted_;
    numbers_[to_index(block)] = Newest ? num_inserted_ : (num_inserted_ * 0x9e3779b97f4a7c15) >> 20 | 1;
  }
  void remove(block_id block) noexcept { numbers_[to_index(block)] = 0; }
  void erase(block_id block) noexcept { remove(block); }
  void rename(block_id from, block_id to) noexcept { std::swap(numbers_[to_index(from)], numbers_[to_index(to)]); }
  block_id victim(auto&& offer, timestamp) noexcept {
    auto refused = std::set<block_id>{};
    while (true) {
      auto best = no_block;
      for (std::size_t i = 0; i < numbers_.size(); ++i) {
        if (numbers_[i] != 0 && !refused.contains(to_block(i)) &&
            (best == no_block || numbers_[i] > numbers_[to_index(best)])) {
          best = to_block(i);
        }
      }
      if (best == no_block) {
        return no_block;
      }
      if (offer(best) == eviction_answer::taken) {
        numbers_[to_index(best)] = 0;
        return best;
      }
      refused.insert(best);
    }
  }
  [[nodiscard]] std::size_t metadata_bytes() const noexcept { return numbers_.size() * sizeof(std::uint64_t); }

 private:
  std::vector<std::uint64_t> numbers_;
  std::uint64_t num_inserted_ = 0;
};
using newest_first = by_number<true>;
using any_order = by_number<false>;

/// Makes the cache evict blocks until it holds this many fewer evictable ones.
template <class Engine>
void evict_some(Engine& e, std::int64_t num) {
  const auto before = e.cache.statistics().evictions;
  const auto id = e.create(counted(1, 9'000), {.max_cached_tokens = 0, .publish = false}).value();
  while (e.cache.statistics().evictions < before + num) {
    REQUIRE(e.append(id, counted(1)));
    e.compute(id);
  }
  e.release(id);
}

/// An order that remembers what it was told.
class listening_lru : public lru {
 public:
  static constexpr std::string_view name = "listening_lru";
  inline static std::vector<block_release> told;

  using lru::lru;

  void insert(block_id block, const block_release& release) noexcept {
    told.push_back(release);
    lru::insert(block, release);
  }
};

}  // namespace

TEST_CASE("a hit needs the sinks of a window", "[group_cache]") {
  using sinking = engine<group_cache<float32, newest_first>>;
  auto e = sinking{config_of({full, with_sinks}, 40)};
  REQUIRE(e.cache.plan().groups[1].block_size < 40);
  const auto first = e.create(counted(60)).value();
  e.compute(first);
  const auto sinks = e.table(1, first);
  e.release(first);
  REQUIRE(e.cache.find_prefix(counted(60)) > 50);
  evict_some(e, 1);  // the sinks are released last
  CHECK(e.cache.statistics().evictions == 1);
  CHECK(e.cache.find_prefix(counted(60)) == 0);
  const auto again = e.create(counted(60)).value();
  CHECK(e.sequences.at(again).computed == 0);
  e.compute(again);
  e.check(again);
  CHECK(e.cache.check_invariants() == sound);
}

TEST_CASE("a hit needs the tokens of a window that the next one reads, and no other", "[group_cache]") {
  auto narrow = full;
  narrow.kind = group_kind::window;
  narrow.window = 17;  // the next token reads itself and 16 before it: one block
  auto e = engine<group_cache<float32>>{config_of({full, narrow}, 40)};
  REQUIRE(e.cache.plan().groups[1].block_size == 16);
  const auto first = e.create(counted(48)).value();
  e.compute(first);
  CHECK(e.table(1, first).size() == 1);
  evict_some(e, e.cache.statistics().blocks.evictable);  // blocks that the sequence has released
  CHECK(e.cache.find_prefix(counted(60)) == 48);
  const auto again = e.create(counted(60)).value();
  CHECK(e.sequences.at(again).computed == 48);
  e.check(again);
  CHECK(e.cache.check_invariants() == sound);
}

TEMPLATE_TEST_CASE("victims of every group go while sequences run, and no byte is wrong", "[group_cache][random]",
                   group_cache<float32>, (group_cache<float32, newest_first>), (group_cache<float32, any_order>),
                   (group_cache<float32, rw_lock, clock_sweep>), (group_cache<float32, sharded_mutex, clock_sweep>)) {
  const auto seed = Catch::getSeed();
  auto random = std::mt19937_64{seed};
  const auto below = [&](std::size_t end) { return static_cast<std::size_t>(random() % end); };
  auto num_hit_tokens = std::int64_t{0};
  for (const auto& [name, groups] : kinds) {
    INFO(name << ", seed " << seed);
    auto config = config_of(groups, 1);
    auto needed = std::int64_t{0};
    const auto plan = plan_memory(groups, size_of_element<float32>, config.block_size).value();
    for (std::size_t g = 0; g < groups.size(); ++g) {
      needed += plan.groups[g].blocks_per_state + (groups[g].holds_tokens() ? 80 / plan.groups[g].block_size + 2 : 0);
    }
    config.num_blocks = static_cast<std::int32_t>(3 * needed);  // of three sequences that run; nothing is left over
    auto e = engine<TestType>{config};
    auto running = std::vector<sequence_id>{};
    auto num_dry = 0;
    for (auto round = 0; round < testing::halved_if_sanitized(150); ++round) {
      if (running.size() < 3) {
        auto prompt = counted(static_cast<int>(20 + 8 * below(4)), static_cast<int>(1000 * below(4)));
        const auto more = counted(static_cast<int>(below(12)), static_cast<int>(10'000 + 50 * below(3)));
        prompt.insert(prompt.end(), more.begin(), more.end());
        if (const auto made = e.create(prompt, {.saving = {.every = below(2) == 0 ? 8 : 0}})) {
          num_hit_tokens += e.sequences.at(*made).computed;
          e.compute(*made);
          running.push_back(*made);
        }
      }
      for (const auto id : running) {
        num_dry += !e.append(id, counted(static_cast<int>(1 + below(3)), static_cast<int>(below(2))));
        e.compute(id);
        e.check(id);
      }
      const auto long_enough = [&](sequence_id id) { return e.sequences.at(id).text.size() > 60; };
      if (const auto done = std::ranges::find_if(running, long_enough); done != running.end()) {
        e.release(*done);
        running.erase(done);
      }
      REQUIRE(e.cache.check_invariants() == sound);
    }
    CHECK(e.cache.statistics().evictions > 50);
    CHECK(num_dry < 20);
  }
  CHECK(num_hit_tokens > 500);
}

TEST_CASE("blocks of a range stay longer in every group", "[group_cache]") {
  auto e = engine<group_cache<float32, priority>>{config_of({full, window}, 60)};
  const auto text_of = [](int i) { return counted(48, 1000 * i); };
  auto important = sequence_options{.priority = 10};
  important.ranges[0] = {0, 48, {90, 0}};
  const auto first = e.create(text_of(0), important).value();
  e.compute(first);
  e.release(first);
  for (auto i = 1; i < 30; ++i) {
    const auto other = e.create(text_of(i)).value();
    e.compute(other);
    e.release(other);
  }
  REQUIRE(e.cache.statistics().evictions > 0);
  CHECK(e.cache.find_prefix(text_of(0)) == 44);
  CHECK(e.cache.find_prefix(text_of(1)) == 0);
  const auto again = e.create(text_of(0)).value();
  e.check(again);
  CHECK(e.cache.check_invariants() == std::vector<std::string>{});
}

TEST_CASE("a saved state has the range of the last token that it holds", "[group_cache]") {
  const auto end_of_range = GENERATE(44, 43);
  CAPTURE(end_of_range);
  auto e = engine<group_cache<float32, priority>>{config_of({full, state}, 60)};
  const auto text_of = [](int i) { return counted(48, 1000 * i); };
  auto important = sequence_options{.priority = 10};
  important.ranges[0] = {0, end_of_range, {90, 0}};
  for (auto i = 0; i < 30; ++i) {
    const auto id = e.create(text_of(i), i == 0 ? important : sequence_options{}).value();
    e.compute(id);
    e.release(id);
  }
  REQUIRE(e.cache.statistics().evictions > 0);
  CHECK(e.cache.find_prefix(text_of(0)) == (end_of_range == 44 ? 44 : 0));  // without the state nothing is found
  CHECK(e.cache.check_invariants() == std::vector<std::string>{});
}

TEST_CASE("the newest state of an answer has the range of the last token that it holds", "[group_cache]") {
  auto e = engine<group_cache<float32, priority>>{config_of({full, state}, 60)};
  const auto text_of = [](int i) { return counted(47, 1000 * i); };
  auto important = sequence_options{.priority = 10, .num_prompt_tokens = 20};
  important.saving = {.at_branches = false, .at_prompt_end = false, .at_end = true};  // saved at 44
  important.ranges[0] = {0, 44, {90, 0}};
  for (auto i = 0; i < 30; ++i) {
    const auto id = e.create(text_of(i), i == 0 ? important : sequence_options{}).value();
    e.compute(id);
    e.release(id);
  }
  REQUIRE(e.cache.statistics().evictions > 0);
  CHECK(e.cache.find_prefix(text_of(0)) == 44);
  CHECK(e.cache.check_invariants() == std::vector<std::string>{});
}

TEMPLATE_TEST_CASE("with groups, blocks are evicted that no policy offers", "[group_cache]", any_free_block,
                   contiguous_runs) {
  for (const auto& [kind, groups] : kinds) {
    CAPTURE(kind);
    auto e = engine<group_cache<float32, offering_none, TestType>>{config_of(groups, 120)};
    for (auto i = 0; i < 30; ++i) {
      const auto id = e.create(counted(48, 1000 * i)).value();
      e.compute(id);
      e.release(id);
      REQUIRE(e.cache.check_invariants() == sound);
    }
    CHECK(e.cache.statistics().evictions > 0);
  }
}

TEST_CASE("policies hear of blocks of groups what they hear without groups", "[group_cache]") {
  listening_lru::told.clear();
  auto e = engine<group_cache<float32, listening_lru>>{config_of({full, window})};
  const auto size = e.cache.plan().groups[0].block_size;
  REQUIRE(size > e.cache.config().block_size);
  const auto length = 4 * size;
  e.cache.advance_time(timestamp{1'000});
  e.serve(counted(2 * size + 1));
  const auto branch = e.hold(counted(length));
  listening_lru::told.clear();
  REQUIRE(e.cache.release(branch, {.branch_complete = true, .expected_return = 7}));
  REQUIRE(listening_lru::told.size() >= 4);
  for (auto i = 0; i < 4; ++i) {  // the whole blocks of full attention come first, the deepest one ahead
    const auto& heard = listening_lru::told[static_cast<std::size_t>(i)];
    CHECK(heard.depth == static_cast<std::uint32_t>(3 - i));
    CHECK(heard.released_at == timestamp{1'000});
    CHECK(heard.expected_return == 7);
    CHECK(heard.num_chain_blocks == 4);
    CHECK(heard.num_cached_blocks == 2);
    CHECK(heard.last_cached == listening_lru::told[1].parent);
    CHECK(heard.ended == (heard.depth >= 2));
  }
  const auto trunk = e.cache.create_sequence(counted(3 * size, 5'000)).value().id;
  REQUIRE(e.cache.commit(trunk, 2 * size));
  REQUIRE(e.cache.truncate(trunk, 2 * size));
  const auto forked = e.cache.fork(trunk).value();
  REQUIRE(e.cache.append(forked, counted(size, 6'000)));
  REQUIRE(e.cache.commit(forked, 3 * size));
  REQUIRE(e.cache.release(trunk));
  listening_lru::told.clear();
  REQUIRE(e.cache.release(forked, {.branch_complete = true}));
  REQUIRE(listening_lru::told.size() >= 3);
  for (auto i = 0; i < 3; ++i) {
    const auto& heard = listening_lru::told[static_cast<std::size_t>(i)];
    CHECK(heard.depth == static_cast<std::uint32_t>(2 - i));
    CHECK(heard.ended == (heard.depth == 2));
  }
}

TEST_CASE("a block goes after one that continues its middle", "[group_cache]") {
  auto e = engine<group_cache<float32, lru>>{config_of({full, window})};
  const auto size = e.cache.plan().groups[0].block_size;
  const auto common = e.cache.plan().hit_granularity;
  REQUIRE(common < size);
  auto other = counted(common);
  const auto rest = counted(size - common, 1'000);
  other.insert(other.end(), rest.begin(), rest.end());
  const auto first = e.hold(counted(size));
  const auto second = e.create(other).value();
  REQUIRE(e.sequences.at(second).computed == common);
  e.compute(second);
  const auto block = e.table(0, first).at(0);
  const auto branch = e.table(0, second).at(0);
  e.release(first);
  e.release(second);
  const auto step = e.cache.begin_step().value();
  auto evicted = std::vector<block_id>(static_cast<std::size_t>(e.cache.num_blocks()));
  evicted.resize(static_cast<std::size_t>(e.cache.evict(evicted, step).value()));
  REQUIRE(std::ranges::count(evicted, block) == 1);
  CHECK(std::ranges::find(evicted, branch) < std::ranges::find(evicted, block));
  REQUIRE(e.cache.retire_step(step));
  CHECK(e.cache.check_invariants() == sound);
}
