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

#include <cstddef>
#include <cstdint>
#include <random>
#include <tuple>
#include <vector>

namespace {

using namespace pagedkv;
using namespace pagedkv::testing;

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
using scheduled_cache = kv_cache<float32, scheduled_lock_free<Atomic>, scheduled_sweep<Atomic>>;

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

}  // namespace
