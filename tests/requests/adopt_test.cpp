#include "../support/messages.hpp"
#include "tracked_cache.hpp"

#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace {

using namespace pagedkv;
using namespace pagedkv::test;

constexpr auto of_another_salt = sequence_options{.salt = salt{9}, .priority = 20};

/// A sequence that no request has, committed to its end.
template <class Cache>
[[nodiscard]] sequence_id created(tracked_cache<Cache>& under_test, const std::vector<token>& tokens) {
  const auto made = under_test.cache.create_sequence(tokens, of_another_salt);
  REQUIRE(made);
  REQUIRE(under_test.cache.commit(made->id, std::ssize(tokens)));
  return made->id;
}

TEMPLATE_LIST_TEST_CASE("an adopted sequence is a request like any other", "[requests]", caches) {
  for (auto how = 0; how < 4; ++how) {
    CAPTURE(how);
    auto under_test = tracked_cache<TestType>{16};
    auto& tracker = under_test.tracker;
    auto tokens = under_test.fresh_tokens(2 * block_size + 1);
    const auto sequence = created(under_test, tokens);
    const auto before = under_test.running(1);
    under_test.cache.advance_time(timestamp{30});
    const auto id = tracker.adopt(sequence, with_priority(70, true)).value();
    CHECK(under_test.in_use() == 4);
    const auto described = tracker.describe(id).value();
    CHECK(described.state == request_state::running);
    CHECK(described.sequence == sequence);
    CHECK(described.options.sequence.salt == salt{9});
    CHECK(described.options.sequence.priority == 70);
    CHECK(described.options.sequence.num_prompt_tokens == 2 * block_size + 1);
    CHECK(described.options.may_preempt);
    CHECK(described.submitted == timestamp{30});
    CHECK(described.arrival > tracker.describe(before)->arrival);
    CHECK(under_test.cache.describe(sequence)->num_computed_tokens == 2 * block_size + 1);

    REQUIRE(tracker.append(id, token{-1}));
    tokens.push_back(-1);
    switch (how) {
      case 0: REQUIRE(tracker.finish(id)); break;
      case 1: REQUIRE(tracker.cancel(id)); break;
      case 2: REQUIRE(tracker.fail(id, some_failure)); break;
      default: {
        REQUIRE(tracker.preempt(id));
        CHECK(under_test.in_use() == 1);
        const auto resumed = tracker.resume(id, tokens).value();  // finds its blocks: the salt is the sequence's
        CHECK(resumed.num_cached_tokens == 2 * block_size);
        CHECK(under_test.cache.describe(resumed.sequence)->num_prompt_tokens == 2 * block_size + 1);
        REQUIRE(tracker.finish(id));
      }
    }
    CHECK(under_test.in_use() == 1);
    CHECK(code_of(under_test.cache.release(sequence)) == error_code::unknown_sequence);
    CHECK(tracker.statistics().submitted == 2);
    under_test.check_invariants();
  }
}

TEMPLATE_LIST_TEST_CASE("an adopted sequence gives way to a higher rank", "[requests]", caches) {
  auto under_test = tracked_cache<TestType>{4};
  auto& tracker = under_test.tracker;
  const auto id = tracker.adopt(created(under_test, under_test.fresh_tokens(3 * block_size)), with_priority(30));
  REQUIRE(id);
  const auto higher = tracker.submit(under_test.fresh_tokens(2 * block_size), with_priority(31, true));
  REQUIRE(higher);
  CHECK(higher.preempted() == std::vector{*id});
  CHECK(under_test.state(*id) == request_state::preempted);
  under_test.check_invariants();
}

TEMPLATE_LIST_TEST_CASE("the prompt of an adopted sequence may still be appended, and may be the caller's",
                        "[requests]", caches) {
  auto under_test = tracked_cache<TestType>{8};
  auto& tracker = under_test.tracker;
  const auto tokens = under_test.fresh_tokens(3 * block_size);
  const auto made = under_test.cache.create_sequence(tokens, {.first_chunk = block_size}).value();
  const auto id = tracker.adopt(made.id).value();
  CHECK(tracker.describe(id)->options.sequence.num_prompt_tokens == 3 * block_size);
  auto rest = std::vector(tokens.begin() + block_size, tokens.end());
  auto slots = std::vector<slot>(rest.size());
  auto failures = std::array<batch_failure, 1>{};
  const auto entries = std::array{batch_entry{.id = made.id, .run = rest}};
  const auto done = tracker.append_batch(std::array{id}, entries, {.slots = slots, .failures = failures});
  REQUIRE(done);
  CHECK(done->num_failures == 0);
  CHECK(under_test.in_use() == 3);
  REQUIRE(tracker.finish(id));

  auto options = request_options{};
  options.sequence.num_prompt_tokens = 2 * block_size;
  const auto other = under_test.cache.create_sequence(under_test.fresh_tokens(block_size)).value();
  const auto with_own = tracker.adopt(other.id, options).value();
  REQUIRE(tracker.preempt(with_own));
  const auto resumed = tracker.resume(with_own, under_test.fresh_tokens(2 * block_size + 1)).value();
  CHECK(under_test.cache.describe(resumed.sequence)->num_prompt_tokens == 2 * block_size);
}

TEMPLATE_LIST_TEST_CASE("a sequence that cannot be adopted is refused and stays as it is", "[requests][messages]",
                        caches) {
  auto under_test = tracked_cache<TestType>{8, {.max_open = 2}};
  auto& tracker = under_test.tracker;
  const auto id = under_test.running(1);
  const auto held = under_test.sequence(id);
  const auto own = created(under_test, under_test.fresh_tokens(2 * block_size));
  const auto adopted = tracker.adopt(own).value();
  REQUIRE(tracker.finish(id));
  const auto number = [](sequence_id sequence) { return std::to_string(static_cast<std::int64_t>(sequence)); };
  CHECK(said(tracker.adopt(own)) == "in use: id of a sequence that a request holds is " + number(own));
  CHECK(said(tracker.adopt(held)) == "unknown sequence: sequence id is " + number(held));
  CHECK(code_of(tracker.adopt(sequence_id{})) == error_code::unknown_sequence);

  const auto another = created(under_test, under_test.fresh_tokens(2 * block_size));
  const auto last = under_test.running(1);
  CHECK(said(tracker.adopt(another)) ==
        "limit reached: number of requests that have not ended, at most tracker_config.max_open, is 3, limit 2");
  CHECK(under_test.in_use() == 5);
  CHECK(under_test.cache.describe(another)->num_computed_tokens == 2 * block_size);
  CHECK(tracker.statistics().refused == 4);
  CHECK(tracker.statistics().running == 2);
  REQUIRE(tracker.finish(last));
  REQUIRE(tracker.finish(adopted));
  REQUIRE(under_test.cache.release(another));  // still the caller's
  CHECK(under_test.in_use() == 0);
  under_test.check_invariants();
}

TEMPLATE_LIST_TEST_CASE("a tracker that ends releases what it adopted", "[requests]", caches) {
  auto cache = TestType{{.block_size = block_size, .num_blocks = 16}};
  {
    auto tracker = request_tracker{cache};
    REQUIRE(tracker.adopt(cache.create_sequence(std::vector<token>(7, 1))->id));
  }
  CHECK(cache.statistics().num_sequences == 0);
}

TEST_CASE("a cache that tells nothing of its sequences has none to adopt", "[requests]") {
  constexpr auto adopts = []<class Tracker>(Tracker& tracker) {
    return requires(sequence_id id) { tracker.adopt(id); };
  };
  auto one = tracked_cache<minimal_cache>{8};
  auto other = tracked_cache<kv_cache<>>{8};
  CHECK_FALSE(adopts(one.tracker));
  CHECK(adopts(other.tracker));
}

}  // namespace
