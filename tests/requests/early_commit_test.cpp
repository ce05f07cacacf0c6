#include "../support/everyday_seed.hpp"
#include "tracked_cache.hpp"

#include <pagedkv/policy/groups/all.hpp>
#include <pagedkv/tier/tiered_cache.hpp>

#include <catch2/catch_template_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/generators/catch_generators_adapters.hpp>
#include <catch2/generators/catch_generators_random.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

namespace {

using namespace pagedkv;
using namespace pagedkv::test;

/// Four blocks, of which a request of low rank has published three for a launch that is still to come.
template <class Cache>
struct early_commit : tracked_cache<Cache> {
  early_commit() : tracked_cache<Cache>{4} {}

  [[nodiscard]] auto submit_high(std::int64_t num_blocks) {
    return this->tracker.submit(this->fresh_tokens(num_blocks * block_size), with_priority(90, true));
  }
  [[nodiscard]] std::int64_t num_found() { return this->cache.find_prefix(longer); }

  step_id step = this->cache.begin_step(std::span<const sequence_id>{}).value();
  std::vector<token> prompt = this->fresh_tokens(3 * block_size);
  std::vector<token> longer = [this] {
    auto one_more = prompt;
    one_more.push_back(7);
    return one_more;
  }();
  request_id low = this->running_on(prompt, with_priority(10));
};

TEMPLATE_LIST_TEST_CASE("what is published for a launch goes with its writer", "[requests]", caches) {
  auto pool = early_commit<TestType>{};
  CHECK(pool.num_found() == 3 * block_size);
  const auto high = pool.submit_high(2);
  REQUIRE(high);
  CHECK(high.preempted() == std::vector{pool.low});
  CHECK(pool.num_found() == 0);
  CHECK(pool.cache.statistics().blocks.free == 2);
  pool.check_invariants();

  const auto again = pool.tracker.resume(pool.low, pool.longer);
  CHECK_FALSE(again);
  REQUIRE(pool.tracker.finish(high->id));
  REQUIRE(pool.tracker.resume(pool.low, pool.longer));
  CHECK(pool.tracker.describe(pool.low)->options.sequence.publish);
  pool.check_invariants();
}

TEMPLATE_LIST_TEST_CASE("what a launch has written stays cached", "[requests]", caches) {
  auto pool = early_commit<TestType>{};
  SECTION("the step has retired") { REQUIRE(pool.cache.retire_step(pool.step)); }
  SECTION("another step has begun") { REQUIRE(pool.cache.begin_step(std::span<const sequence_id>{})); }
  SECTION("another step has begun, and retired before") {
    REQUIRE(pool.cache.retire_step(pool.cache.begin_step(std::span<const sequence_id>{}).value()));
  }
  REQUIRE(pool.tracker.preempt(pool.low));
  CHECK(pool.num_found() == 3 * block_size);
  pool.check_invariants();
}

TEMPLATE_LIST_TEST_CASE("a batch commits what the step before has written, unless it only commits", "[requests]",
                        caches) {
  auto pool = early_commit<TestType>{};
  const auto tokens = pool.fresh_tokens(block_size);
  const auto other = pool.tracker.submit(tokens, with_priority(10)).value();
  const auto only_commits = GENERATE(false, true);
  const auto next = std::vector<token>(only_commits ? 0 : 1);
  REQUIRE(pool.tracker.finish(pool.low));
  const auto entries = std::array{batch_entry{other.sequence, token_run{next}, block_size}};
  auto slots = std::array<slot, 1>{};
  auto failures = std::array<batch_failure, 1>{};
  REQUIRE(pool.cache.append_batch(entries, {.slots = slots, .failures = failures})->num_failures == 0);
  REQUIRE(pool.tracker.preempt(other.id));
  auto longer = tokens;
  longer.push_back(7);
  CHECK(pool.cache.find_prefix(longer) == (only_commits ? 0 : block_size));
  pool.check_invariants();
}

TEMPLATE_LIST_TEST_CASE("a refused commit publishes nothing for a launch", "[requests]", caches) {
  auto pool = early_commit<TestType>{};
  const auto tokens = pool.fresh_tokens(block_size);
  REQUIRE(pool.tracker.finish(pool.low));
  const auto other = pool.tracker.submit(tokens).value();
  auto slots = std::array<slot, 1>{};
  auto failures = std::array<batch_failure, 1>{};
  const auto try_to = [&](const batch_entry& entry) {
    return pool.cache.append_batch(std::array{entry}, {.slots = slots, .failures = failures})->num_failures == 0;
  };
  if (GENERATE(false, true)) {
    CHECK_FALSE(try_to({.id = other.sequence, .num_computed_tokens = block_size + 1}));
  } else {
    CHECK(code_of(pool.cache.commit(other.sequence, block_size + 1)) == error_code::invalid_argument);
  }
  const auto next = std::array<token, 1>{7};
  REQUIRE(try_to({other.sequence, token_run{next}, block_size}));  // the step before has written them
  REQUIRE(pool.tracker.preempt(other.id));
  auto longer = tokens;
  longer.push_back(7);
  CHECK(pool.cache.find_prefix(longer) == block_size);
}

TEMPLATE_LIST_TEST_CASE("a request whose launch others need does not give way", "[requests]", caches) {
  auto pool = early_commit<TestType>{};
  const auto check_held = [&] {
    const auto refused = pool.submit_high(2);
    CHECK(code_of(refused) == error_code::capacity_exhausted);
    CHECK(refused.preempted().empty());
    CHECK(code_of(pool.tracker.preempt(pool.low)) == error_code::in_use);
    const auto kept = pool.cache.withdraw(pool.sequence(pool.low));
    CHECK(code_of(kept) == error_code::in_use);
    CHECK(kept.error().subject == std::string_view{"number of blocks that others share ahead of their launch"});
    CHECK(pool.state(pool.low) == request_state::running);
    CHECK(pool.num_found() == 3 * block_size);
    pool.check_invariants();
  };
  SECTION("a sequence shares its blocks") {
    const auto sharing = pool.tracker.submit(pool.longer, with_priority(10));
    REQUIRE(sharing->num_cached_tokens == 3 * block_size);
    check_held();
    REQUIRE(pool.tracker.finish(sharing->id));
  }
  SECTION("one has continued them") {
    const auto sharing = pool.tracker.submit(pool.longer, with_priority(95)).value();
    check_held();
    REQUIRE(pool.tracker.preempt(sharing.id));
  }
  SECTION("a fork of it does, which gives way itself") {
    const auto forked = pool.tracker.fork(pool.low).value();
    check_held();
    REQUIRE(pool.tracker.preempt(forked.id));
    CHECK(pool.num_found() == 3 * block_size);
  }
  SECTION("they are pinned") {
    const auto pinned = pool.cache.pin(pool.longer).value();
    check_held();
    REQUIRE(pool.cache.unpin(pinned.id));
  }
  REQUIRE(pool.tracker.preempt(pool.low));
  CHECK(pool.num_found() == 0);
  pool.check_invariants();
}

TEMPLATE_LIST_TEST_CASE("a request whose prefix the beneficiary would share does not give way", "[requests]", caches) {
  auto pool = early_commit<TestType>{};
  const auto tokens = pool.fresh_tokens(block_size);
  REQUIRE(pool.running_on(tokens, with_priority(95)) != request_id{});
  const auto shares = pool.tracker.submit(pool.longer, with_priority(90, true));
  CHECK(code_of(shares) == error_code::capacity_exhausted);
  CHECK(shares.preempted().empty());
  CHECK(pool.num_found() == 3 * block_size);
}

TEMPLATE_LIST_TEST_CASE("nobody forks a sequence that gives way", "[requests]", caches) {
  auto pool = early_commit<TestType>{};
  const auto sequence = pool.sequence(pool.low);
  REQUIRE(pool.cache.withdraw(sequence));
  const auto forked = pool.cache.fork(sequence);  // as between the steps of a preemption
  CHECK(code_of(forked) == error_code::in_use);
  CHECK(forked.error().subject == std::string_view{"id of a sequence that gives way, to fork"});
  CHECK(code_of(pool.tracker.fork(pool.low)) == error_code::in_use);
  REQUIRE(pool.tracker.preempt(pool.low));
  const auto next = pool.running(1);  // which may have its record
  CHECK(pool.tracker.fork(next));
  pool.check_invariants();
}

/// Calls `meanwhile()`, once, ahead of the next withdrawal, as if another thread came in between.
struct interrupted_withdrawal : kv_cache<rw_lock> {
  using base = kv_cache<rw_lock>;

  explicit interrupted_withdrawal(const cache_config& config) : base(config) {}

  [[nodiscard]] result<std::int64_t> withdraw(sequence_id id) noexcept {
    if (const auto other = std::exchange(meanwhile, nullptr)) {
      other();
    }
    return base::withdraw(id);
  }

  std::function<void()> meanwhile;
};

TEST_CASE("a request that another thread preempts and resumes meanwhile keeps what it then publishes", "[requests]") {
  auto pool = early_commit<interrupted_withdrawal>{};
  pool.cache.meanwhile = [&] {
    REQUIRE(pool.tracker.preempt(pool.low));
    const auto resumed = pool.tracker.resume(pool.low, pool.prompt);
    REQUIRE(resumed);
    REQUIRE(pool.cache.commit(resumed->sequence, 3 * block_size));
  };
  CHECK(code_of(pool.tracker.preempt(pool.low)) == error_code::sequence_busy);
  CHECK(pool.state(pool.low) == request_state::running);
  CHECK(pool.num_found() == 3 * block_size);
  REQUIRE(pool.tracker.preempt(pool.low));
  CHECK(pool.num_found() == 0);
  CHECK(pool.tracker.statistics().preemptions == 2);
  pool.check_invariants();
}

TEMPLATE_LIST_TEST_CASE("only what a step has published is withdrawn", "[requests]", caches) {
  auto pool = early_commit<TestType>{};
  REQUIRE(pool.cache.begin_step(std::span<const sequence_id>{}));
  const auto sequence = pool.sequence(pool.low);
  REQUIRE(pool.cache.append(sequence, pool.fresh_tokens(block_size)));
  CHECK(*pool.cache.withdraw(sequence) == 0);
  const auto sharing = pool.tracker.submit(pool.prompt, with_priority(10));  // two blocks, and there is no third
  CHECK_FALSE(sharing);
  REQUIRE(pool.cache.commit(sequence, 4 * block_size));
  CHECK(pool.num_found() == 3 * block_size);  // it publishes nothing any more
  CHECK(code_of(pool.cache.withdraw(sequence_id{})) == error_code::unknown_sequence);
}

TEMPLATE_LIST_TEST_CASE("what a truncation cuts off ahead of its launch goes, too", "[requests]", caches) {
  auto cache = TestType{{.block_size = block_size, .num_blocks = 8, .head_dim = 2, .max_sequences = 4}};
  auto tokens = std::vector<token>(3 * block_size + 1);
  std::iota(tokens.begin(), tokens.end(), 1);
  const auto blocks_of = [&](std::int64_t num_blocks) {
    return std::span{tokens}.first(static_cast<std::size_t>(num_blocks * block_size));
  };
  const auto num_written = GENERATE(std::int64_t{1}, 2);
  const auto before = cache.create_sequence(blocks_of(num_written)).value().id;
  REQUIRE(cache.commit(before, num_written * block_size));
  REQUIRE(cache.begin_step(std::span<const sequence_id>{}));
  const auto cut = cache.create_sequence(blocks_of(3)).value();
  REQUIRE(cut.num_cached_tokens == num_written * block_size);
  REQUIRE(cache.commit(cut.id, 3 * block_size));
  SECTION("to the end of a block") {
    REQUIRE(cache.truncate(cut.id, block_size));
    CHECK(cache.find_prefix(tokens) == num_written * block_size);
    SECTION("and then withdraws") { CHECK(*cache.withdraw(cut.id) == 0); }
    SECTION("and continues") {
      auto others = std::vector<token>(2 * block_size, 100);
      REQUIRE(cache.append(cut.id, others));
      REQUIRE(cache.commit(cut.id, 3 * block_size));
      CHECK(*cache.withdraw(cut.id) == 2);
      auto both = std::vector<token>(tokens.begin(), tokens.begin() + block_size);
      both.insert(both.end(), others.begin(), others.end());
      both.push_back(7);
      CHECK(cache.find_prefix(both) == block_size);
    }
  }
  SECTION("within a block") {
    REQUIRE(cache.truncate(cut.id, num_written * block_size + 1));
    CHECK(cache.find_prefix(tokens) == num_written * block_size);
    REQUIRE(cache.append(cut.id, token{100}));
    REQUIRE(cache.commit(cut.id, num_written * block_size + 2));
    CHECK(cache.check_invariants() == std::vector<std::string>{});
    CHECK(*cache.withdraw(cut.id) == 0);
  }
  REQUIRE(cache.release(cut.id));
  CHECK(cache.find_prefix(tokens) == num_written * block_size);
  CHECK(cache.check_invariants() == std::vector<std::string>{});
}

TEMPLATE_LIST_TEST_CASE("what is computed is what launches have written, when a request gives way", "[requests]",
                        caches) {
  auto pool = early_commit<TestType>{};
  REQUIRE(pool.cache.begin_step(std::span<const sequence_id>{}));
  const auto sequence = pool.sequence(pool.low);
  const auto num_computed = [&] { return pool.cache.describe(sequence)->num_computed_tokens; };
  REQUIRE(pool.cache.append(sequence, pool.fresh_tokens(block_size)));
  SECTION("all") {}
  SECTION("but for a block") { REQUIRE(pool.cache.commit(sequence, 4 * block_size)); }
  SECTION("but for a token") { REQUIRE(pool.cache.commit(sequence, 3 * block_size + 1)); }
  REQUIRE(pool.cache.withdraw(sequence));
  CHECK(num_computed() == 3 * block_size);
  pool.check_invariants();
}

TEMPLATE_LIST_TEST_CASE("a sequence that publishes nothing knows what launches have written", "[requests]", caches) {
  auto cache = TestType{{.block_size = block_size, .num_blocks = 8, .head_dim = 2, .max_sequences = 4}};
  REQUIRE(cache.begin_step(std::span<const sequence_id>{}));
  auto options = sequence_options{};
  options.publish = false;
  const auto tokens = std::vector<token>(3 * block_size);
  const auto sequence = cache.create_sequence(tokens, options).value().id;
  REQUIRE(cache.commit(sequence, 2 * block_size + 1));
  REQUIRE(cache.begin_step(std::span<const sequence_id>{}));
  if (GENERATE(false, true)) {
    REQUIRE(cache.commit(sequence, 3 * block_size));
  }
  CHECK(*cache.withdraw(sequence) == 0);
  CHECK(cache.describe(sequence)->num_computed_tokens == 2 * block_size);
  CHECK(cache.check_invariants() == std::vector<std::string>{});
}

// Real K/V.

/// Keeps the K/V of preempted requests that was written.
struct kv_keeper : recompute {
  static constexpr bool keeps_kv = true;

  template <class Cache>
  void save(Cache& cache, const preemption_candidate& request, typename Cache::stream_type) noexcept {
    const auto count = cache.describe(request.sequence)->num_computed_tokens;
    auto& saved = (*kept)[request.id];
    for (std::size_t g = 0; g < num_groups<Cache>; ++g) {
      auto keys = std::vector<float>(static_cast<std::size_t>(count) * head_dim);
      auto values = keys;
      const auto slots = slots_of(cache, request.sequence, 0, count, g);
      REQUIRE(cache.read(0, slots, contiguous_rows(keys, 1, head_dim), contiguous_rows(values, 1, head_dim), {}, g));
      saved.push_back(std::move(keys));
    }
  }
  template <class Cache>
  std::int64_t restore(Cache& cache, const preemption_candidate& request, std::int64_t num_cached,
                       typename Cache::stream_type) noexcept {
    const auto saved = std::exchange((*kept)[request.id], {});
    auto end = num_cached;
    for (std::size_t g = 0; g < saved.size(); ++g) {
      const auto count = static_cast<std::int64_t>(saved[g].size()) / head_dim;
      end = std::min(count, cache.describe(request.sequence)->num_tokens - 1);
      if (end <= num_cached) {
        return num_cached;
      }
      auto rest = std::vector<float>(saved[g].begin() + num_cached * head_dim, saved[g].begin() + end * head_dim);
      const auto rows = contiguous_rows(std::as_const(rest), 1, head_dim);
      REQUIRE(cache.write(0, slots_of(cache, request.sequence, num_cached, end, g), rows, rows, {}, g));
      ++num_restored;
    }
    return end;
  }
  void discard(request_id id) noexcept { kept->erase(id); }

  static constexpr auto head_dim = std::int32_t{16};
  template <class Cache>
  static constexpr std::size_t num_groups = Cache::layers_differ ? 2 : 1;
  template <class Cache>
  [[nodiscard]] static std::vector<slot> slots_of(Cache& cache, sequence_id id, std::int64_t first, std::int64_t end,
                                                  std::size_t group) {
    auto slots = std::vector<slot>(static_cast<std::size_t>(end - first));
    REQUIRE(cache.slot_mapping(id, first, slots, group));
    return slots;
  }

  std::shared_ptr<std::map<request_id, std::vector<std::vector<float>>>> kept =
      std::make_shared<std::map<request_id, std::vector<std::vector<float>>>>();
  inline static int num_restored = 0;
};

struct row {
  request_id id{};
  sequence_id sequence{};
  std::vector<token> tokens;
  std::int64_t length = 0;       // of the sequence
  std::int64_t num_written = 0;  // with the launches so far
  bool is_running = true;
  bool waits_for_launch = true;  // since it has started, or grown
};

/// An engine whose steps do everything in any order, and which commits ahead of its launches when it likes.
template <class Cache, class Preemption = recompute>
class hasty_engine {
 public:
  template <class... Tiers>
  hasty_engine(std::uint32_t seed, const Tiers&... tiers)
      : random_(seed), cache_(config(), tiers...), tracker_(cache_) {}

  void run(int num_steps) {
    for (auto i = 0; i < num_steps; ++i) {
      const auto step = draw(2) != 0 ? cache_.begin_step() : cache_.begin_step(std::span<const sequence_id>{});
      for (auto left = draw(10); left >= 0; --left) {
        act();
      }
      launch();
      for (auto& r : rows_) {
        commit(r, 2);
      }
      REQUIRE(cache_.retire_step(step.value()));
      probe();
      REQUIRE(cache_.check_invariants() == std::vector<std::string>{});
    }
    CAPTURE(num_early_, num_preempted_, num_withdrawn(), num_kept_, num_shared_, num_cut_);
    const auto least = std::min({num_early_, num_preempted_, num_withdrawn(), num_kept_, num_shared_, num_cut_});
    CHECK((!has_everyday_seed() || least > 4));
  }

 private:
  static constexpr auto head_dim = std::int32_t{16};  // blocks of all groups have as many tokens

  [[nodiscard]] static cache_config config() {
    auto made = cache_config{.block_size = block_size, .num_blocks = 14, .head_dim = head_dim, .max_sequences = 32};
    made.hash_seed = 1;
    if constexpr (Cache::layers_differ) {
      const auto full = group_config{.num_layers = 1, .key_dim = head_dim, .value_dim = head_dim};
      made.groups = {full, full};
    }
    return made;
  }
  [[nodiscard]] int draw(int below) { return static_cast<int>(random_() % static_cast<unsigned>(below)); }
  [[nodiscard]] int num_withdrawn() const { return static_cast<int>(cache_.statistics().invalidations); }

  [[nodiscard]] row* any_running() {
    auto running = std::vector<row*>{};
    for (auto& r : rows_) {
      if (r.is_running) {
        running.push_back(&r);
      }
    }
    return running.empty() ? nullptr : running[static_cast<std::size_t>(draw(static_cast<int>(running.size())))];
  }

  void act() {
    auto* const r = any_running();
    switch (draw(11)) {
      case 0:
      case 1: return submit();
      case 2: return resume();
      case 3: return append_batch();
      case 4: return append(r);
      case 5: return fork(r);
      case 6:
      case 7: return end(r);
      case 8: return draw(3) == 0 ? truncate(r) : preempt(r);
      default: return preempt(r);
    }
  }

  [[nodiscard]] request_options options() {
    return with_priority(static_cast<std::uint8_t>(10 * draw(4)), draw(4) != 0);
  }

  void submit() {
    auto prompt = std::vector<token>(static_cast<std::size_t>(1 + draw(5 * block_size)));
    std::iota(prompt.begin(), prompt.end(), draw(3) * 1000);
    const auto parts = draw(static_cast<int>(prompt.size()) + 1);
    std::iota(prompt.begin() + parts, prompt.end(), next_token_ += 1000);
    start(tracker_.submit(prompt, options()), row{.tokens = prompt});
  }
  void resume() {
    const auto waiting = std::ranges::find(rows_, false, &row::is_running);
    if (waiting != rows_.end()) {
      auto resumed = *waiting;
      rows_.erase(waiting);
      if (!start(tracker_.resume(resumed.id, resumed.tokens), resumed)) {
        rows_.push_back(resumed);
      }
    }
  }
  bool start(const tracker_result<submission>& started, row r) {
    take_away(started.preempted());
    if (started) {
      r.id = started->id;
      r.sequence = started->sequence;
      r.length = std::ssize(r.tokens);
      r.num_written = started->num_cached_tokens;
      r.is_running = r.waits_for_launch = true;
      num_shared_ += r.num_written != 0;
      rows_.push_back(std::move(r));
      commit(rows_.back(), 4);
    }
    return started.has_value();
  }

  /// A row whose last step was launched gets a token.
  void append(row* r) {
    if (r != nullptr && !r->waits_for_launch) {
      const auto next = ++next_token_;
      const auto appended = tracker_.append(r->id, next);
      take_away(appended.preempted());
      if (appended) {
        grow(*r, next);
        commit(*r, 4);
      }
    }
  }
  void append_batch() {
    auto rows = std::vector<row*>{};
    auto ids = std::vector<request_id>{};
    auto next = std::vector<token>{};
    auto entries = std::vector<batch_entry>{};
    for (auto& r : rows_) {
      if (r.is_running && !r.waits_for_launch) {
        rows.push_back(&r);
        ids.push_back(r.id);
        next.push_back(++next_token_);
      }
    }
    for (std::size_t i = 0; i < rows.size(); ++i) {
      entries.push_back({rows[i]->sequence, token_run{std::span{next}.subspan(i, 1)}, rows[i]->length});
    }
    auto slots = std::vector<slot>(2 * rows.size());
    auto failures = std::vector<batch_failure>(rows.size());
    const auto done = tracker_.append_batch(ids, entries, {.slots = slots, .failures = failures});
    REQUIRE(done);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      if (std::ranges::count(std::span{failures}.first(done->num_failures), i, &batch_failure::entry) == 0) {
        grow(*rows[i], next[i]);
      }
    }
    take_away(done.preempted());
  }
  void grow(row& r, token next) {
    r.tokens.push_back(next);
    ++r.length;
    r.waits_for_launch = true;
  }

  void fork(row* r) {
    if (r != nullptr) {
      if (const auto forked = tracker_.fork(r->id)) {
        auto other = *r;
        other.id = forked->id;
        other.sequence = forked->sequence;
        other.num_written = other.length;  // by the other's launch, or before
        other.waits_for_launch = true;
        rows_.push_back(other);
      }
    }
  }
  /// Unless others need its launch, or it holds no block alone.
  void truncate(row* r) {
    if (r != nullptr) {
      const auto least = std::min(r->num_written, r->length - 1);
      const auto length = least + draw(static_cast<int>(r->length - least));
      const auto gain = cache_.gain_of_releasing(std::array{r->sequence}).value();
      if (length != 0 && gain.at_once + gain.with_steps != 0) {
        REQUIRE(cache_.truncate(r->sequence, length));
        r->tokens.resize(static_cast<std::size_t>(length));
        r->length = length;
        r->num_written = std::min(r->num_written, length);
        ++num_cut_;
      }
    }
  }
  void preempt(row* r) {
    if (r != nullptr) {
      const auto preempted = tracker_.preempt(r->id);
      if (preempted) {
        take_away({r->id});
      } else {
        CHECK(preempted.error().code == error_code::in_use);
        ++num_kept_;
      }
    }
  }
  void end(row* r) {
    if (r != nullptr && !r->waits_for_launch) {
      REQUIRE(tracker_.finish(r->id));
      rows_.remove_if([&](const row& each) { return &each == r; });
    }
  }

  void take_away(const std::vector<request_id>& preempted) {
    for (const auto id : preempted) {
      std::ranges::find(rows_, id, &row::id)->is_running = false;
      ++num_preempted_;
    }
  }

  /// Three times out of `most` + 1 (4), or all but one.
  void commit(row& r, int most) {
    if (r.is_running && draw(most) != 0) {
      num_early_ += r.waits_for_launch;
      if (draw(2) != 0) {
        REQUIRE(cache_.commit(r.sequence, r.length));
      } else {
        const auto entries = std::array{batch_entry{.id = r.sequence, .num_computed_tokens = r.length}};
        auto failures = std::array<batch_failure, 1>{};
        REQUIRE(cache_.append_batch(entries, {.failures = failures})->num_failures == 0);
      }
    }
  }

  /// A number that stands for all tokens up to each one.
  [[nodiscard]] static std::vector<float> values_of(std::span<const token> tokens) {
    auto values = std::vector<float>{};
    auto history = std::uint32_t{1};
    for (const auto next : tokens) {
      history = (history ^ static_cast<std::uint32_t>(next + 1)) * 0x9e3779b9U;
      history ^= history >> 15;
      for (auto i = 0; i < head_dim; ++i) {
        values.push_back(static_cast<float>(history >> i % 22 & 2047));  // 11 bits, which every element stores
      }
    }
    return values;
  }
  [[nodiscard]] std::vector<slot> slots_of(sequence_id id, std::int64_t first, std::int64_t end, std::size_t group) {
    auto slots = std::vector<slot>(static_cast<std::size_t>(end - first));
    REQUIRE(cache_.slot_mapping(id, first, slots, group));
    return slots;
  }
  static constexpr std::size_t num_groups = Cache::layers_differ ? 2 : 1;

  void check(sequence_id id, std::span<const token> tokens) {
    const auto expected = values_of(tokens);
    for (std::size_t g = 0; g < num_groups; ++g) {
      auto keys = std::vector<float>(expected.size());
      auto values = keys;
      REQUIRE(cache_.read(0, slots_of(id, 0, std::ssize(tokens), g), contiguous_rows(keys, 1, head_dim),
                          contiguous_rows(values, 1, head_dim), {}, g));
      REQUIRE(keys == expected);
      REQUIRE(values == expected);
    }
  }

  /// All rows write, then all read.
  void launch() {
    for (auto& r : rows_) {
      if (r.is_running && r.num_written < r.length) {
        auto numbers = values_of(r.tokens);
        numbers.erase(numbers.begin(), numbers.begin() + head_dim * r.num_written);
        const auto rows = contiguous_rows(std::as_const(numbers), 1, head_dim);
        for (std::size_t g = 0; g < num_groups; ++g) {
          REQUIRE(cache_.write(0, slots_of(r.sequence, r.num_written, r.length, g), rows, rows, {}, g));
        }
      }
    }
    for (auto& r : rows_) {
      if (r.is_running) {
        r.num_written = r.length;
        r.waits_for_launch = false;
        check(r.sequence, r.tokens);
      }
    }
  }

  /// Between steps, all that look-ups find has been written.
  void probe() {
    auto prompt = std::vector<token>(6 * block_size);
    std::iota(prompt.begin(), prompt.end(), draw(3) * 1000);
    if (!rows_.empty() && draw(2) != 0) {
      prompt = rows_.front().tokens;
      prompt.push_back(1);
    }
    if (const auto made = cache_.create_sequence(prompt, {.first_chunk = 0})) {
      check(made->id, std::span{prompt}.first(static_cast<std::size_t>(made->num_cached_tokens)));
      REQUIRE(cache_.release(made->id));
    }
  }

  std::mt19937 random_;
  Cache cache_;
  request_tracker<Cache, Preemption> tracker_;
  std::list<row> rows_;
  token next_token_ = 100'000;
  int num_early_ = 0;
  int num_preempted_ = 0;
  int num_kept_ = 0;
  int num_shared_ = 0;
  int num_cut_ = 0;
};

using with_groups = std::tuple<kv_cache<>, kv_cache<lock_free, clock_sweep>, kv_cache<layer_groups>>;
using other_caches =
    std::tuple<kv_cache<layer_groups>, kv_cache<layer_groups, sharded_mutex>, kv_cache<host_tier<>>,
               kv_cache<host_tier<>, rw_lock>, kv_cache<host_tier<>, layer_groups>>;
using all_with_memory = decltype(std::tuple_cat(std::declval<caches>(), std::declval<other_caches>()));

TEMPLATE_LIST_TEST_CASE("whatever gives way ahead of a launch, no request reads what nobody wrote",
                        "[requests][random]", all_with_memory) {
  const auto seed = GENERATE(take(1, random(0U, 0xffff'ffffU)));
  CAPTURE(seed);
  if constexpr (requires(TestType cache) { cache.host_bytes(); }) {
    auto tiers = tier_config{};
    tiers.model = "m";
    hasty_engine<TestType>{seed, tiers, host_tier<>{8}}.run(3000);
  } else {
    hasty_engine<TestType>{seed}.run(3000);
  }
}

TEMPLATE_LIST_TEST_CASE("a policy that keeps K/V keeps none that nobody wrote", "[requests][random]", with_groups) {
  const auto seed = GENERATE(take(1, random(0U, 0xffff'ffffU)));
  CAPTURE(seed);
  kv_keeper::num_restored = 0;
  hasty_engine<TestType, kv_keeper>{seed}.run(3000);
  CHECK(kv_keeper::num_restored > 9);
}

}  // namespace
