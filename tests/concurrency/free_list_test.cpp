#include "../support/printing.hpp"

#include <pagedkv/pagedkv.hpp>
#include <pagedkv/policy/eviction/clock_sweep.hpp>
#include <pagedkv/policy/locking/lock_free.hpp>
#include <pagedkv/policy/locking/rw_lock.hpp>
#include <pagedkv/policy/locking/sharded_mutex.hpp>
#include <pagedkv/policy/locking/single_thread.hpp>
#include <pagedkv/pool/boost_free_list.hpp>
#include <pagedkv/pool/free_list.hpp>
#include <pagedkv/pool/lock_free_free_list.hpp>
#include <pagedkv/pool/run_free_list.hpp>
#include <pagedkv/pool/sharded_free_list.hpp>

#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/generators/catch_generators_adapters.hpp>
#include <catch2/generators/catch_generators_random.hpp>

#include <algorithm>
#include <atomic>
#include <concepts>
#include <random>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

namespace {

struct with_boost_free_list : pagedkv::basic_lock_free<> {};

}  // namespace

template <>
struct pagedkv::free_list_of<pagedkv::lock_free_family, with_boost_free_list> {
  using type = boost_free_list;
};

namespace {

using namespace pagedkv;

// A thread without a cache reaches the ends of magazines and caches sooner.
struct no_thread_index {
  static std::uint32_t current() noexcept { return index_registry<>::none; }
  static std::uint32_t limit() noexcept { return 0; }
};
using small_magazines = lock_free_free_list<std::atomic, this_thread_index, 1>;
using without_caches = lock_free_free_list<std::atomic, no_thread_index>;

/// Every second exchange that may fail for no reason does.
template <class T>
class wavering_atomic : public std::atomic<T> {
 public:
  using std::atomic<T>::atomic;

  bool compare_exchange_weak(T& expected, T desired, std::memory_order success, std::memory_order failure) noexcept {
    wavers_ = !wavers_;
    if (wavers_) {
      expected = this->load(failure);
      return false;
    }
    return this->compare_exchange_strong(expected, desired, success, failure);
  }

 private:
  bool wavers_ = false;
};

using models = std::tuple<stack_free_list, free_list_for<basic_sharded_mutex<4>>, free_list_for<lock_free>,
                          small_magazines, without_caches, boost_free_list, run_free_list>;

static_assert(std::same_as<free_list_for<single_thread>, stack_free_list>);
static_assert(std::same_as<free_list_for<rw_lock>, stack_free_list>);

TEMPLATE_LIST_TEST_CASE("a free list hands out every id once and then none", "[free_list]", models) {
  const auto num_blocks = GENERATE(0, 1, 2, 63, 64, 65, 1000);
  auto list = TestType{num_blocks};
  CHECK(list.size() == num_blocks);
  auto seen = std::vector<bool>(static_cast<std::size_t>(num_blocks));
  for (auto i = 0; i < num_blocks; ++i) {
    const auto block = list.pop();
    REQUIRE((block >= block_id{0} && block < block_id{num_blocks}));
    REQUIRE_FALSE(seen[to_index(block)]);
    seen[to_index(block)] = true;
    CHECK(list.size() == num_blocks - i - 1);
  }
  CHECK(list.pop() == no_block);
  CHECK(list.pop() == no_block);
}

TEMPLATE_TEST_CASE("a free list starts with ascending ids", "[free_list]", stack_free_list, free_list_for<lock_free>,
                   small_magazines, boost_free_list, run_free_list) {
  auto list = TestType{200};
  for (auto id = 0; id < 200; ++id) {
    CHECK(list.pop() == block_id{id});
  }
}

TEMPLATE_LIST_TEST_CASE("a free list returns ids that were given back", "[free_list]", models) {
  auto list = TestType{3};
  const auto first = list.pop();
  const auto second = list.pop();
  const auto third = list.pop();
  list.push(second);
  CHECK(list.size() == 1);
  CHECK(list.pop() == second);
  CHECK(list.pop() == no_block);
  list.push(third);
  list.push(first);
  CHECK(list.size() == 2);
}

TEMPLATE_LIST_TEST_CASE("the upper ids of a free list can be taken out", "[free_list]", models) {
  const auto num_blocks = GENERATE(1, 2, 64, 200);
  const auto first = block_id{GENERATE(1, 3) * num_blocks / 4};  // among ids that are popped, and among others
  auto list = TestType{num_blocks};
  auto held = std::vector<block_id>{};
  for (auto i = 0; i < num_blocks / 2; ++i) {
    held.push_back(list.pop());
  }
  for (; held.size() > static_cast<std::size_t>(num_blocks) / 4; held.pop_back()) {
    list.push(held.back());
  }
  auto taken = std::vector<block_id>{};
  list.take_from(first, [&](block_id block) { taken.push_back(block); });
  CHECK(std::ranges::all_of(taken, [&](block_id block) { return block >= first; }));
  CHECK(list.size() == num_blocks - static_cast<std::int32_t>(held.size() + taken.size()));
  for (auto block = list.pop(); block != no_block; block = list.pop()) {
    CHECK(block < first);
    held.push_back(block);
  }
  std::ranges::for_each(taken, [&](block_id block) { list.push(block); });
  for (auto block = list.pop(); block != no_block; block = list.pop()) {
    held.push_back(block);
  }
  std::ranges::sort(held);
  REQUIRE(held.size() == static_cast<std::size_t>(num_blocks));
  CHECK(std::ranges::adjacent_find(held) == held.end());
}

TEMPLATE_LIST_TEST_CASE("a free list agrees with a set under random operations", "[free_list][random]", models) {
  const auto seed = GENERATE(take(10, random(0U, 0xffff'ffffU)));
  CAPTURE(seed);
  auto random = std::mt19937{seed};
  const auto num_blocks = 1 + static_cast<std::int32_t>(random() % 300);
  auto list = TestType{num_blocks};
  auto held = std::vector<block_id>{};
  for (auto step = 0; step < 5000; ++step) {
    // Runs of pops and runs of pushes, so that both ends are reached.
    if ((static_cast<std::uint32_t>(step) / 400 + random() % 4) % 4 < 2) {
      const auto block = list.pop();
      REQUIRE((block == no_block) == (static_cast<std::int32_t>(held.size()) == num_blocks));
      if (block != no_block) {
        REQUIRE(std::find(held.begin(), held.end(), block) == held.end());
        held.push_back(block);
      }
    } else if (!held.empty()) {
      std::swap(held[random() % held.size()], held.back());
      list.push(held.back());
      held.pop_back();
    }
    REQUIRE(list.size() == num_blocks - static_cast<std::int32_t>(held.size()));
  }
  list.for_each([&](block_id block) { held.push_back(block); });
  std::ranges::sort(held);
  REQUIRE(held.size() == static_cast<std::size_t>(num_blocks));
  for (auto i = std::size_t{0}; i < held.size(); ++i) {
    REQUIRE(held[i] == to_block(i));
  }
}

TEMPLATE_TEST_CASE("a free list shows an id that was given back twice", "[free_list]", stack_free_list,
                   free_list_for<basic_sharded_mutex<4>>, free_list_for<lock_free>, small_magazines, without_caches) {
  auto list = TestType{3};
  const auto block = list.pop();
  static_cast<void>(list.pop());
  list.push(block);
  list.push(block);
  auto times_seen = 0;
  list.for_each([&](block_id seen) { times_seen += seen == block; });
  CHECK(times_seen > 1);
}

TEST_CASE("a free list counts exchanges that were repeated", "[free_list]") {
  auto list = lock_free_free_list<wavering_atomic, no_thread_index, 63, count_contention>{1};
  const auto block = list.pop();
  for (auto i = 0; i < 3; ++i) {
    const auto before = list.contention().retries;
    list.push(block);
    const auto pushed = list.contention().retries;
    CHECK(pushed > before);
    REQUIRE(list.pop() == block);
    CHECK(list.contention().retries > pushed);
  }
}

TEST_CASE("free lists take little memory per block", "[free_list]") {
  constexpr auto num_blocks = 1'000'000;
  CHECK(stack_free_list{num_blocks}.metadata_bytes() <= 4 * num_blocks);
  CHECK(lock_free_free_list<>{num_blocks}.metadata_bytes() <= 9 * num_blocks);
  CHECK(run_free_list{num_blocks}.metadata_bytes() * 8 <= 3 * num_blocks);
}

TEST_CASE("a free list of Boost.Lockfree ends at 65,535 blocks", "[free_list]") {
  CHECK(boost_free_list{65'535}.size() == 65'535);
  CHECK_THROWS_AS(boost_free_list{65'536}, std::runtime_error);
}

TEST_CASE("a cache is built over another free list", "[free_list]") {
  auto config = cache_config{};
  config.hash_seed = 1;
  config.block_size = 2;
  config.num_blocks = 4;
  config.max_sequences = 2;
  auto cache = kv_cache<float32, with_boost_free_list, clock_sweep>{config};
  const auto tokens = std::vector<token>{1, 2, 3, 4, 5};
  for (auto i = 0; i < 3; ++i) {
    const auto made = cache.create_sequence(tokens).value();
    CHECK(made.num_cached_tokens == (i == 0 ? 0 : 4));
    CHECK(cache.commit(made.id, 5));
    CHECK(cache.check_invariants() == std::vector<std::string>{});
    CHECK(cache.release(made.id));
  }
  CHECK(cache.statistics().blocks == block_counts{.free = 2, .evictable = 2});
}

}  // namespace
