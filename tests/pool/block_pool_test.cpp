#include "../support/policy_matrix.hpp"
#include "../support/printing.hpp"

#include <pagedkv/core/ids.hpp>
#include <pagedkv/policy/free_list/all.hpp>
#include <pagedkv/pool/block_pool.hpp>
#include <pagedkv/pool/plan_moves.hpp>

#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <thread>
#include <utility>
#include <vector>

using namespace pagedkv;

namespace {

/// Stands in for the prefix index: which blocks were forgotten, which have children, and which a twin.
struct chains {
  std::set<block_id> with_children;
  std::set<block_id> with_twin;
  std::vector<block_id> erased;
  int detached = 0;
  std::function<void()> when_asked = [] {};  // before each answer of `has_children`

  [[nodiscard]] bool has_children(block_id block) const {
    when_asked();
    return with_children.contains(block);
  }
  [[nodiscard]] std::size_t num_children(block_id block) const { return with_children.count(block); }
  [[nodiscard]] static block_id parent(block_id) { return no_block; }
  [[nodiscard]] bool has_twin(block_id block, auto&&) const { return with_twin.contains(block); }
  [[nodiscard]] static std::int64_t free_useless() { return 0; }
  void detach(block_id) { ++detached; }
  void attach(block_id) { --detached; }
  void erase(block_id block) { erased.push_back(block); }
  void withdraw(block_id) {}
};

template <class Eviction, class Locking = single_thread, class FreeList = any_free_block>
struct pool_under_test {
  explicit pool_under_test(std::int32_t num_blocks) : pool(num_blocks) {}

  [[nodiscard]] std::vector<block_id> allocate(std::size_t count) {
    auto blocks = std::vector<block_id>(count, no_block);
    return pool.allocate(blocks, index, timestamp{}, num_evicted) ? blocks : std::vector<block_id>{};
  }
  [[nodiscard]] block_id make_evictable() {
    const auto block = allocate(1).at(0);
    pool.publish(block);
    pool.release(block, {});
    return block;
  }
  void check(block_counts wanted) const {
    const auto counts = pool.counts();
    CHECK(counts.free == wanted.free);
    CHECK(counts.in_use == wanted.in_use);
    CHECK(counts.evictable == wanted.evictable);
    CHECK(counts.retiring == wanted.retiring);
  }

  block_pool<Locking, Eviction, FreeList> pool;
  chains index;
  std::int64_t num_evicted = 0;
};

using evicting_pool = pool_under_test<lru>;

/// The id of every block after these moves.
[[nodiscard]] auto names_after(std::span<const block_pair> moves) {
  auto names = std::map<block_id, block_id>{};
  for (const auto& [from, to] : moves) {
    names[block_id{from}] = block_id{to};
  }
  return [names](block_id block) { return names.contains(block) ? names.at(block) : block; };
}

}  // namespace

TEST_CASE("an unpublished block goes from free to in use and back", "[block_pool]") {
  auto test = evicting_pool{3};
  test.check({3, 0, 0, 0});
  const auto blocks = test.allocate(2);
  REQUIRE(blocks.size() == 2);
  CHECK(blocks[0] != blocks[1]);
  test.check({1, 2, 0, 0});
  CHECK(test.pool.writable(blocks[0]));
  REQUIRE(test.pool.reference(blocks[0]));
  CHECK_FALSE(test.pool.writable(blocks[0]));
  CHECK_FALSE(test.pool.reference_published(blocks[0]));  // a hit finds published blocks only
  test.pool.release(blocks[0], {});
  test.check({1, 2, 0, 0});
  test.pool.release(blocks[0], {});
  test.check({2, 1, 0, 0});
  test.pool.release(blocks[1], {});
  test.check({3, 0, 0, 0});
  CHECK_FALSE(test.pool.can_lease(blocks[0]));
}

TEST_CASE("a published block goes from in use to evictable and is revived by a hit", "[block_pool]") {
  auto test = evicting_pool{2};
  const auto block = test.make_evictable();
  test.check({1, 0, 1, 0});
  CHECK(test.pool.num_available() == 2);
  CHECK(test.pool.num_available(std::array{block}) == 1);
  REQUIRE(test.pool.can_lease(block));
  REQUIRE(test.pool.reference_published(block));
  test.check({1, 1, 0, 0});
  CHECK(test.pool.num_available() == 1);
  CHECK(test.pool.num_available(std::array{block}) == 1);
  CHECK_FALSE(test.pool.writable(block));
  CHECK(test.allocate(2).empty());  // a revived block is no victim
  test.pool.release(block, {});
  CHECK(test.allocate(2).size() == 2);
  CHECK(test.num_evicted == 1);
  CHECK(test.index.erased == std::vector{block});
  CHECK(test.index.detached == 1);
  test.check({0, 2, 0, 0});
  CHECK_FALSE(test.pool.can_lease(block));
}

TEMPLATE_TEST_CASE("allocation is all or nothing", "[block_pool]", lru, fifo, no_eviction) {
  auto test = pool_under_test<TestType>{6};
  for (auto i = 0; i < 3; ++i) {
    static_cast<void>(test.make_evictable());
  }
  const auto held = test.allocate(1);
  const auto before = test.pool.counts();
  auto blocks = std::vector<block_id>(6);
  CHECK_FALSE(test.pool.allocate(blocks, test.index, timestamp{}, test.num_evicted));
  CHECK(test.pool.counts() == before);
  CHECK(test.num_evicted == 0);
  CHECK(test.index.erased.empty());
  CHECK(test.index.detached == 0);
  const auto possible = static_cast<std::size_t>(test.pool.num_available());
  CHECK(possible == (evicts<TestType> ? 5 : 5 - static_cast<std::size_t>(before.evictable)));
  CHECK(test.allocate(possible + 1).empty());
  CHECK(test.allocate(possible).size() == possible);
  CHECK(test.pool.num_available() == 0);
}

namespace {

/// A chain of blocks of which each continues the one before, until that one leaves, and some that become useless with
/// one of them.
template <class Pool>
struct chain_with_useless {
  Pool& pool;
  std::vector<block_id> chain;  // the head first
  std::map<block_id, std::vector<block_id>> useless_after;
  std::vector<block_id> erased;
  std::vector<block_id> useless;

  [[nodiscard]] bool has_children(block_id block) const {
    return std::ranges::find(chain, block) != chain.end() && chain.back() != block;
  }
  [[nodiscard]] bool has_twin(block_id, auto&&) const { return false; }
  void detach(block_id) {}
  void attach(block_id) {}
  void withdraw(block_id) {}
  void erase(block_id block) {
    erased.push_back(block);
    if (!chain.empty() && chain.back() == block) {
      chain.pop_back();
    }
    useless.insert(useless.end(), useless_after[block].begin(), useless_after[block].end());
  }
  [[nodiscard]] std::int64_t free_useless() {
    const auto num = std::ssize(useless);
    for (auto blocks = std::exchange(useless, {}); const auto block : blocks) {
      REQUIRE(pool.reference_published(block));
      REQUIRE(pool.withdraw(block));
      REQUIRE(pool.release(block, {}, 0));
      pool.free_withdrawn(block, *this);
    }
    return num;
  }
};

}  // namespace

TEST_CASE("blocks are taken in turn: free ones, tails, and those that became useless", "[block_pool]") {
  auto test = evicting_pool{8};
  const auto blocks = test.allocate(7);  // one is free
  for (const auto block : blocks) {      // the head is the oldest
    test.pool.publish(block);
    test.pool.release(block, {});
  }
  auto index = chain_with_useless<decltype(test.pool)>{test.pool, {blocks.begin(), blocks.begin() + 4}, {}, {}, {}};
  index.useless_after[blocks[2]] = {blocks[5]};
  auto taken = std::vector<block_id>(6, no_block);
  auto num_evicted = std::int64_t{0};
  test.pool.allocate_in_turn(taken, index, timestamp{}, num_evicted);
  CHECK(index.erased == std::vector{blocks[3], blocks[2], blocks[5], blocks[1], blocks[0]});
  CHECK(num_evicted == 5);
  CHECK(std::vector(taken.begin() + 1, taken.end()) == index.erased);
  CHECK(std::ranges::all_of(taken, [&](block_id block) { return test.pool.writable(block); }));
  test.check({0, 6, 2, 0});
}

TEST_CASE("allocating nothing succeeds in a full pool", "[block_pool]") {
  auto test = evicting_pool{1};
  const auto blocks = test.allocate(1);
  CHECK(test.pool.allocate({}, test.index, timestamp{}, test.num_evicted));
  test.pool.release(blocks[0], {});
}

TEST_CASE("blocks released during a step are allocated again only after it", "[block_pool]") {
  auto test = evicting_pool{3};
  const auto blocks = test.allocate(3);
  test.pool.publish(blocks[0]);
  const auto first = test.pool.begin_step().value();
  const auto second = test.pool.begin_step().value();
  test.pool.release(blocks[0], {});
  test.pool.release(blocks[1], {});
  test.check({0, 1, 0, 2});
  CHECK(test.pool.num_available() == 0);
  CHECK(test.allocate(1).empty());
  REQUIRE(test.pool.retire_step(second));
  test.check({0, 1, 0, 2});
  REQUIRE(test.pool.retire_step(first));
  test.check({1, 1, 1, 0});
  CHECK(test.allocate(2).size() == 2);
}

TEST_CASE("a hit takes a block out of its wait, and a later release starts a new one", "[block_pool]") {
  auto test = evicting_pool{1};
  const auto block = test.allocate(1)[0];
  test.pool.publish(block);
  const auto first = test.pool.begin_step().value();
  test.pool.release(block, {});
  test.check({0, 0, 0, 1});
  REQUIRE(test.pool.reference_published(block));
  test.check({0, 1, 0, 0});
  const auto second = test.pool.begin_step().value();
  test.pool.release(block, {});
  REQUIRE(test.pool.retire_step(first));
  test.check({0, 0, 0, 1});
  REQUIRE(test.pool.retire_step(second));
  test.check({0, 0, 1, 0});

  REQUIRE(test.pool.reference_published(block));
  const auto third = test.pool.begin_step().value();
  test.pool.release(block, {});
  REQUIRE(test.pool.reference_published(block));
  REQUIRE(test.pool.retire_step(third));
  test.check({0, 1, 0, 0});
  test.pool.release(block, {});
  test.check({0, 0, 1, 0});
}

TEMPLATE_TEST_CASE("an evictable block is found behind many that are fenced or have children", "[block_pool]", lru,
                   fifo) {
  constexpr auto num_blocks = 200;
  auto test = pool_under_test<TestType>{num_blocks};
  auto blocks = test.allocate(num_blocks);
  for (const auto block : blocks) {
    test.pool.publish(block);
  }
  test.index.with_children.insert(blocks.begin(), blocks.end());
  for (const auto block : blocks) {
    test.pool.release(block, {});
  }
  CHECK(test.allocate(1).size() == 1);  // with children, when there is nothing else

  auto fenced = pool_under_test<TestType>{num_blocks};
  blocks = fenced.allocate(num_blocks);
  for (const auto block : blocks) {
    fenced.pool.publish(block);
  }
  const auto free_of_steps = blocks.back();
  blocks.pop_back();
  REQUIRE(fenced.pool.begin_step());
  for (const auto block : blocks) {
    fenced.pool.release(block, {});
  }
  CHECK(fenced.allocate(1).empty());
  REQUIRE(fenced.pool.retire_step(step_id{1}));
  REQUIRE(fenced.pool.reference_published(blocks[0]));
  fenced.pool.release(free_of_steps, {});
  REQUIRE(fenced.pool.begin_step());
  for (auto i = std::size_t{1}; i < blocks.size(); ++i) {
    REQUIRE(fenced.pool.reference_published(blocks[i]));
    fenced.pool.release(blocks[i], {});
  }
  fenced.check({0, 1, 1, num_blocks - 2});
  CHECK(fenced.allocate(1) == std::vector{free_of_steps});
  CHECK(fenced.allocate(1).empty());
}

TEMPLATE_TEST_CASE("an evictable twin goes before all others, as long as it has one and no children",
                   "[block_pool]", lru, fifo, clock_sweep) {
  auto test = pool_under_test<TestType>{4};
  auto blocks = std::vector<block_id>();
  for (auto i = 0; i < 4; ++i) {
    blocks.push_back(test.make_evictable());
  }
  test.pool.note_twin(blocks[2]);
  test.pool.note_twin(blocks[3]);
  test.pool.note_twin(blocks[1]);
  test.index.with_twin = {blocks[1], blocks[2]};
  test.index.with_children = {blocks[1]};
  REQUIRE(test.pool.reference_published(blocks[2]));
  CHECK(test.allocate(1) == std::vector{blocks[0]});  // the twins are in use, have children, or are none any more
  test.pool.release(blocks[2], {});
  CHECK(test.allocate(1) == std::vector{blocks[2]});
  test.index.with_children.clear();
  CHECK(test.allocate(1) == std::vector{blocks[1]});
  CHECK(test.allocate(1) == std::vector{blocks[3]});
  CHECK(test.allocate(1).empty());
}

TEST_CASE("twins in use do not hide one that is evictable", "[block_pool]") {
  auto test = evicting_pool{40};
  const auto unique = test.make_evictable();
  for (auto i = 0; i < 39; ++i) {
    const auto block = test.make_evictable();
    test.pool.note_twin(block);
    test.index.with_twin.insert(block);
    if (i < 38) {
      REQUIRE(test.pool.reference_published(block));
    }
  }
  CHECK(test.allocate(1) != std::vector{unique});
  CHECK(test.allocate(1) == std::vector{unique});
}

TEST_CASE("an allocation that finds a lease takes a block out of order", "[block_pool]") {
  auto test = evicting_pool{2};
  const auto leased = test.make_evictable();
  const auto parent = test.make_evictable();
  test.index.with_children = {parent};
  REQUIRE(test.pool.lease(leased));
  auto victim = std::array{no_block};
  CHECK(test.pool.evict(victim, test.index, timestamp{}, 0) == 0);  // ahead of need, the order holds
  CHECK(test.allocate(1) == std::vector{parent});
  test.pool.end_lease(leased);
  CHECK(test.allocate(1) == std::vector{leased});
}

TEMPLATE_TEST_CASE("an allocation that a lease lets fail gives back all that it took", "[block_pool]", single_thread,
                   lock_free) {
  auto test = pool_under_test<clock_sweep, TestType>{3};
  const auto leased = test.make_evictable();
  const auto cached = test.make_evictable();
  REQUIRE(test.pool.lease(leased));
  test.pool.begin_invalidation();  // ends before the allocation, so that it missed no victim
  test.pool.end_invalidation();
  CHECK(test.allocate(3).empty());
  test.pool.end_lease(leased);
  test.check({1, 0, 2, 0});
  CHECK(test.index.erased.empty());
  CHECK(test.index.detached == 0);
  CHECK(test.pool.can_lease(cached));
  CHECK(test.allocate(3).size() == 3);
}

TEST_CASE("an allocation searches again for all that is available, while a lease may end", "[block_pool]") {
  auto test = pool_under_test<lru, sharded_mutex>{2};
  const auto leased = test.make_evictable();
  const auto parent = test.make_evictable();
  test.index.with_children = {parent};
  REQUIRE(test.pool.lease(leased));
  auto num_asked = 0;
  test.index.when_asked = [&] {
    if (++num_asked == 3) {  // the order has offered both in vain, and begins again
      test.pool.end_lease(leased);
    }
  };
  CHECK(test.allocate(2).size() == 2);
}

TEST_CASE("a withdrawn block whose last reference goes under a lease is left to its eviction", "[block_pool]") {
  auto test = pool_under_test<clock_sweep, lock_free>{1};
  const auto block = test.allocate(1).at(0);
  test.pool.publish(block);
  REQUIRE(test.pool.lease(block));
  REQUIRE(test.pool.withdraw(block));
  CHECK_FALSE(test.pool.release(block, {}, 0));
  test.check({0, 0, 1, 0});
  test.pool.end_lease(block);
  CHECK(test.allocate(1) == std::vector{block});
  CHECK(test.num_evicted == 1);
}

TEST_CASE("where runs are preferred, as many free blocks as are needed are enough", "[block_pool]") {
  auto test = pool_under_test<lru, single_thread, contiguous_runs>{8};
  const auto blocks = test.allocate(8);
  for (auto i = std::size_t{0}; i < 8; ++i) {
    if (i % 2 == 0) {
      test.pool.publish(blocks[i]);
    }
    test.pool.release(blocks[i], {});
  }
  CHECK(test.allocate(4).size() == 4);
  CHECK(test.num_evicted == 0);
}

TEST_CASE("a run is completed by evictions of old blocks, not of young ones", "[block_pool]") {
  constexpr auto num_octets = std::size_t{50};
  constexpr auto octet_size = run_free_list::octet_size;
  auto test = pool_under_test<lru, single_thread, contiguous_runs>{num_octets * octet_size};
  for (const auto block : test.allocate(num_octets * octet_size)) {
    test.pool.publish(block);
  }
  // The oldest block of each octet first, then the others, those of the last octet first.
  for (auto octet = std::size_t{0}; octet < num_octets; ++octet) {
    test.pool.release(to_block(octet * octet_size), {});
  }
  for (auto octet = num_octets; octet-- > 0;) {
    for (auto i = std::size_t{1}; i < octet_size; ++i) {
      test.pool.release(to_block(octet * octet_size + i), {});
    }
  }
  const auto taken = test.allocate(octet_size);
  REQUIRE(taken.size() == octet_size);
  CHECK(to_index(taken.front()) % octet_size == 0);
  CHECK(to_index(taken.back()) == to_index(taken.front()) + octet_size - 1);
  // Of the eight octets from which a block was evicted in turn, the search passes those with young blocks.
  CHECK(to_index(taken.front()) / octet_size >= num_octets / 3);
}

TEST_CASE("a pool counts the free blocks that a thread took from another", "[block_pool]") {
  constexpr auto num_blocks = std::size_t{10};
  auto test = pool_under_test<clock_sweep, basic_lock_free<std::atomic, count_contention>>{num_blocks};
  for (const auto block : test.allocate(num_blocks)) {
    test.pool.release(block, {});
  }
  CHECK(test.pool.contention() == contention_counts{});
  std::jthread{[&] { CHECK(test.allocate(num_blocks).size() == num_blocks); }}.join();
  CHECK(test.pool.contention() == contention_counts{.steals = num_blocks});
}

TEST_CASE("an order that was promised to the caller holds for twins, too", "[block_pool]") {
  auto test = pool_under_test<priority>{2};
  auto blocks = test.allocate(2);
  for (const auto block : blocks) {
    test.pool.publish(block);
    test.pool.note_twin(block);
    test.index.with_twin.insert(block);
  }
  test.pool.release(blocks[0], {.priority = 100});
  test.pool.release(blocks[1], {.priority = 50});
  CHECK(test.allocate(1) == std::vector{blocks[1]});
}

TEST_CASE("a twin is still known after compaction moves it", "[block_pool]") {
  auto test = evicting_pool{4};
  auto blocks = test.allocate(4);
  std::ranges::for_each(std::span{blocks}.last(2), [&](block_id block) {
    test.pool.publish(block);
    test.pool.release(block, {});
  });
  test.pool.note_twin(blocks[3]);
  test.pool.release(blocks[0], {});
  const auto move = block_pair{static_cast<std::int32_t>(blocks[3]), static_cast<std::int32_t>(blocks[0])};
  test.pool.apply_moves(std::array{move}, names_after(std::array{move}));
  test.index.with_twin = {blocks[0]};
  REQUIRE(test.allocate(1) == std::vector{blocks[3]});  // the free one
  CHECK(test.allocate(1) == std::vector{blocks[0]});
}

TEST_CASE("a count that is full refuses one more", "[block_pool]") {
  auto test = evicting_pool{1};
  const auto block = test.allocate(1)[0];
  test.pool.publish(block);
  for (auto count = std::uint32_t{1}; count < block_state::max_count; ++count) {
    if (!(count % 2 == 0 ? test.pool.reference(block) : test.pool.reference_published(block))) {
      FAIL("refused at " << count);
    }
  }
  CHECK_FALSE(test.pool.reference(block));
  CHECK_FALSE(test.pool.reference_published(block));
  CHECK_FALSE(test.pool.can_lease(block));
  CHECK(test.pool.state(block).count() == block_state::max_count);
  CHECK(test.pool.state(block).published());
  test.pool.release(block, {});
  CHECK(test.pool.reference(block));
}

TEST_CASE("forgetting frees evictable blocks and no others", "[block_pool]") {
  auto test = evicting_pool{4};
  const auto gone = test.make_evictable();
  const auto held = test.allocate(1)[0];
  test.pool.publish(held);
  CHECK(test.pool.forget_evictable(test.index) == 1);
  CHECK(test.index.erased == std::vector{gone});
  test.check({3, 1, 0, 0});
  CHECK(test.pool.forget_evictable(test.index) == 0);
  CHECK(test.allocate(3).size() == 3);
  CHECK(test.num_evicted == 0);
}

TEST_CASE("an evicted block leaves when the step that reads it has retired", "[block_pool]") {
  auto test = evicting_pool{5};
  const auto first = test.make_evictable();
  const auto second = test.make_evictable();
  const auto third = test.make_evictable();
  const auto held = test.allocate(1)[0];
  test.pool.publish(held);
  const auto step = test.pool.begin_step(step_use::named_sequences).value();

  auto victims = std::vector(2, no_block);
  REQUIRE(test.pool.evict(victims, test.index, timestamp{}, test.pool.fence_of(step)) == 2);
  CHECK(victims == std::vector{first, second});
  CHECK(test.index.erased == victims);
  test.check({1, 1, 1, 2});
  CHECK_FALSE(test.pool.reference_published(first));
  CHECK_FALSE(test.pool.can_lease(second));
  CHECK(test.allocate(3).empty());
  CHECK(test.pool.step_that_frees(2).step == step);

  REQUIRE(test.pool.retire_step(step));
  test.check({3, 1, 1, 0});
  CHECK(test.allocate(3).size() == 3);
  CHECK(test.pool.can_lease(third));
  CHECK(test.pool.fence_of(step) == 0);
}

TEST_CASE("without a step, an evicted block is free at once", "[block_pool]") {
  auto test = evicting_pool{4};
  const auto parent = test.make_evictable();
  const auto leaf = test.make_evictable();
  test.index.with_children = {parent};
  const auto leased = test.make_evictable();
  REQUIRE(test.pool.lease(leased));

  auto victims = std::vector(4, no_block);
  CHECK(test.pool.evict(std::span{victims}.first(1), test.index, timestamp{}, 0) == 1);
  CHECK(victims[0] == leaf);
  test.check({2, 0, 2, 0});
  test.index.with_children.clear();
  CHECK(test.pool.evict(victims, test.index, timestamp{}, 0) == 1);
  CHECK(victims[0] == parent);
  test.check({3, 0, 1, 0});
  test.pool.end_lease(leased);
  CHECK(test.pool.evict(victims, test.index, timestamp{}, 0) == 1);
  CHECK(test.pool.evict(victims, test.index, timestamp{}, 0) == 0);
  test.check({4, 0, 0, 0});
}

TEST_CASE("a pool that does not evict takes no victim ahead of need either", "[block_pool]") {
  auto test = pool_under_test<no_eviction>{2};
  static_cast<void>(test.make_evictable());
  auto victims = std::vector(1, no_block);
  CHECK(test.pool.evict(victims, test.index, timestamp{}, 0) == 0);
  test.check({1, 0, 1, 0});
}

TEST_CASE("a pool that cannot shrink keeps its blocks as they were", "[block_pool]") {
  auto test = evicting_pool{4};
  REQUIRE(test.allocate(4).size() == 4);
  test.pool.publish(block_id{1});
  test.pool.release(block_id{1}, {});
  test.pool.release(block_id{2}, {});
  CHECK_FALSE(test.pool.shrink_to(1, test.index, test.num_evicted));  // 3 is in use
  CHECK(test.pool.size() == 4);
  CHECK(test.num_evicted == 0);
  CHECK(test.index.erased.empty());
  CHECK(test.index.detached == 0);
  test.check({1, 2, 1, 0});
  CHECK(test.allocate(1) == std::vector{block_id{2}});
  CHECK(test.allocate(1) == std::vector{block_id{1}});
  CHECK(test.num_evicted == 1);
}

TEST_CASE("compaction leaves no free block below another", "[block_pool]") {
  auto test = evicting_pool{8};
  const auto blocks = test.allocate(8);
  test.pool.publish(block_id{7});
  for (const auto block : {0, 2, 3, 5, 7}) {
    test.pool.release(block_id{block}, {});
  }
  // In use: 1, 4, 6; evictable: 7.
  auto moves = std::vector<block_pair>{};
  plan_moves(test.pool, 0, [&](block_id from, block_id to) {
    moves.push_back({static_cast<std::int32_t>(from), static_cast<std::int32_t>(to)});
  });
  CHECK(moves == std::vector<block_pair>{{7, 0}, {6, 2}, {4, 3}});
  test.pool.apply_moves(moves, names_after(moves));
  test.check({4, 3, 1, 0});
  CHECK(test.pool.num_available(std::array{block_id{0}}) == 4);
  CHECK(test.pool.state(block_id{2}).count() == 1);
  moves.clear();
  plan_moves(test.pool, 0, [&](block_id, block_id) { FAIL("a second compaction moves blocks"); });
  CHECK(test.allocate(4) == std::vector{block_id{4}, block_id{5}, block_id{6}, block_id{7}});
  CHECK(test.allocate(1) == std::vector{block_id{0}});  // the victim, under its new name
  CHECK(test.index.erased == std::vector{block_id{0}});
}

TEST_CASE("compaction of a pool of free blocks keeps all of them", "[block_pool]") {
  auto test = evicting_pool{3};
  test.pool.apply_moves({}, [](block_id block) { return block; });
  CHECK(test.allocate(3) == std::vector{block_id{0}, block_id{1}, block_id{2}});
}

TEST_CASE("gathering moves no block that may stay", "[block_pool]") {
  auto test = evicting_pool{5};
  REQUIRE(test.allocate(5).size() == 5);
  test.pool.publish(block_id{2});
  test.pool.release(block_id{2}, {});
  test.pool.release(block_id{3}, {});
  // In use: 0, 1, 4; evictable: 2.
  auto moves = std::vector<block_pair>{};
  plan_gathering(test.pool, [&](block_id from, block_id to) {
    moves.push_back({static_cast<std::int32_t>(from), static_cast<std::int32_t>(to)});
  });
  CHECK(moves == std::vector<block_pair>{{2, 3}, {4, 2}});
}
