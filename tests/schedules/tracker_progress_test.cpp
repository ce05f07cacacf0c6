#include "../support/check_schedules.hpp"
#include "scheduled_cache.hpp"

#include <pagedkv/pagedkv.hpp>
#include <pagedkv/policy/eviction/clock_sweep.hpp>
#include <pagedkv/policy/locking/lock_free.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/generators/catch_generators_adapters.hpp>
#include <catch2/generators/catch_generators_random.hpp>

#include <functional>
#include <span>
#include <vector>

namespace {

using namespace pagedkv;
using namespace pagedkv::testing;

using tracker_under_test = request_tracker<cache_under_test>;

request_options ranked(std::uint8_t priority) {
  auto options = request_options{};
  options.sequence.priority = priority;
  options.may_preempt = true;
  return options;
}

/// The operation of the thread that will be stopped, on a request that other threads also know.
struct stopped_request {
  const char* name;
  std::function<void(cache_under_test&, tracker_under_test&, const submission&)> run;
};

std::vector<stopped_request> operations() {
  return {
      {"submit",
       [](cache_under_test&, tracker_under_test& tracker, const submission&) { ignore(tracker.submit(numbered(3, 40))); }},
      {"submit that preempts",
       [](cache_under_test&, tracker_under_test& tracker, const submission&) {
         ignore(tracker.submit(numbered(7, 40), ranked(90)));
       }},
      {"append",
       [](cache_under_test&, tracker_under_test& tracker, const submission& known) {
         ignore(tracker.append(known.id, numbered(3, 50)));
       }},
      {"append to the sequence, behind the tracker's back",
       [](cache_under_test& cache, tracker_under_test&, const submission& known) {
         ignore(cache.append(known.sequence, numbered(3, 50)));
       }},
      {"preempt and resume",
       [](cache_under_test&, tracker_under_test& tracker, const submission& known) {
         ignore(tracker.preempt(known.id));
         ignore(tracker.resume(known.id, numbered(5, 0)));
       }},
      {"fork",
       [](cache_under_test&, tracker_under_test& tracker, const submission& known) {
         if (const auto forked = tracker.fork(known.id)) {
           ignore(tracker.append(forked->id, numbered(2, 60)));
           ignore(tracker.finish(forked->id));
         }
       }},
      {"finish",
       [](cache_under_test&, tracker_under_test& tracker, const submission& known) {
         ignore(tracker.finish(known.id));
         tracker.purge();
       }},
      {"gain",
       [](cache_under_test& cache, tracker_under_test&, const submission& known) {
         ignore(cache.gain_of_releasing(std::span{&known.sequence, 1}, numbered(5, 0)));
       }},
  };
}

/// One operation of every kind of a tracker, with any result.
void one_of_everything(tracker_under_test& tracker, request_id known, token first, bool ends) {
  if (const auto made = tracker.submit(numbered(3, first), ranked(70))) {
    ignore(tracker.append(made->id, numbered(2, first)));
    ignore(tracker.preempt(made->id));
    ignore(tracker.resume(made->id, numbered(5, first)));
    ignore(tracker.finish(made->id));
  }
  ignore(tracker.append(known, numbered(1, first)));
  if (ends) {
    ignore(tracker.preempt(known));
    ignore(tracker.cancel(known));
  }
  ignore(tracker.describe(known));
  tracker.purge();
  ignore(tracker.statistics());
}

TEST_CASE("a thread stopped anywhere in the cache stops no other that uses the tracker",
          "[progress][scheduler][random]") {
  const auto seed = GENERATE(take(1, random(0U, 0xffff'ffffU)));
  const auto ends = GENERATE(false, true);
  for (const auto& stopped : operations()) {
    const auto body = [&](execution& e) {
      auto cache = cache_under_test{six_blocks()};
      {
        auto tracker = tracker_under_test{cache};
        const auto known = tracker.submit(numbered(5, 0)).value();
        cache.commit(known.sequence, 5).value();
        ignore(tracker.submit(numbered(3, 30), ranked(10)));
        e.spawn([&] { stopped.run(cache, tracker, known); });
        e.spawn([&] { one_of_everything(tracker, known.id, 70, ends); });
        e.spawn([&] { one_of_everything(tracker, known.id, 90, false); });
        e.run();
      }
      if (e.failure().empty()) {
        e.expect(cache.statistics().num_sequences == 0, "a sequence is left over");
        expect_sound(e, cache);
      }
    };
    const auto found = explorer{{.preemptions = 4, .max_steps = 20'000}}.stopped_anywhere(body, 1, seed);
    CAPTURE(stopped.name);
    check_complete(found);
    CHECK((ends || found.schedules > 4));
  }
}

TEST_CASE("a thread stopped in a look-up of what a request published ahead of its launch stops none that preempts",
          "[progress][scheduler]") {
  const auto body = [&](execution& e) {
    auto cache = cache_under_test{six_blocks()};
    {
      auto tracker = tracker_under_test{cache};
      const auto step = cache.begin_step().value();
      const auto known = tracker.submit(numbered(8, 0), ranked(10)).value();
      cache.commit(known.sequence, 8).value();
      ignore(tracker.submit(numbered(4, 30), ranked(95)));
      e.spawn([&] { ignore(cache.find_prefix(numbered(9, 0))); });
      e.spawn([&] {
        if (const auto made = tracker.submit(numbered(3, 70), ranked(90)); !made) {
          e.expect(made.error().code == error_code::capacity_exhausted, "another error");
        }
      });
      e.run();
      ignore(cache.retire_step(step));
    }
    if (e.failure().empty()) {
      expect_sound(e, cache);
    }
  };
  check_complete(explorer{{.preemptions = 4, .max_steps = 20'000}}.stopped_anywhere(body, 1, 1));
}

}  // namespace
