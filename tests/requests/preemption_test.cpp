#include "../support/allocation_count.hpp"
#include "../support/recording_backend.hpp"
#include "tracked_cache.hpp"

#include <catch2/catch_template_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

namespace {

using namespace pagedkv;
using namespace pagedkv::test;

/// Eight blocks, all held by four requests of two blocks each.
template <class Cache>
struct ranked_pool : tracked_cache<Cache> {
  ranked_pool() : tracked_cache<Cache>{8} {}

  request_id middle = this->running(2, with_priority(50));
  request_id low_early = this->running(2, with_priority(10));
  request_id low_late = this->running(2, with_priority(10));
  request_id high = this->running(2, with_priority(90));

  [[nodiscard]] std::vector<request_id> preempted() {
    auto found = std::vector<request_id>{};
    for (const auto id : {middle, low_early, low_late, high}) {
      if (this->state(id) == request_state::preempted) {
        found.push_back(id);
      }
    }
    return found;
  }
};

TEMPLATE_LIST_TEST_CASE("the lowest priority gives way first, of equals the latest", "[requests]", all_caches) {
  auto pool = ranked_pool<TestType>{};
  const auto submitted = pool.tracker.submit(pool.fresh_tokens(2 * block_size), with_priority(50, true));
  REQUIRE(submitted);
  CHECK(submitted.preempted() == std::vector{pool.low_late});
  CHECK(pool.preempted() == std::vector{pool.low_late});
  pool.check_invariants();
}

TEMPLATE_LIST_TEST_CASE("as many give way as it takes, and no more", "[requests]", all_caches) {
  auto pool = ranked_pool<TestType>{};
  const auto submitted = pool.tracker.submit(pool.fresh_tokens(3 * block_size), with_priority(50, true));
  REQUIRE(submitted);
  CHECK(submitted.preempted() == std::vector{pool.low_late, pool.low_early});
  CHECK(pool.preempted() == std::vector{pool.low_early, pool.low_late});
  CHECK(pool.tracker.statistics().preemptions == 2);
  pool.check_invariants();
}

TEMPLATE_LIST_TEST_CASE("when all that rank below would not be enough, none gives way", "[requests]", all_caches) {
  auto pool = ranked_pool<TestType>{};
  const auto before = pool.in_use();
  // The other request of priority 50 arrived before this one.
  const auto refused = pool.tracker.submit(pool.fresh_tokens(5 * block_size), with_priority(50, true));
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == error_code::capacity_exhausted);
  CHECK(refused.preempted().empty());
  CHECK(pool.preempted().empty());
  CHECK(pool.in_use() == before);

  const auto submitted = pool.tracker.submit(pool.fresh_tokens(5 * block_size), with_priority(51, true));
  REQUIRE(submitted);
  CHECK(submitted.preempted() == std::vector{pool.low_late, pool.low_early, pool.middle});
  CHECK(pool.preempted() == std::vector{pool.middle, pool.low_early, pool.low_late});
  pool.check_invariants();
}

TEMPLATE_LIST_TEST_CASE("for a request that the pool can never hold, none gives way", "[requests]", all_caches) {
  auto pool = ranked_pool<TestType>{};
  const auto refused = pool.tracker.submit(pool.fresh_tokens(9 * block_size), with_priority(100, true));
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == error_code::never_fits);
  CHECK(refused.error().value == 9);
  CHECK(refused.error().limit == 8);
  const auto grown = pool.tracker.append(pool.high, pool.fresh_tokens(6 * block_size + 1));
  REQUIRE_FALSE(grown);
  CHECK(grown.error().code == error_code::never_fits);
  CHECK(pool.preempted().empty());
  CHECK(pool.tracker.statistics().refused == 1);
}

TEST_CASE("where cached blocks are never evicted, preemption that would only cache more is no gain", "[requests]") {
  auto pool = ranked_pool<kv_cache<no_eviction>>{};
  CHECK_FALSE(pool.tracker.submit(pool.fresh_tokens(2 * block_size), with_priority(100, true)));
  CHECK(pool.preempted().empty());
}

TEST_CASE("a request without a free record preempts none", "[requests]") {
  auto cache = kv_cache<>{{.block_size = block_size, .num_blocks = 4, .head_dim = 2, .max_sequences = 2}};
  auto tracker = request_tracker{cache, {.max_open = 4, .max_ended = 0}};
  auto last = submission{};
  for (auto i = 0; i < 4; ++i) {
    if (i != 0) {
      REQUIRE(tracker.preempt(last.id));
    }
    last = tracker.submit(std::vector<token>(4 * block_size, i), with_priority(10)).value();
  }
  const auto refused = tracker.submit(std::vector<token>(block_size, 9), with_priority(90, true));
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == error_code::limit_reached);
  CHECK(tracker.describe(last.id)->state == request_state::running);
  CHECK(tracker.statistics().refused == 1);
}

TEMPLATE_LIST_TEST_CASE("a block that is shared but for the last token of a prompt is a gain", "[requests]", caches) {
  auto pool = tracked_cache<TestType>{4};
  const auto tokens = pool.fresh_tokens(4 * block_size);
  const auto low = pool.running_on(tokens, with_priority(10));
  const auto same = pool.tracker.submit(tokens, with_priority(90, true));
  REQUIRE(same);
  CHECK(same->num_cached_tokens == 3 * block_size);
  CHECK(pool.state(low) == request_state::preempted);
  pool.check_invariants();
}

TEMPLATE_LIST_TEST_CASE("without permission to preempt, no request gives way", "[requests]", all_caches) {
  auto pool = ranked_pool<TestType>{};
  CHECK_FALSE(pool.tracker.submit(pool.fresh_tokens(block_size), with_priority(100)));
  CHECK(pool.preempted().empty());
}

TEMPLATE_LIST_TEST_CASE("evictable blocks are taken before a request gives way", "[requests]", caches) {
  auto pool = ranked_pool<TestType>{};
  REQUIRE(pool.tracker.finish(pool.high));
  CHECK(pool.cache.statistics().blocks.evictable == 2);
  CHECK(pool.tracker.submit(pool.fresh_tokens(2 * block_size), with_priority(100, true)));
  CHECK(pool.preempted().empty());
  CHECK(pool.cache.statistics().evictions == 2);
}

TEMPLATE_LIST_TEST_CASE("a growing request takes blocks of lower ones, never its own", "[requests]", all_caches) {
  auto pool = ranked_pool<TestType>{};
  const auto grows = pool.running(2, with_priority(20, true));  // in place of the later low one
  REQUIRE(pool.preempted() == std::vector{pool.low_late});
  const auto grown = pool.tracker.append(grows, pool.fresh_tokens(2 * block_size));
  REQUIRE(grown);
  CHECK(grown.preempted() == std::vector{pool.low_early});
  CHECK(pool.preempted() == std::vector{pool.low_early, pool.low_late});

  const auto refused = pool.tracker.append(grows, pool.fresh_tokens(1));
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == error_code::capacity_exhausted);
  CHECK(refused.preempted().empty());
  CHECK(pool.state(grows) == request_state::running);
  CHECK(pool.in_use() == 8);
  pool.check_invariants();
}

TEMPLATE_LIST_TEST_CASE("a resumed request keeps the rank of its arrival", "[requests]", all_caches) {
  auto pool = tracked_cache<TestType>{4};
  const auto tokens = pool.fresh_tokens(2 * block_size);
  const auto first = pool.running_on(tokens, with_priority(50, true));
  REQUIRE(pool.tracker.preempt(first));
  const auto second = pool.running(2);
  const auto third = pool.running(2);

  const auto resumed = pool.tracker.resume(first, tokens);
  REQUIRE(resumed);
  CHECK(resumed.preempted() == std::vector{third});
  CHECK(pool.state(second) == request_state::running);
  CHECK(pool.state(third) == request_state::preempted);
  pool.check_invariants();
}

TEMPLATE_LIST_TEST_CASE("blocks that a survivor shares are no gain", "[requests]", caches) {
  auto pool = tracked_cache<TestType>{5};
  auto tokens = pool.fresh_tokens(2 * block_size + 1);
  const auto survivor = pool.running_on(tokens, with_priority(90));
  tokens.back() += 1000;
  const auto sharer = pool.running_on(tokens, with_priority(10));  // two shared blocks and one of its own
  const auto other = pool.running(1, with_priority(20));
  CHECK(pool.in_use() == 5);

  const auto refused = pool.tracker.submit(pool.fresh_tokens(3 * block_size), with_priority(50, true));
  CHECK_FALSE(refused);
  CHECK(pool.state(sharer) == request_state::running);
  CHECK(pool.state(other) == request_state::running);

  CHECK(pool.tracker.submit(pool.fresh_tokens(2 * block_size), with_priority(50, true)));
  CHECK(pool.state(survivor) == request_state::running);
  CHECK(pool.state(sharer) == request_state::preempted);
  CHECK(pool.state(other) == request_state::preempted);
  pool.check_invariants();
}

TEMPLATE_LIST_TEST_CASE("a request that gives way within a step makes room when the step retires", "[requests]",
                        caches) {
  auto pool = ranked_pool<TestType>{};
  const auto tokens = pool.fresh_tokens(2 * block_size);
  const auto step = pool.cache.begin_step().value();
  for (auto i = 0; i < 3; ++i) {  // asked again, nobody else gives way
    const auto refused = pool.tracker.submit(tokens, with_priority(100, true));
    REQUIRE_FALSE(refused);
    CHECK(refused.error().code == error_code::capacity_exhausted);
    CHECK(refused.error().step == step);
    CHECK(refused.preempted() == (i == 0 ? std::vector{pool.low_late} : std::vector<request_id>{}));
    CHECK(pool.preempted() == std::vector{pool.low_late});
  }
  const auto more = pool.tracker.submit(pool.fresh_tokens(3 * block_size), with_priority(100, true));
  CHECK(more.error().step == step);
  CHECK(pool.preempted() == std::vector{pool.low_early, pool.low_late});
  REQUIRE(pool.cache.retire_step(step));
  CHECK(pool.tracker.submit(tokens, with_priority(100, true)));
  CHECK(pool.preempted() == std::vector{pool.low_early, pool.low_late});
  pool.check_invariants();
}

TEMPLATE_LIST_TEST_CASE("no request gives way in vain to a prompt that shares blocks waiting for a step", "[requests]",
                        caches) {
  auto pool = tracked_cache<TestType>{6};
  auto tokens = pool.fresh_tokens(2 * block_size);
  const auto used = pool.running_on(tokens, {});
  const auto high = pool.running(3, with_priority(100));
  const auto low = pool.running(1, with_priority(1));
  const auto step = pool.cache.begin_step(std::array{pool.tracker.describe(used).value().sequence}).value();
  REQUIRE(pool.tracker.finish(used));
  const auto more = pool.fresh_tokens(2 * block_size + 1);
  tokens.insert(tokens.end(), more.begin(), more.end());
  for (auto retired = 0; retired < 2; ++retired) {  // three blocks more, of which only the low one could give one
    const auto refused = pool.tracker.submit(tokens, with_priority(50, true));
    CHECK(refused.error().code == error_code::capacity_exhausted);
    CHECK(refused.error().step == step_id{});
    CHECK(pool.state(low) == request_state::running);
    CHECK(pool.state(high) == request_state::running);
    if (retired == 0) {
      REQUIRE(pool.cache.retire_step(step));
    }
  }
  pool.check_invariants();
}

TEMPLATE_LIST_TEST_CASE("no request gives way to an append that needs only a step to retire", "[requests]", caches) {
  auto pool = tracked_cache<TestType>{3};
  const auto grows = pool.running_on(pool.fresh_tokens(block_size + 3), with_priority(50, true));
  const auto low = pool.running(1, with_priority(1));
  const auto sequence = pool.tracker.describe(grows).value().sequence;
  const auto step = pool.cache.begin_step(std::array{sequence}).value();
  REQUIRE(pool.cache.truncate(sequence, block_size + 2));
  const auto refused = pool.tracker.append(grows, pool.fresh_tokens(1));
  REQUIRE_FALSE(refused);
  CHECK(refused.error().step == step);
  CHECK(pool.state(low) == request_state::running);
  REQUIRE(pool.cache.retire_step(step));
  CHECK(pool.tracker.append(grows, pool.fresh_tokens(1)));
  CHECK(pool.state(low) == request_state::running);
  pool.check_invariants();
}

TEMPLATE_LIST_TEST_CASE("a request that no open step uses makes room at once", "[requests]", caches) {
  auto pool = ranked_pool<TestType>{};
  const auto used = std::array{pool.sequence(pool.middle), pool.sequence(pool.low_early), pool.sequence(pool.high)};
  const auto step = pool.cache.begin_step(used).value();
  CHECK(pool.tracker.submit(pool.fresh_tokens(2 * block_size), with_priority(100, true)));
  CHECK(pool.preempted() == std::vector{pool.low_late});
  const auto grown = pool.tracker.append(pool.middle, pool.fresh_tokens(1));
  CHECK(grown.error().step == step_id{});  // may not preempt, and nothing is coming
  REQUIRE(pool.cache.retire_step(step));
  pool.check_invariants();
}

TEMPLATE_LIST_TEST_CASE("a request whose blocks would make no room is not preempted", "[requests]", caches) {
  auto pool = tracked_cache<TestType>{4};
  const auto parent = pool.running(2);
  const auto grows = pool.running(1, with_priority(50, true));
  const auto own = pool.running(1);
  const auto fork = pool.tracker.fork(parent).value().id;  // the lowest, on the blocks of the highest
  const auto grown = pool.tracker.append(grows, pool.fresh_tokens(1));
  REQUIRE(grown);
  CHECK(grown.preempted() == std::vector{own});
  CHECK(pool.state(fork) == request_state::running);
  pool.check_invariants();
}

TEMPLATE_LIST_TEST_CASE("requests that share blocks are preempted together where that makes room", "[requests]",
                        caches) {
  auto pool = tracked_cache<TestType>{4};
  const auto parent = pool.running(4, with_priority(10));
  const auto fork = pool.tracker.fork(parent).value().id;
  const auto submitted = pool.tracker.submit(pool.fresh_tokens(block_size), with_priority(50, true));
  REQUIRE(submitted);
  CHECK(submitted.preempted() == std::vector{fork, parent});
  CHECK(pool.in_use() == 1);
  pool.check_invariants();
}

// Under lock_free an operation on a busy sequence is refused, so a search for victims must not keep one busy while it
// waits for memory.
TEST_CASE("a search for requests to preempt finds each request free whenever it takes memory", "[requests]") {
  auto pool = tracked_cache<kv_cache<lock_free, clock_sweep>>{8};
  const auto held = std::array{pool.sequence(pool.running(4, with_priority(20))),
                               pool.sequence(pool.running(4, with_priority(30)))};
  auto num_free = 0;
  auto num_busy = 0;
  before_allocations([&] {
    for (const auto id : held) {
      ++(pool.cache.describe(id) ? num_free : num_busy);
    }
  });
  const auto prompt = pool.fresh_tokens(8 * block_size);
  const auto submitted = pool.tracker.submit(prompt, with_priority(25, true));  // would gain too little: none is preempted
  before_allocations({});
  CHECK(submitted.has_error());
  CHECK(num_free > 0);
  CHECK(num_busy == 0);
}

TEMPLATE_LIST_TEST_CASE("an append that preempts no request takes no memory", "[requests]", caches) {
  auto pool = tracked_cache<TestType>{8};
  auto options = with_priority(50, true);
  options.sequence.expected_tokens = 4 * block_size;
  const auto id = pool.running_on(pool.fresh_tokens(1), options);
  const auto tokens = pool.fresh_tokens(block_size);
  const auto before = allocation_count();
  const auto appended = pool.tracker.append(id, tokens);
  const auto num_allocations = allocation_count() - before;
  CHECK(appended);
  CHECK(num_allocations == 0);
}

TEST_CASE("deferred releases make room before a request is preempted", "[requests]") {
  auto log = recording_backend::log{};
  using recorded_cache = kv_cache<float32, lock_free, clock_sweep, recording_backend>;
  auto cache = recorded_cache{{.block_size = block_size, .num_blocks = 4, .head_dim = 2}, {}, recording_backend{log}};
  auto tracker = request_tracker{cache};
  const auto start = [&](token first, std::uint8_t priority) {
    const auto started = tracker.submit(std::vector<token>(1, first), with_priority(priority, true)).value();
    REQUIRE(cache.commit(started.sequence, 1));
    return started;
  };
  const auto low = start(1, 1);
  const auto grows = start(2, 50);
  const auto slow = start(3, 90);
  const auto fork = cache.fork(slow.sequence).value();
  log.during_copy = [&](int) { static_cast<void>(tracker.cancel(slow.id)); };  // finds the sequence busy
  REQUIRE(tracker.append(slow.id, std::vector<token>{4}));
  REQUIRE(cache.describe(slow.sequence));
  const auto grown = tracker.append(grows.id, std::vector<token>(block_size, 5));
  REQUIRE(grown);
  CHECK(grown.preempted().empty());
  CHECK(tracker.describe(low.id)->state == request_state::running);
  REQUIRE(cache.release(fork));
}

/// Prefers to preempt those that were submitted first, whatever their priority.
struct oldest_first {
  static constexpr bool enabled = true;
  static constexpr bool keeps_kv = false;
  static constexpr std::string_view name = "oldest_first";

  [[nodiscard]] bool ranks_below(const preemption_candidate& a, const preemption_candidate& b) const noexcept {
    return a.arrival < b.arrival;
  }
};

TEMPLATE_LIST_TEST_CASE("a preemption policy decides who is preempted", "[requests]", all_caches) {
  auto pool = tracked_cache<TestType, oldest_first>{4};
  const auto first = pool.running(2, with_priority(90));
  const auto second = pool.running(2, with_priority(10));
  const auto submitted = pool.tracker.submit(pool.fresh_tokens(3 * block_size), with_priority(0, true));
  REQUIRE(submitted);
  CHECK(submitted.preempted() == std::vector{first, second});
}

struct latest_first {
  static constexpr bool enabled = true;
  static constexpr bool keeps_kv = false;
  static constexpr std::string_view name = "latest_first";

  [[nodiscard]] bool ranks_below(const preemption_candidate& a, const preemption_candidate& b) const noexcept {
    return a.submitted > b.submitted;
  }
};

TEMPLATE_LIST_TEST_CASE("a preemption policy sees when the new request was submitted", "[requests]", caches) {
  auto pool = tracked_cache<TestType, latest_first>{4};
  pool.cache.advance_time(timestamp{100});
  const auto earlier = pool.running(4, with_priority(10));
  pool.cache.advance_time(timestamp{200});
  const auto refused = pool.tracker.submit(pool.fresh_tokens(block_size), with_priority(90, true));
  CHECK(code_of(refused) == error_code::capacity_exhausted);
  CHECK(pool.tracker.describe(earlier)->state == request_state::running);
}

TEMPLATE_LIST_TEST_CASE("without a preemption policy, a full pool refuses", "[requests]", all_caches) {
  auto pool = tracked_cache<TestType, no_preemption>{4};
  const auto low = pool.running(4, with_priority(10));
  const auto tokens = pool.fresh_tokens(block_size);
  const auto refused = pool.tracker.submit(tokens, with_priority(90, true));
  CHECK(code_of(refused) == error_code::capacity_exhausted);
  CHECK(refused.preempted().empty());
  REQUIRE(pool.tracker.preempt(low));  // which the caller still can
  CHECK(pool.tracker.submit(tokens, with_priority(90, true)));
}

/// Keeps a note instead of K/V, and says that half of a block more need not be computed.
struct note_keeper {
  struct notes {
    std::vector<request_id> saved;
    std::vector<std::pair<sequence_id, int>> saved_from;
    std::vector<std::pair<sequence_id, int>> restored_to;
    std::function<void()> while_saving = [] {};
  };

  static constexpr bool enabled = true;
  static constexpr bool keeps_kv = true;
  static constexpr std::string_view name = "note_keeper";

  [[nodiscard]] bool ranks_below(const preemption_candidate& a, const preemption_candidate& b) const noexcept {
    return recompute{}.ranks_below(a, b);
  }
  template <class Cache>
  void save(Cache&, const preemption_candidate& request, int on) noexcept {
    kept->while_saving();
    kept->saved.push_back(request.id);
    kept->saved_from.emplace_back(request.sequence, on);
  }
  template <class Cache>
  [[nodiscard]] std::int64_t restore(Cache&, const preemption_candidate& request, std::int64_t num_cached,
                                     int on) noexcept {
    kept->restored_to.emplace_back(request.sequence, on);
    return std::erase(kept->saved, request.id) != 0 ? num_cached + block_size / 2 : num_cached;
  }
  void discard(request_id id) noexcept { std::erase(kept->saved, id); }

  notes* kept = nullptr;
};

TEST_CASE("a preemption policy can keep the K/V of preempted requests", "[requests]") {
  auto notes = note_keeper::notes{};
  auto pool = tracked_cache<minimal_cache, note_keeper>{4, {}, note_keeper{&notes}};
  const auto tokens = pool.fresh_tokens(2 * block_size);
  const auto low = pool.running_on(tokens, with_priority(10));
  const auto lower = pool.running(2, with_priority(5));
  const auto sequences = std::array{pool.sequence(lower), pool.sequence(low)};

  const auto high = pool.tracker.submit(pool.fresh_tokens(3 * block_size), with_priority(90, true), 7);
  REQUIRE(high);
  CHECK(high.preempted() == std::vector{lower, low});
  CHECK(notes.saved == high.preempted());
  CHECK(notes.saved_from == std::vector{std::pair{sequences[0], 7}, std::pair{sequences[1], 7}});

  REQUIRE(pool.tracker.finish(high->id));
  const auto resumed = pool.tracker.resume(low, tokens, 8);
  REQUIRE(resumed);
  CHECK(resumed->num_cached_tokens == block_size / 2);
  CHECK(notes.restored_to == std::vector{std::pair{resumed->sequence, 8}});
  CHECK(notes.saved == std::vector{lower});
  REQUIRE(pool.tracker.cancel(lower));
  CHECK(notes.saved.empty());
}

/// Calls `meanwhile()`, once, ahead of the next sequence, as if another thread came in between.
struct interrupted_cache : minimal_cache {
  using minimal_cache::minimal_cache;

  [[nodiscard]] result<admission> create_sequence(const token_run& prompt, const sequence_options& options,
                                                  int on) noexcept {
    if (const auto other = std::exchange(meanwhile, nullptr)) {
      other();
    }
    return minimal_cache::create_sequence(prompt, options, on);
  }

  std::function<void()> meanwhile;
};

TEST_CASE("a request is not resumed on what it was before another thread resumed and preempted it", "[requests]") {
  auto notes = note_keeper::notes{};
  auto pool = tracked_cache<interrupted_cache, note_keeper>{8, {}, note_keeper{&notes}};
  const auto tokens = pool.fresh_tokens(2 * block_size);
  const auto waits = GENERATE(false, true);
  const auto id = waits ? pool.tracker.enqueue().value() : pool.running_on(tokens);
  REQUIRE((waits || pool.tracker.preempt(id)));
  pool.cache.meanwhile = [&] {
    REQUIRE(pool.tracker.resume(id, tokens));
    REQUIRE(pool.tracker.preempt(id));
  };
  const auto refused = pool.tracker.resume(id, tokens);
  CHECK(code_of(refused) == error_code::sequence_busy);
  CHECK(refused.error().subject == std::string_view{"id of a request that another thread has resumed"});
  CHECK(pool.state(id) == request_state::preempted);
  CHECK(pool.in_use() == 0);
  const auto resumed = pool.tracker.resume(id, tokens);
  REQUIRE(resumed);
  CHECK(resumed->num_cached_tokens == (waits ? block_size / 2 : 0));  // or the refused one has taken it
  CHECK(notes.saved.empty());
}

TEST_CASE("a request is not resumed while its K/V is being saved, and what is saved of an ended one goes",
          "[requests]") {
  auto notes = note_keeper::notes{};
  auto pool = tracked_cache<minimal_cache, note_keeper>{4, {}, note_keeper{&notes}};
  const auto tokens = pool.fresh_tokens(2 * block_size);
  const auto id = pool.running_on(tokens);
  auto meanwhile = std::string{};
  notes.while_saving = [&] { meanwhile = pool.tracker.resume(id, tokens).error().message(); };
  REQUIRE(pool.tracker.preempt(id, 1));
  CHECK(meanwhile == "sequence busy: id of a request whose K/V is being saved is " +
                         std::to_string(static_cast<std::uint64_t>(id)));
  REQUIRE(pool.tracker.resume(id, tokens, 2));
  notes.while_saving = [&] { static_cast<void>(pool.tracker.cancel(id)); };
  REQUIRE(pool.tracker.preempt(id, 3));
  CHECK(pool.state(id) == request_state::cancelled);
  CHECK(notes.saved.empty());
  CHECK(pool.in_use() == 0);
}

/// Serves requests that together need more blocks than there are, each of which may preempt. Resumes preempted ones in
/// the tracker's order, or the other way round. Returns how many were preempted, by appends and by resumptions.
template <class Cache>
std::pair<std::int64_t, std::int64_t> serve_in_a_small_pool(bool in_order) {
  constexpr auto num_requests = std::size_t{12};
  constexpr auto answer = 5 * block_size;
  auto pool = tracked_cache<Cache>{24};
  auto texts = std::map<request_id, std::vector<token>>{};
  auto left = std::map<request_id, std::int64_t>{};
  auto by_resumptions = std::int64_t{0};
  for (std::size_t i = 0; i < num_requests; ++i) {
    const auto tokens = pool.fresh_tokens(2 * block_size);
    const auto id = pool.running_on(tokens, with_priority(50, true));
    texts[id] = tokens;
    left[id] = answer;
  }
  const auto commit_all = [&](request_id id) {
    if constexpr (requires { pool.cache.commit(sequence_id{}, 0); }) {
      REQUIRE(pool.cache.commit(pool.sequence(id), std::ssize(texts[id])));
    }
  };
  for (auto step = 0; step < 10'000 && !left.empty(); ++step) {
    for (auto each = left.begin(); each != left.end();) {
      const auto id = each->first;
      const auto next = static_cast<token>(step);
      if (pool.state(id) != request_state::running || !pool.tracker.append(id, next)) {
        ++each;
        continue;
      }
      texts[id].push_back(next);
      commit_all(id);
      if (--each->second == 0) {
        REQUIRE(pool.tracker.finish(id));
        each = left.erase(each);
      } else {
        ++each;
      }
    }
    auto waiting = pool.tracker.resumable().value();
    if (!in_order) {
      std::ranges::reverse(waiting);
    }
    for (const auto id : waiting) {
      const auto resumed = pool.tracker.resume(id, texts[id]);
      by_resumptions += std::ssize(resumed.preempted());
      if (!resumed) {
        break;
      }
      commit_all(id);
    }
  }
  CHECK(left.empty());
  CHECK(pool.tracker.resumable()->empty());
  pool.check_invariants();
  return {pool.tracker.statistics().preemptions - by_resumptions, by_resumptions};
}

TEMPLATE_LIST_TEST_CASE("requests resumed in the tracker's order preempt none that came in their place", "[requests]",
                        all_caches) {
  const auto [by_appends, by_resumptions] = serve_in_a_small_pool<TestType>(true);
  CHECK(by_appends > 0);
  CHECK(by_resumptions == 0);
  CHECK(serve_in_a_small_pool<TestType>(false).second > 0);
}

}  // namespace
