#include "../support/check_schedules.hpp"
#include "../support/mutants.hpp"
#include "../support/scheduled.hpp"

#include <pagedkv/policy/locking/parts/thread_index.hpp>

#include <catch2/catch_test_macros.hpp>

namespace {

using namespace pagedkv;
using namespace pagedkv::testing;

/// Two threads claim, use and release a number in turn.
template <template <class> class Atomic>
void claims(execution& e) {
  auto registry = index_registry<Atomic>{};
  scheduled_data<int> places[2];
  bool held[2] = {};
  for (auto thread = 0; thread < 2; ++thread) {
    e.spawn([&] {
      for (auto round = 0; round < 2; ++round) {
        const auto index = registry.claim();
        e.expect(index < 2, "not the lowest");
        e.expect(index < registry.limit(), "beyond the limit");
        if (index < 2) {
          e.concerns_others();
          e.expect(!held[index], "claimed twice");
          held[index] = true;
          places[index].write(round);
          held[index] = false;
          registry.release(index);
        }
      }
    });
  }
  e.run();
}

TEST_CASE("an index belongs to one thread at a time under every schedule", "[thread_index][scheduler]") {
  check_complete(explorer{{.preemptions = 3, .surprises = 1}}.exhaustive(claims<scheduled>));
}

TEST_CASE("a thread stopped anywhere in the index registry stops no other", "[thread_index][scheduler]") {
  check_complete(explorer{}.stopped_anywhere(claims<scheduled>, 1, 1));
}

TEST_CASE("bugs planted in the index registry are caught", "[thread_index][scheduler]") {
  CHECK_FALSE(explorer{}.exhaustive(claims<load_then_store_or>).failure.empty());
  CHECK_FALSE(explorer{}.exhaustive(claims<unreleased>).failure.empty());
}

}  // namespace
