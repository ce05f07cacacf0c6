#include "../support/audited_lru.hpp"
#include "../support/check_schedules.hpp"
#include "../support/ordered_blocks.hpp"
#include "../support/scheduled_policies.hpp"

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include <algorithm>
#include <vector>

namespace {

using namespace pagedkv;
using namespace pagedkv::testing;

using scheduled_policy = audited_lru<scheduled_data<int>>;

template <bool SecondLook = true>
using scheduled_blocks = ordered_blocks<scheduled, order_of<scheduled_policy, scheduled_mutex>, SecondLook>;

/// Runs the threads. Afterwards the order lists exactly the unreferenced blocks.
template <class Blocks>
void run_and_check(execution& e, Blocks& blocks) {
  scheduled_policy::reset();
  e.run();
  const auto idle = blocks.idle_blocks();
  e.expect(blocks.drain() == idle, "a block is lost, or listed though in use");
  e.expect(scheduled_policy::num_violations() == 0, "the policy is not called as agreed");
}

void hit_races_eviction(execution& e) {
  auto blocks = scheduled_blocks<>{1};
  e.spawn([&] {
    if (blocks.hit(block_id{0})) {
      blocks.let_go(block_id{0});
    }
  });
  e.spawn([&] {
    if (blocks.evict() != no_block) {
      blocks.let_go(block_id{0});
    }
  });
  run_and_check(e, blocks);
}

/// The hitter may act between the release and its report, and keeps the block.
template <bool SecondLook>
void hit_races_release(execution& e) {
  auto blocks = scheduled_blocks<SecondLook>{1};
  e.expect(blocks.hit(block_id{0}), "an idle block cannot be hit");
  e.spawn([&] { blocks.let_go(block_id{0}); });
  e.spawn([&] { static_cast<void>(blocks.hit(block_id{0})); });
  run_and_check(e, blocks);
}

template <bool SecondLook>
void release_races_what_forgets(execution& e) {
  auto blocks = scheduled_blocks<SecondLook>{1};
  e.expect(blocks.hit(block_id{0}), "an idle block cannot be hit");
  e.spawn([&] { blocks.let_go(block_id{0}); });
  e.spawn([&] { static_cast<void>(blocks.forget(block_id{0})); });
  run_and_check(e, blocks);
}

/// Each evictor gets a block.
void evictors_race(execution& e) {
  auto blocks = scheduled_blocks<>{2};
  auto taken = std::vector<block_id>{};
  for (auto thread = 0; thread < 2; ++thread) {
    e.spawn([&] { taken.push_back(blocks.evict()); });
  }
  run_and_check(e, blocks);
  std::ranges::sort(taken);
  e.expect(taken == std::vector{block_id{0}, block_id{1}}, "refused while a block was listed, or one given out twice");
}

TEST_CASE("an order behind a mutex lists the unreferenced blocks under every schedule of two threads",
          "[guarded_order][scheduler]") {
  const auto limits = GENERATE(bounds{.preemptions = 4}, bounds{.preemptions = 2, .surprises = 1});
  for (const auto& body : {scenario{hit_races_eviction}, scenario{hit_races_release<true>},
                           scenario{release_races_what_forgets<true>}, scenario{evictors_race}}) {
    CAPTURE(limits.preemptions, limits.surprises);
    check_complete(explorer{limits}.exhaustive(body));
  }
  CHECK_FALSE(explorer{limits}.exhaustive(hit_races_release<false>).failure.empty());
  CHECK_FALSE(explorer{limits}.exhaustive(release_races_what_forgets<false>).failure.empty());
}

}  // namespace
