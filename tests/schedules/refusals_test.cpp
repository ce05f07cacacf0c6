// Operations that must succeed, and the reasons of refusals, under every schedule of two threads.

#include "../support/check_schedules.hpp"
#include "../support/pairs_of_tokens.hpp"
#include "../support/scheduled_policies.hpp"

#include <pagedkv/pagedkv.hpp>
#include <pagedkv/policy/eviction/clock_sweep.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/generators/catch_generators_adapters.hpp>
#include <catch2/generators/catch_generators_random.hpp>

#include <array>
#include <atomic>

namespace {

using namespace pagedkv;
using namespace pagedkv::testing;

/// The prompt fits at all times: another thread holds only its prefix, or blocks that it does not need.
template <class Cache>
void prompt_meets_its_prefix(execution& e) {
  auto cache = Cache{pairs_of_tokens(2)};
  cache_prompt(cache, 1, 2);
  e.spawn([&] {
    for (auto i = 0; i < 2; ++i) {
      const auto pinned = cache.pin(std::array<token, 2>{1, 2});
      e.expect(pinned.has_value() && cache.unpin(pinned->id), "cannot pin, or unpin");
    }
  });
  e.spawn(
      [&] { e.expect(cache.create_sequence(std::array<token, 3>{1, 2, 3}).has_value(), "refused though it fits"); });
  e.run();
}

/// A block that another thread has released is available at once, with or without a prefix.
template <class Cache>
void prompt_follows_a_release(execution& e) {
  auto cache = Cache{pairs_of_tokens(3)};
  cache_prompt(cache, 1, 2);
  const auto made = cache.create_sequence(std::array<token, 4>{5, 6, 7, 8}).value().id;
  e.expect(cache.commit(made, 4).has_value(), "cannot commit");
  auto released = scheduled<bool>{false};
  e.spawn([&] {
    e.expect(cache.release(made).has_value(), "cannot release");
    released.store(true, std::memory_order_release);
  });
  e.spawn([&] {
    const auto fits = released.load(std::memory_order_acquire);
    const auto created = cache.create_sequence(std::array<token, 5>{1, 2, 3, 4, 5});
    e.expect(!fits || created.has_value(), "refused though it fits");
  });
  e.run();
}

TEST_CASE("a prompt that fits is not refused under any schedule of two threads", "[refusals][scheduler][random]") {
  const auto seed = GENERATE(take(1, random(0U, 0xffff'ffffU)));
  using scheduled_lock_free_cache = kv_cache<float32, stepwise_lock_free<>, scheduled_sweep<>>;
  using scheduled_sharded_cache = kv_cache<float32, scheduled_sharded_mutex>;
  for (const auto body :
       {prompt_meets_its_prefix<scheduled_lock_free_cache>, prompt_meets_its_prefix<scheduled_sharded_cache>,
        prompt_follows_a_release<scheduled_lock_free_cache>, prompt_follows_a_release<scheduled_sharded_cache>}) {
    check_complete(explorer{{.preemptions = 2}}.exhaustive(body));
    check_passes(explorer{{.preemptions = 6, .surprises = 2}}.random(body, seed, 5'000));
  }
}

/// An update collects the rows of a batch first, and copies them later.
void update_races_truncate(execution& e) {
  auto cache = kv_cache<float32, scheduled_sharded_mutex>{pairs_of_tokens(6)};
  const auto id = cache.create_sequence(std::array<token, 3>{1, 2, 3}).value().id;
  e.spawn([&] {
    auto batch = compressed_batch{1, 8};
    e.expect(cache.update(batch, std::array{id}).has_value(), "a batch is refused where it should wait");
  });
  e.spawn([&] { e.expect(cache.truncate(id, 1).has_value(), "cannot truncate"); });
  e.run();
}

TEST_CASE("under mutexes a batch waits for a sequence that changes", "[refusals][scheduler]") {
  check_complete(explorer{{.preemptions = 3}}.exhaustive(update_races_truncate));
}

/// One entry, which each thread takes and releases.
void too_many_sequences(execution& e) {
  auto config = pairs_of_tokens(4);
  config.max_sequences = 1;
  auto cache = kv_cache<float32, scheduled_lock_free<>, scheduled_sweep<>>{config};
  for (auto thread = 0; thread < 2; ++thread) {
    e.spawn([&] {
      const auto made = cache.create_sequence({});
      if (made) {
        e.expect(cache.release(made->id).has_value(), "a sequence cannot be released");
      } else {
        e.expect(made.error().code == error_code::limit_reached, "refused for another reason");
      }
    });
  }
  e.run();
}

TEST_CASE("a sequence beyond the limit is refused as such, also when another ends meanwhile", "[refusals][scheduler]") {
  check_complete(explorer{{.preemptions = 1}}.exhaustive(too_many_sequences));
}

}  // namespace
