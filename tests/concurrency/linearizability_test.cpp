#include "../support/full_numbers.hpp"
#include "../support/mutants.hpp"
#include "../support/recorder.hpp"
#include "../support/scheduled_policies.hpp"

#include <pagedkv/policy/eviction/clock_sweep.hpp>

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
#include <thread>
#include <tuple>
#include <vector>

namespace {

using namespace pagedkv;
using namespace pagedkv::testing;

constexpr auto block_size = std::size_t{2};
constexpr auto num_blocks = std::size_t{5};

cache_config small() {
  auto config = cache_config{};
  config.block_size = block_size;
  config.num_blocks = num_blocks;
  config.max_sequences = 16;
  config.hash_seed = 1;
  return config;
}

template <class Cache>
std::vector<operation> all_of(const std::vector<recorded_thread<Cache>>& threads) {
  auto all = std::vector<operation>{};
  for (const auto& thread : threads) {
    all.insert(all.end(), thread.history().begin(), thread.history().end());
  }
  return all;
}

/// Threads that execute the operations of a generator; their history must be linearisable and leave a sound cache.
template <class Cache>
scenario random_history(std::uint64_t program, std::size_t num_threads, int num_operations) {
  return [=](execution& e) {
    auto cache = Cache{small()};
    // Gives operations numbers that order them, like a shared clock.
    auto time = scheduled<std::uint64_t>{0};
    auto threads = std::vector(num_threads, recorded_thread<Cache>{cache, [&] { return time.fetch_add(1); }});
    for (auto i = std::size_t{0}; i < num_threads; ++i) {
      e.spawn([&, i] {
        auto random = std::mt19937_64{program + i};
        for (auto n = 0; n < num_operations; ++n) {
          threads[i].act(random);
        }
      });
    }
    e.run();
    if (!e.failure().empty()) {
      return;
    }
    for (auto& thread : threads) {
      thread.wind_up();
      if (!thread.failure().empty()) {
        return e.fail(thread.failure());
      }
    }
    for (const auto& sentence : cache.check_invariants()) {
      e.fail(sentence);
    }
    e.expect(cache.statistics().blocks.in_use == 0, "blocks are in use when every sequence has ended");
    if (const auto history = all_of(threads); !linearizable(history, block_size, num_blocks)) {
      e.fail("no order explains\n" + to_text(history));
    }
  };
}

template <template <class> class Atomic>
using scheduled_cache = kv_cache<float32, scheduled_lock_free<Atomic>, basic_clock_sweep<1, Atomic>>;

template <class... Lockings>
auto scheduled_caches(policy_list<Lockings...>) -> std::tuple<
    kv_cache<float32, typename scheduled_form<Lockings>::locking, typename scheduled_form<Lockings>::eviction>...>;
using caches = decltype(scheduled_caches(concurrent_lockings{}));

const auto scale = scaled<std::uint64_t>(1, 20);

TEMPLATE_LIST_TEST_CASE("histories under random schedules are linearisable", "[linearizability][scheduler][random]",
                        caches) {
  const auto seed = GENERATE(take(2, random(0U, 0xffff'ffffU)));
  const auto surprises = GENERATE(0U, 3U);
  const auto num_threads = GENERATE(std::size_t{2}, std::size_t{3});
  auto explored = explorer{{.preemptions = 20, .surprises = surprises, .max_steps = 50'000}};
  const auto programs = 200 * scale;
  for (auto program = std::uint64_t{seed}; program < seed + programs; ++program) {
    const auto found = explored.random(random_history<TestType>(program, num_threads, 4), seed, 20);
    INFO(found.failure);
    CAPTURE(program, num_threads, found.seed, found.schedule);
    REQUIRE(found.failure.empty());
  }
}

TEST_CASE("a cache on words without compare-and-swap is not linearisable", "[linearizability][scheduler]") {
  auto explored = explorer{{.preemptions = 20, .max_steps = 50'000}};
  auto caught = false;
  for (auto program = std::uint64_t{0}; program < 200 && !caught; ++program) {
    caught =
        !explored.random(random_history<scheduled_cache<load_then_store>>(program, 3, 4), program, 10).failure.empty();
  }
  CHECK(caught);
}

using threaded_caches = std::tuple<kv_cache<float32, lock_free, clock_sweep>, kv_cache<float32, basic_sharded_mutex<2>>,
                                   kv_cache<float32, rw_lock>>;

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
  {
    auto workers = std::vector<std::jthread>{};
    for (auto i = std::size_t{0}; i < num_threads; ++i) {
      workers.emplace_back([&, i] {
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
    }
  }
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
