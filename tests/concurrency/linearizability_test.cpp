#include "../support/full_numbers.hpp"
#include "../support/on_threads.hpp"
#include "../support/recorder.hpp"

#include <pagedkv/pagedkv.hpp>
#include <pagedkv/policy/eviction/clock_sweep.hpp>
#include <pagedkv/policy/locking/lock_free.hpp>
#include <pagedkv/policy/locking/sharded_mutex.hpp>

#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/generators/catch_generators_adapters.hpp>
#include <catch2/generators/catch_generators_random.hpp>

#include <atomic>
#include <barrier>
#include <cstdint>
#include <memory>
#include <random>
#include <tuple>
#include <vector>

namespace {

using namespace pagedkv;
using namespace pagedkv::testing;
using pagedkv::test::on_threads;

const auto scale = scaled<std::uint64_t>(1, 20);

using threaded_caches =
    std::tuple<kv_cache<float32, lock_free, clock_sweep>, kv_cache<float32, basic_sharded_mutex<2>>,
               kv_cache<float32, basic_sharded_mutex<2>, clock_sweep>, kv_cache<float32, rw_lock>>;

TEMPLATE_LIST_TEST_CASE("histories of real threads are linearisable", "[linearizability][random]", threaded_caches) {
  constexpr auto num_threads = std::size_t{3};
  const auto seed = GENERATE(take(1, random(0U, 0xffff'ffffU)));
  const auto num_rounds = static_cast<std::uint32_t>(2'000 * scale);
  auto time = std::atomic<std::uint64_t>{0};
  auto cache = std::unique_ptr<TestType>{};
  auto threads = std::vector<recorded_thread<TestType>>{};
  auto failed_round = std::uint32_t{0};
  auto failure = std::string{};
  const auto check = [&](std::uint32_t round) {
    for (auto& thread : threads) {
      thread.wind_up();
      failure += thread.failure();
    }
    const auto history = all_of(threads);
    if (failure.empty() && (!cache->check_invariants().empty() || !linearizable(history, block_size, num_blocks))) {
      failed_round = round;
      failure = to_text(history);
    }
  };
  const auto set_scene = [&] {
    cache = std::make_unique<TestType>(small());
    threads.assign(num_threads, recorded_thread<TestType>{*cache, [&] { return ++time; }});
  };
  set_scene();
  auto gather = std::barrier{static_cast<std::ptrdiff_t>(num_threads)};
  on_threads(num_threads, [&](std::size_t i) {
    for (auto round = std::uint32_t{0}; round < num_rounds; ++round) {
      auto random = std::mt19937_64{std::uint64_t{seed} * 1'000'003 + round * num_threads + i};
      gather.arrive_and_wait();
      for (auto n = 0; n < 5; ++n) {
        threads[i].act(random);
      }
      gather.arrive_and_wait();
      if (i == 0) {
        check(round);
        set_scene();
      }
    }
  });
  INFO(failure);
  CAPTURE(seed, failed_round);
  CHECK(failure.empty());
}

operation made(std::uint64_t called, std::uint64_t returned, std::uint64_t sequence, std::vector<token> tokens,
               std::size_t num_found, std::vector<block_id> table) {
  auto o = operation{};
  o.kind = action::create;
  o.called = called;
  o.returned = returned;
  o.sequence = sequence;
  o.num_touched = table.size();
  o.tokens = std::move(tokens);
  o.num_tokens = num_found;
  o.table = std::move(table);
  return o;
}

operation refused(std::uint64_t called, std::uint64_t returned, std::vector<token> tokens) {
  auto o = made(called, returned, 0, std::move(tokens), 0, {});
  o.refused = true;
  return o;
}

operation committed(std::uint64_t called, std::uint64_t returned, const operation& of) {
  auto o = made(called, returned, of.sequence, {}, of.tokens.size(), of.table);
  o.kind = action::commit;
  return o;
}

TEST_CASE("a history is linearisable only if an order explains it", "[linearizability]") {
  const auto first = made(1, 2, 1, {1, 2, 3}, 0, {block_id{0}, block_id{1}});
  const auto explained = [](std::vector<operation> history) { return linearizable(history, 2, 3); };
  const auto a = block_id{0};
  const auto b = block_id{1};
  const auto c = block_id{2};

  CHECK(explained({first}));
  // A block for two owners, unless it was shared through the index.
  CHECK_FALSE(explained({first, made(3, 4, 2, {9}, 0, {b})}));
  CHECK(explained({first, made(3, 4, 2, {9}, 0, {c})}));
  CHECK(explained({first, committed(3, 4, first), made(5, 6, 2, {1, 2, 4}, 2, {a, c})}));
  CHECK_FALSE(explained({first, committed(3, 4, first), made(5, 6, 2, {1, 7, 4}, 2, {a, c})}));
  // A hit before the commit that published it, allowed only if the two overlap.
  CHECK_FALSE(explained({first, committed(5, 6, first), made(3, 4, 2, {1, 2, 4}, 2, {a, c})}));
  CHECK(explained({first, committed(3, 6, first), made(4, 5, 2, {1, 2, 4}, 2, {a, c})}));
  // A miss of a block in use.
  CHECK_FALSE(
      explained({first, committed(3, 4, first), made(5, 6, 2, {1, 2}, 0, {c}), made(7, 8, 3, {1, 2, 4}, 0, {c, b})}));
  // A refusal although there is room, allowed only if another operation may have taken it.
  CHECK_FALSE(explained({first, refused(3, 4, {9})}));
  CHECK(explained({first, refused(3, 4, {9, 9, 9})}));
  CHECK(explained({first, refused(3, 5, {9}), made(4, 6, 2, {8}, 0, {c})}));
}

}  // namespace
