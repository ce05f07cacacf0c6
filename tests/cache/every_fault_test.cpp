#include "../support/allocation_count.hpp"
#include "../support/cache_fixture.hpp"
#include "../support/recording_backend.hpp"

#include <pagedkv/policy/eviction/lru.hpp>

#include <catch2/catch_template_test_macros.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

using namespace pagedkv;
using namespace pagedkv::test;

namespace {

using one_group = kv_cache<float32, recording_backend>;
using many_groups = group_cache<float32, recording_backend>;

template <class Cache>
[[nodiscard]] cache_config crowded() {
  auto config = small_cache(40);
  if constexpr (std::is_same_v<Cache, many_groups>) {
    config.groups = {
        {.num_layers = 1, .key_dim = 2, .value_dim = 2},
        {.kind = group_kind::window, .num_layers = 1, .key_dim = 2, .value_dim = 2, .window = 7},
        {.kind = group_kind::state, .num_layers = 1, .num_kv_heads = 1, .state_bytes = 48},
    };
  }
  return config;
}

/// A cache amid its work: sequences that share blocks, partial ones among them, blocks of prompts that ended, and no free
/// one.
template <class Cache>
struct scene {
  recording_backend::log log;
  Cache cache{crowded<Cache>(), {}, recording_backend{log}};
  sequence_id first = committed(text(0, 14));
  sequence_id fork = cache.fork(first).value();
  sequence_id other = committed(text(0, 22));
  sequence_id twin = cache.fork(other).value();
  pin_id pin = cache.pin(text(500, 8)).value().id;

  scene() {
    log.calls.reserve(256);
    for (const auto from : {1000, 2000, 3000, 4000, 5000, 6000}) {
      REQUIRE(cache.release(committed(text(from, 25))));
    }
    REQUIRE(cache.append(first, text(7000, 3)));
  }

  [[nodiscard]] sequence_id committed(const tokens& prompt) {
    const auto id = cache.create_sequence(prompt).value().id;
    const auto length = std::ssize(prompt);
    if constexpr (std::is_same_v<Cache, many_groups>) {
      while (cache.describe(id)->num_computed_tokens < length) {
        REQUIRE(cache.commit(id, std::min(length, cache.next_saved_length(id).value())));
      }
    } else {
      REQUIRE(cache.commit(id, length));
    }
    return id;
  }
};

constexpr auto num_dropped = std::int64_t{12};  // by the operation that drops tokens

/// Everything that a caller can observe, but for counts of what was tried.
struct observed {
  block_counts blocks;
  std::int64_t num_sequences;
  std::int64_t evictions;
  std::int64_t copies;
  std::vector<std::int64_t> hits;
  std::vector<tokens> texts;
  std::vector<std::int64_t> computed;
  std::vector<std::vector<block_id>> tables;
};

void check_same_sequences(const observed& seen, const observed& wanted) {
  CHECK(seen.num_sequences == wanted.num_sequences);
  CHECK(seen.blocks.in_use == wanted.blocks.in_use);
  CHECK(seen.copies == wanted.copies);
  CHECK(seen.texts == wanted.texts);
  CHECK(seen.computed == wanted.computed);
}

/// The ids of new blocks may differ, so tables are compared where there are none.
void check_same(const observed& seen, const observed& wanted) {
  check_same_sequences(seen, wanted);
  CHECK(seen.blocks == wanted.blocks);
  CHECK(seen.evictions == wanted.evictions);
  CHECK(seen.hits == wanted.hits);
}

/// Blocks that were evicted for a copy are free when the copy fails.
void check_same_but_for_evictions(const observed& seen, const observed& wanted) {
  check_same_sequences(seen, wanted);
  CHECK(seen.blocks.free - wanted.blocks.free == wanted.blocks.evictable - seen.blocks.evictable);
}

template <class Cache>
[[nodiscard]] observed look_at(const scene<Cache>& at) {
  const auto statistics = at.cache.statistics();
  auto seen =
      observed{statistics.blocks, statistics.num_sequences, statistics.evictions, statistics.copies, {}, {}, {}, {}};
  for (const auto from : {0, 500, 1000, 2000, 3000, 4000, 5000, 6000}) {
    seen.hits.push_back(num_cached(at.cache, text(from, 25)));
  }
  for (const auto id : {at.first, at.fork, at.other, at.twin}) {
    const auto info = at.cache.describe(id);
    if (!info) {
      continue;
    }
    seen.texts.emplace_back(static_cast<std::size_t>(info->num_tokens - num_dropped));
    REQUIRE(at.cache.tokens(id, num_dropped, seen.texts.back()));
    seen.computed.push_back(info->num_computed_tokens);
    seen.tables.push_back(table_of(at.cache, id));
  }
  return seen;
}

template <class Result>
[[nodiscard]] std::optional<error_code> failure_of(const Result& outcome) noexcept {
  return outcome ? std::nullopt : std::optional{outcome.error().code};
}

template <class Cache>
struct operation {
  std::string_view name;
  std::optional<error_code> (*run)(scene<Cache>&);
};

/// Arguments are made ahead, since a fault counts the library's allocations only.
template <class Cache>
[[nodiscard]] std::vector<operation<Cache>> operations() {
  using at = scene<Cache>&;
  static const auto hit = text(1000, 25);
  static const auto shared = text(0, 14);
  static const auto fresh = text(8000, 30);
  static const auto huge = text(8000, 60);
  static const auto run = text(9000, 9);
  static const auto next = text(1, 1);
  auto all = std::vector<operation<Cache>>{
      {"create a sequence that hits", [](at s) { return failure_of(s.cache.create_sequence(hit)); }},
      {"create a sequence on blocks in use", [](at s) { return failure_of(s.cache.create_sequence(shared)); }},
      {"create a sequence that evicts", [](at s) { return failure_of(s.cache.create_sequence(fresh)); }},
      {"create a sequence that evicts much", [](at s) { return failure_of(s.cache.create_sequence(huge)); }},
      {"create a sequence in chunks",
       [](at s) { return failure_of(s.cache.create_sequence(fresh, {.first_chunk = 8})); }},
      {"append a token", [](at s) { return failure_of(s.cache.append(s.first, token{1})); }},
      {"append with a copy on write", [](at s) { return failure_of(s.cache.append(s.twin, token{1})); }},
      {"append blocks", [](at s) { return failure_of(s.cache.append(s.fork, run)); }},
      {"reserve slots", [](at s) { return failure_of(s.cache.reserve_slots(s.fork, 9)); }},
      {"commit", [](at s) { return failure_of(s.cache.commit(s.first, 16)); }},
      {"fork", [](at s) { return failure_of(s.cache.fork(s.other)); }},
      {"truncate", [](at s) { return failure_of(s.cache.truncate(s.first, 15)); }},
      {"release", [](at s) { return failure_of(s.cache.release(s.fork)); }},
      {"pin", [](at s) { return failure_of(s.cache.pin(hit)); }},
      {"unpin", [](at s) { return failure_of(s.cache.unpin(s.pin)); }},
      {"invalidate a prefix", [](at s) { return s.cache.invalidate_prefix(hit), std::optional<error_code>{}; }},
      {"invalidate a salt", [](at s) { return s.cache.invalidate_salt(salt::none), std::optional<error_code>{}; }},
      {"invalidate blocks",
       [](at s) {
         const auto block = std::array{block_id{3}};
         return failure_of(s.cache.invalidate_blocks(block));
       }},
      {"forecast", [](at s) { return failure_of(s.cache.would_fit(fresh)); }},
      {"foresee a release",
       [](at s) { return failure_of(s.cache.gain_of_releasing(std::array{s.first, s.fork}, hit)); }},
      {"choose what to release",
       [](at s) { return failure_of(s.cache.fewest_to_release(std::array{s.first, s.fork, s.other}, 1)); }},
      {"begin a step", [](at s) { return failure_of(s.cache.begin_step(std::array{s.first, s.other})); }},
      {"append to a batch",
       [](at s) {
         const auto entries = std::array{batch_entry{s.twin, next}};
         auto slots = std::array<slot, 4>{};
         auto failures = std::array<batch_failure, 1>{};
         const auto outcome = s.cache.append_batch(entries, {.slots = slots, .failures = failures});
         if (!outcome) {
           return failure_of(outcome);
         }
         return outcome->num_failures == 0 ? std::nullopt : std::optional{failures[0].reason.code};
       }},
      {"forget all prefixes",
       [](at s) {
         const auto outcome = s.cache.reset_prefix_cache();
         return outcome || outcome.error().code == error_code::in_use ? std::nullopt : failure_of(outcome);
       }},
  };
  if constexpr (std::is_same_v<Cache, one_group>) {
    all.push_back({"truncate into a shared block", [](at s) { return failure_of(s.cache.truncate(s.fork, 13)); }});
    all.push_back({"drop tokens", [](at s) { return failure_of(s.cache.drop_before(s.other, num_dropped)); }});
    all.push_back({"compact", [](at s) { return failure_of(s.cache.compact()); }});
  }
  return all;
}

/// Repeats the operation, each time with a later fault, until one run meets none. Returns the number of faults.
template <class Cache, class Arm, class Disarm>
[[nodiscard]] int fail_everywhere(const operation<Cache>& what, error_code expected, const Arm& arm,
                                  const Disarm& disarm) {
  const auto check_unchanged = expected == error_code::backend_failure ? check_same_but_for_evictions : check_same;
  auto wanted = scene<Cache>{};
  CAPTURE(what.name);
  const auto refused = what.run(wanted);
  CAPTURE(refused ? describe(*refused) : "");
  REQUIRE_FALSE(refused);
  const auto after = look_at(wanted);
  for (auto n = 1;; ++n) {
    CAPTURE(n);
    auto at = scene<Cache>{};
    const auto before = look_at(at);
    arm(at, n);
    const auto failure = what.run(at);
    const bool met = disarm(at);
    check_sound(at.cache);
    if (failure) {
      CHECK(*failure == expected);
      const auto seen = look_at(at);
      check_unchanged(seen, before);
      CHECK(seen.tables == before.tables);
      CHECK(what.run(at) == std::nullopt);
      check_sound(at.cache);
    }
    check_same(look_at(at), after);
    if (!met) {
      return n - 1;
    }
  }
}

}  // namespace

TEMPLATE_TEST_CASE("every operation survives the failure of each of its allocations", "[cache][faults]", one_group,
                   many_groups) {
  auto faults = 0;
  auto end = long{0};
  for (const auto& what : operations<TestType>()) {
    faults += fail_everywhere(
        what, error_code::out_of_memory,
        [&](scene<TestType>&, int n) {
          end = allocation_count() + n;
          fail_allocation(n);
        },
        [&](scene<TestType>&) {
          fail_allocation(0);
          return allocation_count() >= end;
        });
  }
  CHECK(faults >= 19);
}

TEMPLATE_TEST_CASE("every operation survives the failure of each of its calls of the backend", "[cache][faults]",
                   one_group, many_groups) {
  auto faults = 0;
  for (const auto& what : operations<TestType>()) {
    faults += fail_everywhere(
        what, error_code::backend_failure, [](scene<TestType>& at, int n) { at.log.until_failure = n; },
        [](scene<TestType>& at) { return std::exchange(at.log.until_failure, 0) == 0; });
  }
  CHECK(faults >= 2);
}
