#include <pagedkv/events/event_log.hpp>
#include <pagedkv/events/event_queues.hpp>
#include <pagedkv/pagedkv.hpp>

#include <catch2/catch_test_macros.hpp>

#include <array>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

namespace {

using namespace pagedkv;

using lines = std::vector<std::string>;

void add_line(void* to, std::string_view line) noexcept { static_cast<lines*>(to)->emplace_back(line); }

template <class Events>
using logged_cache = kv_cache<float32, Events>;

constexpr auto small_pool =
    cache_config{.block_size = 2, .num_blocks = 4, .num_kv_heads = 1, .head_dim = 1, .hash_seed = 42};

lines line_of(const cache_event& event) {
  auto written = lines{};
  event_log{add_line, &written}.emit(event);
  return written;
}

TEST_CASE("a log writes one line for each event, with the fields that its kind sets", "[events]") {
  const auto tokens = std::array<token, 2>{};
  const auto keys = std::array<prefix_key, 2>{};
  const auto block = block_id{3};
  const auto other = block_id{4};
  CHECK(line_of({.kind = event_kind::stored,
                 .block = block,
                 .origin = other,
                 .hash = 0xbeef,
                 .parent_hash = 0xf00d,
                 .tokens = tokens,
                 .keys = keys,
                 .salt = salt{9}}) == lines{"stored block=3 after=4 hash=beef parent=f00d tokens=2 keys=2 salt=9"});
  CHECK(line_of({.kind = event_kind::stored, .block = block, .hash = 1, .parent_hash = 2, .tokens = tokens}) ==
        lines{"stored block=3 hash=1 parent=2 tokens=2"});
  CHECK(line_of({.kind = event_kind::evicted, .block = block, .hash = 0xbeef}) == lines{"evicted block=3 hash=beef"});
  CHECK(line_of({.kind = event_kind::reset, .num_blocks = 7}) == lines{"reset blocks=7"});
  CHECK(line_of({.kind = event_kind::admitted, .sequence = sequence_id{5}, .num_tokens = 30, .num_blocks = 2}) ==
        lines{"admitted sequence=5 tokens=30 blocks=2"});
  CHECK(line_of({.kind = event_kind::hit,
                 .block = block,
                 .hash = 0xbeef,
                 .salt = salt{9},
                 .sequence = sequence_id{5},
                 .num_tokens = 16,
                 .num_blocks = 1}) == lines{"hit sequence=5 tokens=16 blocks=1 last=3 hash=beef salt=9"});
  CHECK(line_of({.kind = event_kind::forked, .sequence = sequence_id{6}, .source = sequence_id{5}}) ==
        lines{"forked sequence=6 from=5"});
  CHECK(line_of({.kind = event_kind::released, .sequence = sequence_id{5}, .num_tokens = 31}) ==
        lines{"released sequence=5 tokens=31"});
  CHECK(line_of({.kind = event_kind::copied, .block = block, .origin = other}) == lines{"copied block=3 from=4"});
  CHECK(line_of({.kind = event_kind::refused, .num_blocks = 9, .num_available = 8}) ==
        lines{"refused blocks=9 available=8"});
  CHECK(line_of({.kind = event_kind::step_begun, .step = step_id{2}}) == lines{"step_begun step=2"});
  CHECK(line_of({.kind = event_kind::step_retired, .step = step_id{2}}) == lines{"step_retired step=2"});
  CHECK(line_of({.kind = event_kind::started, .sequence = sequence_id{5}, .request = request_id{8}}) ==
        lines{"started request=8 sequence=5"});
  CHECK(line_of({.kind = event_kind::ended, .request = request_id{8}}) == lines{"ended request=8"});
  CHECK(line_of({.kind = event_kind::preempted, .sequence = sequence_id{5}, .request = request_id{8}}) ==
        lines{"preempted request=8 sequence=5"});
}

TEST_CASE("the longest numbers have room in a line", "[events]") {
  constexpr auto longest = std::numeric_limits<std::uint64_t>::max();
  constexpr auto least = std::numeric_limits<std::int64_t>::min();
  CHECK(line_of({.kind = event_kind::hit,
                 .block = block_id{std::numeric_limits<std::int32_t>::min()},
                 .hash = longest,
                 .salt = salt{longest},
                 .sequence = sequence_id{longest},
                 .num_tokens = least,
                 .num_blocks = least}) ==
        lines{"hit sequence=18446744073709551615 tokens=-9223372036854775808 blocks=-9223372036854775808 "
              "last=-2147483648 hash=ffffffffffffffff salt=18446744073709551615"});
}

TEST_CASE("a cache and its request tracker log an admission, hits, copies, evictions and a preemption", "[events]") {
  auto written = lines{};
  auto cache = logged_cache<event_log>{small_pool, event_log{add_line, &written}};
  auto tracker = request_tracker{cache};
  const auto logged = [&](std::string_view word) {
    auto found = lines{};
    for (const auto& line : written) {
      if (line.starts_with(std::string{word} + " ")) {
        found.push_back(line);
      }
    }
    return found;
  };
  const auto name_of = [](auto id) { return std::to_string(static_cast<std::uint64_t>(id)); };

  const auto first = tracker.submit(std::array<token, 5>{1, 2, 3, 4, 5}).value();
  REQUIRE(cache.commit(first.sequence, 5).has_value());
  CHECK(logged("admitted") == lines{"admitted sequence=" + name_of(first.sequence) + " tokens=5 blocks=3"});
  CHECK(logged("stored").size() == 2);
  const auto forked = cache.fork(first.sequence).value();
  REQUIRE(cache.append(forked, 6).has_value());
  CHECK(logged("forked") == lines{"forked sequence=" + name_of(forked) + " from=" + name_of(first.sequence)});
  CHECK(logged("copied").size() == 1);
  REQUIRE(cache.release(forked).has_value());
  CHECK(logged("released") == lines{"released sequence=" + name_of(forked) + " tokens=6"});

  auto options = request_options{};
  options.sequence.priority = 90;
  options.may_preempt = true;
  REQUIRE(tracker.submit(std::array<token, 7>{1, 2, 9, 9, 9, 9, 9}, options).has_value());
  CHECK(logged("preempted") ==
        lines{"preempted request=" + name_of(first.id) + " sequence=" + name_of(first.sequence)});
  CHECK(logged("refused") == lines{"refused blocks=3 available=1"});
  CHECK(logged("hit").size() == 1);
  CHECK(logged("evicted").size() == 1);
}

TEST_CASE("a log of some kinds gets no others, and an empty log writes nothing", "[events]") {
  auto written = lines{};
  using log = basic_event_log<event_kinds{event_kind::released}>;
  auto cache = logged_cache<log>{small_pool, log{add_line, &written}};
  const auto id = cache.create_sequence(std::array<token, 2>{1, 2}).value().id;
  REQUIRE(cache.commit(id, 2).has_value());
  REQUIRE(cache.release(id).has_value());
  REQUIRE(written.size() == 1);
  CHECK(written[0].starts_with("released "));

  auto silent = logged_cache<event_log>{small_pool};
  CHECK(silent.create_sequence(std::array<token, 2>{1, 2}).has_value());
}

TEST_CASE("a tee gives each of its streams the kinds that it takes", "[events]") {
  auto written = lines{};
  using log = basic_event_log<event_kinds{event_kind::admitted, event_kind::stored}>;
  using tee = event_tee<event_queues, log>;
  STATIC_CHECK(tee::kinds.bits == (prefix_event_kinds | event_kinds{event_kind::admitted}).bits);
  auto queues = event_queues{small_pool.block_size};
  auto cache = logged_cache<tee>{small_pool, tee{queues, log{add_line, &written}}};
  const auto id = cache.create_sequence(std::array<token, 2>{1, 2}).value().id;
  REQUIRE(cache.commit(id, 2).has_value());
  REQUIRE(cache.release(id).has_value());
  REQUIRE(cache.reset_prefix_cache().has_value());
  CHECK(written.size() == 2);
  auto kinds = std::vector<event_kind>{};
  queues.drain([&](const cache_event& event) { kinds.push_back(event.kind); });
  CHECK(kinds == std::vector{event_kind::stored, event_kind::reset});
}

}  // namespace
