#include "../support/scheduled_policies.hpp"

#include <pagedkv/pagedkv.hpp>
#include <pagedkv/policy/eviction/clock.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/generators/catch_generators_adapters.hpp>
#include <catch2/generators/catch_generators_random.hpp>

#include <array>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

namespace {

using namespace pagedkv;
using namespace pagedkv::testing;

using cache_under_test = kv_cache<float32, scheduled_lock_free<>, pagedkv::clock<1, scheduled>>;

cache_config small() {
  auto config = cache_config{};
  config.head_dim = 1;
  config.block_size = 2;
  config.num_blocks = 6;
  config.max_sequences = 8;
  config.hash_seed = 1;
  return config;
}

std::vector<token> text(std::size_t num_tokens, token first = 0) {
  auto tokens = std::vector<token>(num_tokens);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

/// What the thread that is going to be stopped does, on a sequence of its own with five tokens, two blocks of them
/// shared.
struct stopped_operation {
  const char* name;
  std::function<void(cache_under_test&, sequence_id)> run;
};

std::vector<stopped_operation> operations() {
  const auto ignore = [](const auto& outcome) { static_cast<void>(outcome); };
  return {
      {"create", [=](cache_under_test& cache, sequence_id) { ignore(cache.create_sequence(text(5))); }},
      {"create that evicts", [=](cache_under_test& cache, sequence_id) { ignore(cache.create_sequence(text(4, 50))); }},
      {"create that is refused",
       [=](cache_under_test& cache, sequence_id) { ignore(cache.create_sequence(text(12, 70))); }},
      {"append", [=](cache_under_test& cache, sequence_id id) { ignore(cache.append(id, text(3))); }},
      {"commit",
       [=](cache_under_test& cache, sequence_id id) {
         ignore(cache.append(id, token{9}));
         ignore(cache.commit(id, 6));
       }},
      {"fork", [=](cache_under_test& cache, sequence_id id) { ignore(cache.fork(id)); }},
      {"truncate", [=](cache_under_test& cache, sequence_id id) { ignore(cache.truncate(id, 1)); }},
      {"drop before", [=](cache_under_test& cache, sequence_id id) { ignore(cache.drop_before(id, 4)); }},
      {"release", [=](cache_under_test& cache, sequence_id id) { ignore(cache.release(id)); }},
      {"look-up", [=](cache_under_test& cache, sequence_id) { ignore(cache.find_prefix(text(6))); }},
      {"pin",
       [=](cache_under_test& cache, sequence_id) {
         if (const auto pinned = cache.pin(text(4))) {
           ignore(cache.unpin(pinned->id));
         }
       }},
      {"step",
       [=](cache_under_test& cache, sequence_id id) {
         if (const auto step = cache.begin_step()) {
           ignore(cache.release(id));
           ignore(cache.retire_step(*step));
         }
       }},
  };
}

/// One of everything, whatever its outcome.
void one_of_everything(cache_under_test& cache, token first) {
  static_cast<void>(cache.find_prefix(text(6)));
  if (const auto step = cache.begin_step()) {
    static_cast<void>(cache.retire_step(*step));
  }
  if (const auto made = cache.create_sequence(text(3, first))) {
    static_cast<void>(cache.append(made->id, token{1}));
    static_cast<void>(cache.commit(made->id, 3));
    if (const auto copy = cache.fork(made->id)) {
      static_cast<void>(cache.append(*copy, token{1}));
      static_cast<void>(cache.release(*copy));
    }
    static_cast<void>(cache.truncate(made->id, 1));
    static_cast<void>(cache.release(made->id));
  }
}

TEST_CASE("a thread stopped anywhere in an operation of a lock-free cache stops no other", "[progress][scheduler]") {
  const auto seed = GENERATE(take(1, random(0U, 0xffff'ffffU)));
  for (const auto& stopped : operations()) {
    const auto body = [&](execution& e) {
      auto cache = cache_under_test{small()};
      const auto own = cache.create_sequence(text(5)).value().id;
      cache.commit(own, 5).value();
      const auto gone = cache.create_sequence(text(3, 30)).value().id;
      cache.commit(gone, 3).value();
      cache.release(gone).value();
      e.spawn([&] { stopped.run(cache, own); });
      e.spawn([&] { one_of_everything(cache, 0); });
      e.spawn([&] { one_of_everything(cache, 90); });
      e.run();
      if (e.failure().empty()) {
        for (const auto& sentence : cache.check_invariants()) {
          e.fail(sentence);
        }
      }
    };
    const auto found = explorer{{.preemptions = 4, .max_steps = 20'000}}.stopped_anywhere(body, 1, seed);
    CAPTURE(stopped.name, seed, found.failure, found.schedule);
    CHECK(found.failure.empty());
    CHECK(found.complete);
    CHECK(found.schedules > 4);
  }
}

/// The other thread's operation is answered at once and has changed nothing, and the sequence is as good as before.
TEST_CASE("a second operation on a sequence is told that it is busy, wherever the first is", "[progress][scheduler]") {
  const auto seed = GENERATE(take(1, random(0U, 0xffff'ffffU)));
  auto times_busy = 0;
  const auto body = [&](execution& e) {
    auto cache = cache_under_test{small()};
    const auto shared = cache.create_sequence(text(3)).value().id;
    auto num_appended = std::array{0, 0};
    for (auto thread = std::size_t{0}; thread < 2; ++thread) {
      e.spawn([&, thread] {
        for (auto i = 0; i < 2; ++i) {
          const auto appended = cache.append(shared, text(2));
          num_appended[thread] += appended ? 2 : 0;
          times_busy += !appended;
          e.expect(appended || appended.error().code == error_code::sequence_busy, "refused for another reason");
        }
      });
    }
    e.run();
    e.expect(cache.describe(shared).value().num_tokens == 3 + num_appended[0] + num_appended[1],
             "an operation that was told 'busy' has changed the sequence, or one that succeeded has not");
    for (const auto& sentence : cache.check_invariants()) {
      e.fail(sentence);
    }
  };
  const auto found = explorer{{.preemptions = 4}}.stopped_anywhere(body, 1, seed);
  CAPTURE(seed, found.failure, found.schedule);
  CHECK(found.failure.empty());
  CHECK(found.complete);
  CHECK(times_busy > 0);
}

template <class Cache>
void pin_races_release(execution& e) {
  auto config = small();
  config.num_blocks = 2;  // none is free
  auto cache = Cache{config};
  const auto id = cache.create_sequence(text(4)).value().id;
  cache.commit(id, 4).value();
  e.spawn([&] { e.expect(cache.release(id).has_value(), "a sequence cannot be released"); });
  e.spawn([&] {
    const auto pinned = cache.pin(text(4));
    e.expect(pinned.has_value() && pinned->num_tokens == 4, "a prefix that stays cached cannot be pinned");
  });
  e.run();
  for (const auto& sentence : cache.check_invariants()) {
    e.fail(sentence);
  }
}

TEST_CASE("a prefix that stays cached is pinned, wherever its release is", "[progress][scheduler]") {
  using sharded_cache = kv_cache<float32, scheduled_sharded_mutex, lru>;
  for (const auto& body : {scenario{pin_races_release<cache_under_test>}, scenario{pin_races_release<sharded_cache>}}) {
    const auto found = explorer{{.preemptions = 1}}.exhaustive(body);
    CAPTURE(found.failure, found.schedule, found.schedules);
    CHECK(found.failure.empty());
    CHECK(found.complete);
  }
}

}  // namespace
