#include "injection.hpp"

#include <pagedkv/policy/eviction/clock_sweep.hpp>
#include <pagedkv/policy/locking/lock_free.hpp>
#include <pagedkv/requests/request_tracker.hpp>

#include <catch2/catch_template_test_macros.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

using namespace pagedkv;
using namespace pagedkv::test;

namespace {

template <class... Policies>
using requests_cache = kv_cache<float32, failing_allocator<>, failing_backend, Policies...>;

[[nodiscard]] cache_config small() {
  auto made = cache_config{.block_size = 4, .num_blocks = 24, .head_dim = 2, .max_sequences = 16};
  made.hash_seed = 1;
  return made;
}

[[nodiscard]] request_options with_priority(std::uint8_t priority, bool may_preempt = false) {
  auto options = request_options{};
  options.sequence.priority = priority;
  options.may_preempt = may_preempt;
  return options;
}

/// A tracker with requests in all states: one that runs and its fork, one whose tokens are not committed, one that is
/// preempted and one that has ended, whose blocks are evictable.
template <class Cache>
struct request_world {
  explicit request_world(fault_plan& plan)
      : cache(small(), failing_allocator<>{plan.memory}, failing_backend{plan.backend}), tracker(cache) {
    first = submitted(text(0, 22), 90, true);
    second = tracker.fork(first).value().id;
    third = submitted(text(200, 10), 20, false);
    waiting = submitted(text(300, 9), 10, false);
    REQUIRE(tracker.preempt(waiting));
    ended = submitted(text(500, 12), 50, true);
    REQUIRE(tracker.finish(ended));
    ids = {first, second, third, waiting, ended};
  }

  /// The facts that a failed operation leaves as they are: all but the tracker's count of refusals.
  [[nodiscard]] std::vector<std::int64_t> observe(bool counts_attempts = true) const {
    auto sequences = std::vector<sequence_id>{};
    auto facts = std::vector<std::int64_t>{};
    for (const auto id : ids) {
      const auto request = tracker.describe(id).value();
      facts.insert(facts.end(), {static_cast<std::int64_t>(request.state), static_cast<std::int64_t>(request.sequence),
                                 request.num_preemptions, static_cast<std::int64_t>(request.ended)});
      if (request.state == request_state::running) {
        sequences.push_back(request.sequence);
      }
    }
    const auto counts = tracker.statistics();
    facts.insert(facts.end(), {counts.submitted, counts.running, counts.preempted, counts.finished, counts.cancelled,
                               counts.failed, counts.preemptions, counts.kept_records});
    const auto of_cache = test::observe(cache, sequences, 1, counts_attempts);
    facts.insert(facts.end(), of_cache.begin(), of_cache.end());
    return facts;
  }

  /// With a sentence if a sequence has no request, or a request gave way and no operation has said so.
  [[nodiscard]] std::vector<std::string> check_invariants() const {
    auto broken = cache.check_invariants();
    if (cache.statistics().num_sequences != tracker.statistics().running) {
      broken.emplace_back("sequences are not those of running requests");
    }
    for (const auto id : ids) {
      if (id != waiting && tracker.describe(id).value().state == request_state::preempted &&
          std::ranges::find(reported, id) == reported.end()) {
        broken.emplace_back("a request gave way, and nobody knows");
      }
    }
    return broken;
  }

  /// Keeps the requests that an operation says it preempted, and returns its error.
  template <class Value>
  [[nodiscard]] std::optional<error> noted(const tracker_result<Value>& outcome) noexcept {
    for (const auto id : outcome.preempted()) {
      reported[num_reported++] = id;
    }
    return error_of(outcome.outcome());
  }

  [[nodiscard]] std::optional<error> append_batch(std::size_t num_entries) noexcept {
    const auto requests = std::array{second, first};
    auto entries = std::array<batch_entry, 2>{};
    for (std::size_t i = 0; i < num_entries; ++i) {
      entries[i] = {.id = tracker.describe(requests[i])->sequence, .run = run};
    }
    const auto outcome =
        tracker.append_batch(std::span{requests}.first(num_entries), std::span{entries}.first(num_entries),
                             {.slots = slots, .failures = failures});
    const auto reason = noted(outcome);
    return reason || outcome->num_failures == 0 ? reason : std::optional<error>{failures[0].reason};
  }

  /// Takes all blocks that are free or evictable, for a request that ranks low.
  void fill() {
    const auto num_tokens = static_cast<std::size_t>(4 * cache.num_available_blocks());
    ids.push_back(submitted(text(1'000, num_tokens), 5, false));
  }

  Cache cache;
  request_tracker<Cache, recompute> tracker;
  request_id first{}, second{}, third{}, waiting{}, ended{};
  sequence_id own{};  // of no request
  std::vector<request_id> ids;
  std::array<request_id, 16> reported{};
  std::size_t num_reported = 0;
  std::vector<token> longer = text(0, 30);
  std::vector<token> run = text(300, 9);
  std::vector<token> unknown = text(300, 22);
  std::vector<token> longest = text(2'000, 58);
  std::array<slot, 64> slots{};
  std::array<batch_failure, 4> failures{};

 private:
  [[nodiscard]] request_id submitted(const std::vector<token>& prompt, std::uint8_t priority, bool is_committed) {
    const auto made = tracker.submit(prompt, with_priority(priority, true)).value();
    if (is_committed) {
      REQUIRE(cache.commit(made.sequence, std::ssize(prompt)));
    }
    return made.id;
  }
};

using unlocked = requests_cache<>;
using lock_free_one = requests_cache<lock_free, clock_sweep>;

/// An operation that may preempt: requests that gave way before it failed stay preempted, and it succeeds when it is
/// repeated.
template <class World>
fault_counts inject_into_preempting(const faulty_operation<World>& preempting, fault_site site) {
  auto counts = fault_counts{};
  for (auto n = std::int64_t{1};; ++n) {
    CAPTURE(preempting.name, static_cast<int>(site), n);
    auto plan = fault_plan{};
    auto w = World{plan};
    preempting.prepare(w);
    const auto before = w.observe(false);
    plan.arm(site, n);
    const auto failure = preempting.run(w);
    const auto happened = plan.disarm();
    CHECK(w.check_invariants() == std::vector<std::string>{});
    if (failure) {
      CAPTURE(failure->message());
      REQUIRE(happened);
      ++counts.reported;
      CHECK(tells_of_a_fault(*failure));
      CHECK((w.num_reported != 0 || w.observe(false) == before));
      CHECK_FALSE(preempting.run(w));
      CHECK(w.check_invariants() == std::vector<std::string>{});
    }
    CHECK(w.num_reported != 0);
    if (!happened) {
      return counts;
    }
    ++counts.met;
  }
}

}  // namespace

TEMPLATE_TEST_CASE("each operation of a request tracker survives each fault", "[faults]", unlocked, lock_free_one) {
  using world = request_world<TestType>;
  using operation = faulty_operation<world>;
  constexpr auto operations = std::array{
      operation{"submit with a hit", [](world& w) { return w.noted(w.tracker.submit(w.longer)); }},
      operation{"submit without a hit", [](world& w) { return w.noted(w.tracker.submit(w.unknown)); }},
      operation{"submit, which evicts", [](world& w) { return w.noted(w.tracker.submit(w.longest)); }},
      operation{"resume", [](world& w) { return w.noted(w.tracker.resume(w.waiting, w.unknown)); }},
      without_faults(operation{"append", [](world& w) { return w.noted(w.tracker.append(w.third, token{7})); }}),
      operation{"append, which copies on write", [](world& w) { return w.noted(w.tracker.append(w.second, w.run)); }},
      operation{"append_batch of one", [](world& w) { return w.append_batch(1); }},
      operation{"append_batch", [](world& w) { return w.append_batch(2); }, [](world&) {}, false},
      operation{"fork", [](world& w) { return error_of(w.tracker.fork(w.first)); }},
      without_faults(operation{"adopt", [](world& w) { return error_of(w.tracker.adopt(w.own)); },
                               [](world& w) { w.own = w.cache.fork(w.tracker.describe(w.first)->sequence).value(); }}),
      without_faults(operation{"finish", [](world& w) { return error_of(w.tracker.finish(w.third)); }}),
      without_faults(
          operation{"finish of shared blocks", [](world& w) { return error_of(w.tracker.finish(w.first)); }}),
      without_faults(
          operation{"finish of a preempted one", [](world& w) { return error_of(w.tracker.finish(w.waiting)); }}),
      without_faults(operation{"cancel", [](world& w) { return error_of(w.tracker.cancel(w.second)); }}),
      without_faults(operation{"fail",
                               [](world& w) {
                                 return error_of(w.tracker.fail(w.third, {error_code::backend_failure, "a device"}));
                               }}),
      without_faults(operation{"preempt", [](world& w) { return error_of(w.tracker.preempt(w.third)); },
                               [](world& w) { w.reported[w.num_reported++] = w.third; }}),
      without_faults(operation{"describe", [](world& w) { return error_of(w.tracker.describe(w.third)); }}),
      without_faults(operation{"statistics",
                               [](world& w) -> std::optional<error> {
                                 static_cast<void>(w.tracker.statistics());
                                 return std::nullopt;
                               }}),
      without_faults(operation{"enqueue", [](world& w) { return error_of(w.tracker.enqueue()); }}),
      operation{"resumable", [](world& w) { return error_of(w.tracker.resumable()); }},
      without_faults(operation{"purge",
                               [](world& w) -> std::optional<error> {
                                 w.tracker.purge();
                                 return std::nullopt;
                               }}),
  };
  CHECK(inject_faults(operations) > 10);
}

TEMPLATE_TEST_CASE("operations of a request tracker that preempt survive each fault", "[faults]", unlocked,
                   lock_free_one) {
  using world = request_world<TestType>;
  using operation = faulty_operation<world>;
  constexpr auto fill = [](world& w) { w.fill(); };
  constexpr auto operations = std::array{
      operation{"submit, which preempts",
                [](world& w) { return w.noted(w.tracker.submit(w.run, with_priority(80, true))); }, fill},
      operation{"resume, which preempts", [](world& w) { return w.noted(w.tracker.resume(w.waiting, w.run)); }, fill},
      operation{"append, which preempts", [](world& w) { return w.noted(w.tracker.append(w.second, w.run)); }, fill},
      operation{"append_batch, which preempts", [](world& w) { return w.append_batch(1); }, fill},
  };
  CHECK(inject_faults(operations, inject_into_preempting<world>) > 10);
}

TEMPLATE_TEST_CASE("the construction of a request tracker survives each fault", "[faults]", unlocked, lock_free_one) {
  struct both {
    explicit both(fault_plan& plan)
        : cache(small(), failing_allocator<>{plan.memory}, failing_backend{plan.backend}), tracker(cache) {}
    TestType cache;
    request_tracker<TestType, recompute> tracker;
  };
  const auto make = [](fault_plan& plan) {
    const auto construct = [&]() -> result<std::unique_ptr<both>> { return std::make_unique<both>(plan); };
    return detail::with_errors(construct, error{error_code::out_of_memory, "a tracker"});
  };
  CHECK(inject_into_construction(make) > 5);
}
