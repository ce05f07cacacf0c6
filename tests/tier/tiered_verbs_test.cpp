#include "../support/failing_allocator.hpp"
#include "../support/messages.hpp"
#include "tiered_driver.hpp"

#include <pagedkv/tier/tiered_cache.hpp>

#include <catch2/catch_test_macros.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

using namespace pagedkv;
using namespace pagedkv::test;

namespace {

/// Of a device that is not there.
struct lacking_backend : host_backend {
  static constexpr std::string_view name = "lacking";

  lacking_backend() { throw exception(error{error_code::backend_failure, "the search for a device", 100}); }
};

/// Calls each operation of `kv_cache`, and returns what they answered.
template <class Cache>
std::vector<std::int64_t> answers_of_all_operations(Cache& cache) {
  auto answers = std::vector<std::int64_t>{};
  const auto note = [&](auto answer) { answers.push_back(static_cast<std::int64_t>(answer)); };
  const auto note_done = [&](const auto& outcome) {
    note(outcome.has_value());
    REQUIRE(outcome);
  };
  const auto prompt = numbered(9);
  const auto keys = std::array{prefix_key{5, {1, 2}}};
  const auto run = token_run{prompt, keys};
  note(cache.config().block_size);
  note(cache.num_blocks());
  note(cache.view().num_blocks);
  cache.advance_time(timestamp{7});
  note(cache.time());

  const auto fit = cache.would_fit(run);
  note_done(fit);
  note(fit->num_new_blocks);
  const auto made = cache.create_sequence(run);
  note_done(made);
  const auto first = made->id;
  note(made->num_new_blocks);
  auto slots = std::vector<slot>(9);
  note_done(cache.slot_mapping(first, 0, slots));
  for (const auto each : slots) {
    note(each);
  }
  auto numbers = std::vector<float>(9 * row_dim, 2);
  for (std::int32_t layer = 0; layer < 2; ++layer) {
    note_done(cache.write(layer, slots, contiguous_rows(numbers, 1, row_dim), contiguous_rows(numbers, 1, row_dim)));
  }
  note_done(cache.commit(first, 9, typename Cache::copying_stream{}));
  auto read = std::vector<float>(9 * row_dim);
  auto values = read;
  note_done(cache.read(1, slots, contiguous_rows(read, 1, row_dim), contiguous_rows(values, 1, row_dim)));
  note(read == numbers && values == numbers);
  note(cache.find_prefix(run));
  auto hashes = std::vector<std::uint64_t>(2);
  note(cache.hash_blocks(run, hashes));

  note_done(cache.append(first, token{3}));
  note_done(cache.append(first, token_run{prompt}));
  note_done(cache.reserve_slots(first, 6));
  note_done(cache.commit(first, 19));
  const auto second = cache.fork(first);
  note_done(second);
  const auto both = std::array{first, *second};
  const auto all = cache.begin_step();
  const auto step = cache.begin_step(both);
  note_done(all);
  note_done(step);
  note_done(cache.append(*second, token{4}));
  auto tokens = std::vector<token>(3);
  note_done(cache.tokens(*second, 17, tokens));
  note(tokens.back());
  auto kept = std::array<prefix_key, 1>{};
  note(cache.keys(*second, kept).value());
  note(kept == keys);
  note(cache.describe(*second)->num_tokens);
  auto blocks = std::vector<block_id>(8);
  note(cache.block_table(*second, blocks).value());
  for (const auto each : blocks) {
    note(each);
  }
  note(cache.common_prefix(both).value());
  auto batch = compressed_batch{2, 16};
  note_done(cache.update(batch, both));
  note(cache.gain_of_releasing(both)->at_once);
  note(cache.fewest_to_release(both, 1)->size());
  auto out = batch_buffers{};
  auto batch_slots = std::vector<slot>(8);
  auto failures = std::vector<batch_failure>(2);
  out.slots = batch_slots;
  out.failures = failures;
  const auto next = std::array{token{5}};
  const auto entries = std::array{batch_entry{first, next, 19}};
  note_done(cache.append_batch(entries, out));
  note_done(cache.commit(first, 20));
  note_done(cache.truncate(first, 17));
  note_done(cache.drop_before(first, 4));
  note_done(cache.retire_step(*all));
  note_done(cache.retire_step(*step));

  const auto pinned = cache.pin(run);
  note_done(pinned);
  note(pinned->num_tokens);
  note_done(cache.unpin(pinned->id));
  note_done(cache.pin(run));
  note(cache.unpin_all());
  note_done(cache.release(first));
  note_done(cache.release(*second));
  note(cache.num_free_blocks());
  note(cache.num_available_blocks());
  const auto last = cache.begin_step();
  auto evicted = std::array<block_id, 1>{};
  note(cache.evict(evicted, *last).value());
  note_done(cache.retire_step(*last));
  note(cache.invalidate_prefix(run));
  note(cache.invalidate_salt(salt{9}));
  note(cache.invalidate_blocks(evicted).value());
  note_done(cache.compact());
  note_done(cache.resize(20));
  note_done(cache.reset_prefix_cache());
  note(cache.statistics().evictions);
  note(cache.memory().payload);
  const auto broken = cache.check_invariants();
  CAPTURE(broken);
  CHECK(broken.empty());
  static_cast<void>(cache.backend());
  static_cast<void>(cache.events());
  return answers;
}

}  // namespace

TEST_CASE("a cache with tiers has all operations of one without, with the same answers", "[tier][tiered_cache]") {
  const auto plain = kv_cache<float32>::create(small_device(24));
  const auto tiered = tiered_cache<float32>::create(small_device(24), {}, {16});
  REQUIRE(plain);
  REQUIRE(tiered);
  CHECK(answers_of_all_operations(**tiered) == answers_of_all_operations(**plain));
}

TEST_CASE("creation of a cache with tiers returns what a backend's constructor throws", "[tier][tiered_cache]") {
  using cache_type = tiered_cache<float32, lacking_backend>;
  const auto message = [](const auto& made) { return made ? std::string{} : made.error().message(); };
  const auto missing = std::string{"backend failure: the search for a device is 100"};
  CHECK(message(cache_type::create(small_device(24), {}, {16})) == missing);
  CHECK(message(cache_type::create(small_device(24), {}, {16}, {}, host_allocator{})) == missing);
}

TEST_CASE("what the constructor of a cache with tiers throws, creation returns", "[tier][tiered_cache]") {
  using failing = failing_allocator<>;
  using cache_type = tiered_cache<float32, failing, basic_host_tier<failing, lru>>;
  const auto refusal = [](const cache_config& config, write_policy write, std::int32_t num_records, int fail_at) {
    auto tiers = tier_config{};
    tiers.exclusive = true;
    tiers.write = write;
    auto log = allocation_log{.fail_at = fail_at};
    const auto memory = failing{log};
    const auto made = cache_type::create(config, tiers, {num_records, memory}, {}, memory);
    REQUIRE(made.has_error());
    CHECK(log.live == 0);
    log.calls = 0;
    auto thrown = std::string{};
    try {
      const auto cache = cache_type{config, tiers, {num_records, memory}, {}, memory};
    } catch (const exception& refused) {
      thrown = refused.reason().message();
    }
    CHECK(made.error().message() == thrown);
    return thrown;
  };
  using test::invalid;
  const auto right = write_policy::on_eviction;
  CHECK(refusal(small_device(0), right, 16, 0) == invalid("cache_config.num_blocks is 0, limit 1"));
  CHECK(refusal(small_device(24), write_policy::through, 16, 0) ==
        invalid("tier_config.exclusive, which needs write_policy::on_eviction, is 1, limit 0"));
  CHECK(refusal(small_device(24), right, 0, 0) == invalid("host_tier.num_records is 0, limit 1"));
  CHECK(refusal(small_device(24), right, -100, 0) == invalid("host_tier.num_records is -100, limit 1"));
  CHECK(refusal(small_device(24), right, 16, 1).starts_with("out of memory: "));
  CHECK(refusal(small_device(24), right, 16, 2).starts_with("out of memory: "));
}

TEST_CASE("a refused configuration of tiers is told its field", "[tier][messages]") {
  using test::invalid;
  const auto with = [](auto&& change) {
    auto config = tier_config{};
    change(config);
    return test::said(validate(config));
  };
  test::check_messages({
      {with([](auto& c) { c.queue_records = 0; }), invalid("tier_config.queue_records is 0, limit 1")},
      {with([](auto& c) { c.known_records = 0; }), invalid("tier_config.known_records is 0, limit 1")},
      {with([](auto& c) { c.ask_ahead = -2; }), invalid("tier_config.ask_ahead is -2, limit 0")},
      {with([](auto& c) { c.prefill_tokens_per_second = -3; }),
       invalid("tier_config.prefill_tokens_per_second is -3, limit 0")},
  });
}
