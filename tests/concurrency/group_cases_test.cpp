#include "../support/small_granules.hpp"
#include "../support/stopping_backend.hpp"
#include "shared_cases.hpp"

#include <pagedkv/pagedkv.hpp>
#include <pagedkv/policy/locking/parts/guards.hpp>
#include <pagedkv/policy/locking/parts/mutexes.hpp>
#include <pagedkv/policy/locking/sharded_mutex.hpp>

#include <catch2/catch_template_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/generators/catch_generators_adapters.hpp>
#include <catch2/generators/catch_generators_random.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <barrier>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <thread>
#include <vector>

/// The cases of cases_test.cpp, for caches with groups under the locking policies that let threads share them.
namespace {

using namespace pagedkv;
using namespace pagedkv::test;

template <class Locking>
using cache_type = group_cache<float32, Locking, stopping_backend>;

constexpr auto full = group_config{.key_dim = 1, .value_dim = 1};
constexpr auto window = group_config{.kind = group_kind::window, .key_dim = 1, .value_dim = 1, .window = 4};
constexpr auto state = group_config{.kind = group_kind::state, .state_bytes = 4};

/// Tokens of a block of each group that holds them.
constexpr auto block_size = 2;

cache_config config_of(group_list groups, std::int32_t num_blocks, std::int32_t max_sequences = 64) {
  auto config = cache_config{};
  config.groups = groups;
  config.block_size = block_size;
  config.num_blocks = num_blocks;
  config.max_sequences = max_sequences;
  config.hash_seed = 1;
  return config;
}

std::int32_t blocks_for(const cache_config& config, std::int32_t num_tokens) {
  const auto plan = plan_memory(config.groups, size_of_element<float32>, config.block_size).value();
  auto count = 0;
  for (const auto& group : plan.groups) {
    count += group.blocks_per_state;
    count += group.block_size == 0 ? 0 : (num_tokens + group.block_size - 1) / group.block_size;
  }
  return count;
}

}  // namespace

TEMPLATE_TEST_CASE("case 1: hitters and an evictor see the bytes of their tokens or a miss", "[cases][group_cache]",
                   rw_lock, sharded_mutex) {
  constexpr auto num_hitters = 4;
  constexpr auto length = std::int64_t{12};
  const auto rounds = testing::scaled(3'000, 50'000);
  auto cache = cache_type<TestType>{config_of({full, window}, 24)};
  auto wrong = std::atomic{0};
  auto num_hits = std::atomic{0};
  const auto serve = [&](token first) {
    const auto prompt = numbered(length, first);
    const auto made = cache.create_sequence(prompt);
    if (!made) {
      return;
    }
    const auto cached = made->num_cached_tokens;
    num_hits += cached != 0;
    const auto key_of = [&](std::int64_t position) { return static_cast<float>(first + position); };
    for (auto i = std::int64_t{0}; i < cached; ++i) {
      wrong += key_at(cache, made->id, i, 0) != key_of(i);
      wrong += i >= window.first_needed(cached) && key_at(cache, made->id, i, 1) != key_of(i);
    }
    for (auto i = cached; i < length; ++i) {
      write_key(cache, made->id, i, key_of(i), 0);
      write_key(cache, made->id, i, key_of(i), 1);
    }
    wrong += !cache.commit(made->id, length) || !cache.release(made->id);
  };
  on_threads(num_hitters + 1, [&](int thread) {
    for (auto round = 0; round < rounds; ++round) {
      serve(thread == 0 ? 1000 + 100 * (round % 50) : 100 * (round % 2));
    }
  });
  CHECK(wrong == 0);
  CHECK(num_hits > 0);
  CHECK(cache.statistics().evictions > 0);
  check_idle(cache);
}

TEMPLATE_TEST_CASE("case 4: a sequence that two threads release ends once", "[cases][group_cache]", rw_lock,
                   sharded_mutex) {
  auto cache = cache_type<TestType>{config_of({full, window, state}, 16)};
  check_ends_once(cache, testing::scaled(2'000, 100'000));
}

TEMPLATE_TEST_CASE("case 6: threads that ask for more than there is get blocks of every group or none",
                   "[cases][group_cache]", rw_lock, sharded_mutex) {
  constexpr auto num_threads = 8;
  auto config = config_of({full, window, state}, 0);
  const auto share = blocks_for(config, 11);
  config.num_blocks = share * num_threads - 1;
  auto cache = cache_type<TestType>{config};
  check_all_or_nothing<num_threads>(cache, 11, share, testing::scaled(200, 10'000));
}

TEMPLATE_TEST_CASE("case 8: threads get blocks or a refusal while most are pinned", "[cases][group_cache]", rw_lock,
                   sharded_mutex) {
  constexpr auto num_threads = 8;
  constexpr auto length = std::int64_t{200};
  const auto rounds = testing::scaled(500, 20'000);
  auto cache = cache_type<TestType>{config_of({full, window}, 220)};
  const auto first = cache.create_sequence(numbered(length)).value().id;
  cache.commit(first, length).value();
  const auto pinned = cache.pin(numbered(length)).value();
  REQUIRE(pinned.num_tokens == length);
  cache.release(first).value();
  const auto in_use = cache.statistics().blocks.in_use;
  const auto num_left = 220 - in_use;

  auto num_granted = std::atomic{0};
  auto wrong = std::atomic{0};
  on_threads(num_threads, [&](int thread) {
    for (auto round = 0; round < rounds; ++round) {
      const auto num_tokens = 1 + (round * 7 + thread) % static_cast<int>(num_left);
      const auto made = cache.create_sequence(numbered(static_cast<std::size_t>(num_tokens), 10'000 * (thread + 1)));
      if (made) {
        ++num_granted;
        wrong += !cache.commit(made->id, num_tokens) || !cache.release(made->id);
      } else {
        wrong += made.error().code != error_code::capacity_exhausted && made.error().code != error_code::never_fits;
      }
    }
  });
  CHECK(wrong == 0);
  CHECK(num_granted > 0);
  CHECK(cache.find_prefix(numbered(length + 1)) == length);
  cache.unpin(pinned.id).value();
  check_idle(cache);
}

TEMPLATE_TEST_CASE("case 10: two sequences that append to shared blocks get their own bytes", "[cases][group_cache]",
                   rw_lock, sharded_mutex) {
  const auto rounds = testing::scaled(1'000, 100'000);
  auto cache = cache_type<TestType>{config_of({full, window}, 16)};
  auto ids = std::array<sequence_id, 2>{};
  auto wrong = std::atomic{0};
  auto gather = std::barrier{2};
  on_threads(2, [&](int thread) {
    const auto own = static_cast<std::size_t>(thread);
    for (auto round = 0; round < rounds; ++round) {
      if (thread == 0) {
        ids[0] = cache.create_sequence(numbered(1)).value().id;
        write_key(cache, ids[0], 0, 10.0F, 0);
        write_key(cache, ids[0], 0, 11.0F, 1);
        cache.commit(ids[0], 1).value();
        ids[1] = cache.fork(ids[0]).value();
      }
      gather.arrive_and_wait();
      cache.append(ids[own], token{7 + thread}).value();
      for (const auto group : {std::size_t{0}, std::size_t{1}}) {
        write_key(cache, ids[own], 1, 20.0F + static_cast<float>(thread), group);
      }
      gather.arrive_and_wait();
      wrong += key_at(cache, ids[own], 0, 0) != 10.0F || key_at(cache, ids[own], 0, 1) != 11.0F;
      for (const auto group : {std::size_t{0}, std::size_t{1}}) {
        wrong += key_at(cache, ids[own], 1, group) != 20.0F + static_cast<float>(thread);
      }
      gather.arrive_and_wait();
      if (thread == 0) {
        wrong += !cache.release(ids[0]) || !cache.release(ids[1]);
      }
    }
  });
  CHECK(wrong == 0);
  CHECK(cache.statistics().copies == 2 * rounds);  // one of the two sequences copies a block of each group
  check_idle(cache);
}

TEMPLATE_TEST_CASE("case 11: hashes of 8 bits give no wrong hit of groups", "[cases][group_cache][random]", rw_lock,
                   sharded_mutex) {
  constexpr auto num_texts = 200;
  const auto seed = GENERATE(take(1, random(0U, 0xffff'ffffU)));
  CAPTURE(seed);
  auto cache = group_cache<float32, TestType, hash_of_8_bits>{config_of({full, window}, 8 * num_texts, num_texts)};
  check_no_wrong_hits(cache, num_texts, testing::scaled(3'000, 500'000), seed);
}

TEMPLATE_TEST_CASE("statistics of a cache with groups can be read while threads are at work", "[cases][group_cache]",
                   rw_lock, sharded_mutex) {
  auto cache = cache_type<TestType>{config_of({full, window, state}, 128)};
  auto done = std::atomic{0};
  auto wrong = std::atomic{0};
  on_threads(3, [&](int thread) {
    if (thread == 2) {
      while (done < 2) {
        const auto statistics = cache.statistics();
        wrong += statistics.num_tokens < 0 || statistics.num_tokens > 2 * 35;
        wrong += statistics.blocks.free + statistics.blocks.in_use + statistics.blocks.evictable != 128;
        wrong += cache.memory().sequences <= 0;
      }
      return;
    }
    for (auto round = 0; round < testing::scaled(2'000, 50'000); ++round) {
      const auto id = cache.create_sequence(numbered(5, 100 * thread)).value().id;
      for (auto i = 0; i < 30; ++i) {
        wrong += !cache.append(id, token{i});
      }
      wrong += !cache.commit(id, 35);
      wrong += !cache.release(id);
    }
    ++done;
  });
  CHECK(wrong == 0);
  check_idle(cache);
}

TEMPLATE_TEST_CASE("a second operation on a sequence with groups waits for the first", "[cases][group_cache]", rw_lock,
                   sharded_mutex) {
  auto gate = stopping_backend::gate{};
  auto backend = stopping_backend{};
  backend.stop = &gate;
  auto cache = cache_type<TestType>{config_of({full, window}, 16), host_allocator{}, backend};
  const auto id = cache.create_sequence(numbered(1)).value().id;
  cache.commit(id, 1).value();
  const auto other = cache.fork(id).value();

  gate.closed = true;
  auto first = std::jthread{[&] { cache.append(id, token{100}).value(); }};
  gate.reached.wait(false);
  auto second = std::jthread{[&] { cache.append(id, token{101}).value(); }};
  gate.closed = false;
  gate.closed.notify_all();
  first.join();
  second.join();
  auto expected = numbered(1);
  expected.insert(expected.end(), {100, 101, 0});
  cache.commit(id, 3).value();
  CHECK(cache.find_prefix(expected) == 2);  // in the order in which they came
  for (const auto each : {id, other}) {
    cache.release(each).value();
  }
  check_idle(cache);
}

TEST_CASE("sequences with groups go on inside their blocks while another one copies", "[cases][group_cache]") {
  auto gate = stopping_backend::gate{};
  auto backend = stopping_backend{};
  backend.stop = &gate;
  auto cache = cache_type<sharded_mutex>{config_of({full, window}, 16), host_allocator{}, backend};
  const auto shared = cache.create_sequence(numbered(1)).value().id;
  cache.commit(shared, 1).value();
  const auto forked = cache.fork(shared).value();
  const auto other = cache.create_sequence(numbered(1, 100)).value().id;
  cache.commit(other, 1).value();

  gate.closed = true;
  auto copying = std::jthread{[&] { cache.append(shared, token{7}).value(); }};
  gate.reached.wait(false);
  auto slots = std::array<slot, 4>{};
  auto failures = std::array<batch_failure, 1>{};
  const auto next = numbered(1, 101);
  const auto entry = batch_entry{.id = other, .run = next, .num_computed_tokens = 1};
  CHECK(cache.append_batch({&entry, 1}, {slots, failures})->num_failures == 0);
  CHECK(cache.commit(forked, 1));
  CHECK(cache.describe(other)->num_tokens == 2);
  auto batch = padded_batch{1, 4};
  CHECK(cache.update(batch, std::array{other}));
  CHECK(cache.slot_mapping(other, 0, std::span{slots}.first(2), 1));
  gate.closed = false;
  gate.closed.notify_all();
  copying.join();
  for (const auto each : {shared, forked, other}) {
    cache.release(each).value();
  }
  check_idle(cache);
}

/// Every operation from several threads at once, on sequences of their own and on shared prefixes.
TEMPLATE_TEST_CASE("threads do everything at once to a cache with groups", "[cases][group_cache][random]", rw_lock,
                   sharded_mutex) {
  constexpr auto num_threads = 4;
  const auto rounds = testing::scaled(3'000, 50'000);
  const auto seed = GENERATE(take(1, random(0U, 0xffff'ffffU)));
  CAPTURE(seed);
  auto cache = cache_type<TestType>{config_of({full, window, state}, 160)};
  auto wrong = std::atomic{0};
  on_threads(num_threads, [&](int thread) {
    auto random = std::mt19937{seed + static_cast<unsigned>(thread)};
    const auto below = [&](unsigned end) { return static_cast<int>(random() % end); };
    auto batch = padded_batch{1, 64};
    for (auto round = 0; round < rounds; ++round) {
      const auto prompt = numbered(static_cast<std::size_t>(1 + below(20)), 100 * below(3));
      const auto made = cache.create_sequence(prompt);
      if (!made) {
        continue;
      }
      const auto id = made->id;
      const auto used = std::array{id};
      const auto step = cache.begin_step(used);
      static_cast<void>(cache.append(id, numbered(static_cast<std::size_t>(below(5)), 7)));
      const auto length = cache.describe(id).value().num_tokens;
      wrong += !cache.commit(id, std::min(length, cache.next_saved_length(id).value())) || !cache.commit(id, length);
      if (const auto forked = below(3) == 0 ? cache.fork(id) : result<sequence_id>{error{}}) {
        wrong += !cache.release(*forked);
      }
      if (const auto pinned = below(4) == 0 ? cache.pin(prompt) : result<pinning>{error{}}) {
        wrong += cache.find_prefix(prompt) > pinned->num_tokens + length;
        wrong += !cache.unpin(pinned->id);
      }
      static_cast<void>(cache.would_fit(prompt));
      static_cast<void>(cache.reserve_slots(id, below(4)));
      wrong += !cache.truncate(id, length);
      auto slots = std::array<slot, 64>{};
      auto failures = std::array<batch_failure, 1>{};
      const auto added = numbered(static_cast<std::size_t>(below(4)), 7);
      const auto entry = batch_entry{.id = id, .run = added, .num_computed_tokens = length};
      const auto appended = cache.append_batch({&entry, 1}, {slots, failures}).value().num_failures == 0;
      wrong += cache.describe(id).value().num_tokens != length + (appended ? std::ssize(added) : 0);
      auto copied = std::vector<token>(prompt.size());
      wrong += !cache.tokens(id, 0, copied) || copied != prompt;
      wrong += !cache.slot_mapping(id, 0, std::span{slots}.first(1), 1);
      wrong += !cache.update(batch, used, static_cast<std::size_t>(below(2)));
      wrong += cache.gain_of_releasing(used, prompt).value().at_once < 0;
      wrong += cache.common_prefix(used).value() < 0;
      if (below(32) == 0) {
        cache.invalidate_prefix(prompt);
      }
      auto victims = std::array<block_id, 2>{};
      if (step && below(8) == 0) {
        wrong += !cache.evict(victims, *step);
      }
      wrong += step && !cache.retire_step(*step);
      if (below(16) == 0) {
        const auto moved = cache.compact();
        wrong += !moved && moved.error().code != error_code::in_use;
      }
      wrong += !cache.release(id);
    }
  });
  CHECK(wrong == 0);
  check_idle(cache);
  CHECK(cache.reset_prefix_cache());
  CHECK(cache.statistics().blocks == block_counts{.free = 160});
}

namespace {

template <class Locking>
using sized_cache = group_cache<float32, Locking, small_granules>;

/// One thread's requests to a cache whose size another thread changes. Tokens of one text and salt have equal K/V and
/// states everywhere, and others have others.
template <class Locking>
class sized_requests {
 public:
  /// Blocks move only under `kernels`, alone.
  sized_requests(sized_cache<Locking>& cache, fair_shared_mutex& kernels, unsigned seed)
      : cache_(cache), kernels_(kernels), random_(seed) {}

  [[nodiscard]] int num_wrong() const { return num_wrong_; }
  [[nodiscard]] int num_hits() const { return num_hits_; }

  void serve_one() {
    const auto text_number = below(4);
    const auto tag = below(2);
    number_ = static_cast<float>(1000 * text_number + 100 * tag);
    const auto prompt = numbered(static_cast<std::size_t>(1 + below(20)), 1000 * text_number);
    const auto made = cache_.create_sequence(prompt, {.salt = salt{static_cast<std::uint64_t>(tag)}});
    if (!made) {
      num_wrong_ += !is_full(made.error());
      return;
    }
    id_ = made->id;
    const auto used = std::array{id_};
    const auto step = below(4) == 0 ? cache_.begin_step(used) : result<step_id>{error{}};
    num_hits_ += made->num_cached_tokens != 0;
    compare_hit(made->num_cached_tokens);
    const auto length = made->num_tokens + extend(1000 * text_number + static_cast<token>(made->num_tokens));
    compute(made->num_cached_tokens, length);
    compare(0, 0, length);
    fork(length);
    num_wrong_ += step && !cache_.retire_step(*step);
    num_wrong_ += !cache_.release(id_);
  }

 private:
  int below(unsigned end) { return static_cast<int>(random_() % end); }
  [[nodiscard]] static bool is_full(const error& refused) {
    return refused.code == error_code::capacity_exhausted || refused.code == error_code::never_fits;
  }

  /// Before any of the block is published: a hit inside it copies all of it.
  [[nodiscard]] int extend(token first) {
    const auto added = below(6);
    if (const auto appended = cache_.append(id_, numbered(static_cast<std::size_t>(added), first)); !appended) {
      num_wrong_ += !is_full(appended.error());
      return 0;
    }
    return added;
  }

  void fork(std::int64_t length) {
    if (const auto forked = below(3) == 0 ? cache_.fork(id_) : result<sequence_id>{error{}}) {
      num_wrong_ += !cache_.release(id_);
      id_ = *forked;
      compare(0, 0, length);
      compare_state(length);
    }
  }

  /// Writes K/V of these tokens and the state behind them, and commits them, with a state saved where one is wanted.
  void compute(std::int64_t from, std::int64_t to) {
    {
      const auto guard = shared_guard{kernels_};
      for (auto i = from; i < to; ++i) {
        write_key(cache_, id_, i, key_of(i), 0);
        write_key(cache_, id_, i, key_of(i), 1);
      }
    }
    for (const auto length : {std::min(to, cache_.next_saved_length(id_).value()), to}) {
      {
        const auto guard = shared_guard{kernels_};
        const auto number = state_of(length);
        std::memcpy(state_bytes(), &number, sizeof number);
      }
      num_wrong_ += !cache_.commit(id_, length);
    }
  }

  void compare_hit(std::int64_t cached) {
    compare(0, 0, cached);
    compare(1, window.first_needed(cached), cached);
    if (cached != 0) {
      compare_state(cached);
    }
  }
  void compare(std::size_t group, std::int64_t from, std::int64_t to) {
    const auto guard = shared_guard{kernels_};
    for (auto i = from; i < to; ++i) {
      num_wrong_ += key_at(cache_, id_, i, group) != key_of(i);
    }
  }
  void compare_state(std::int64_t length) {
    const auto guard = shared_guard{kernels_};
    auto number = 0.0F;
    std::memcpy(&number, state_bytes(), sizeof number);
    num_wrong_ += number != state_of(length);
  }

  [[nodiscard]] float key_of(std::int64_t position) const { return number_ + static_cast<float>(position); }
  [[nodiscard]] float state_of(std::int64_t length) const { return number_ + static_cast<float>(length) + 0.5F; }
  [[nodiscard]] std::byte* state_bytes() {
    auto blocks = std::array<block_id, 1>{};
    cache_.block_table(id_, blocks, 0, 2).value();
    return cache_.state_part(2, blocks.front(), 0);
  }

  sized_cache<Locking>& cache_;
  fair_shared_mutex& kernels_;
  std::mt19937 random_;
  sequence_id id_{};
  float number_ = 0.0F;
  int num_wrong_ = 0;
  int num_hits_ = 0;
};

}  // namespace

TEMPLATE_TEST_CASE("threads see the bytes of their tokens while others resize and invalidate",
                   "[cases][group_cache][random]", rw_lock, sharded_mutex) {
  constexpr auto most_blocks = 160;
  const auto seed = GENERATE(take(1, random(0U, 0xffff'ffffU)));
  CAPTURE(seed);
  auto config = config_of({full, window, state}, 60);
  config.max_blocks = most_blocks;
  auto cache = sized_cache<TestType>{config};
  const auto num_invalidated = serve_while_others_change<sized_requests<TestType>>(cache, most_blocks, seed);
  CHECK(num_invalidated == cache.statistics().invalidations);
  check_resizes(cache, most_blocks);
}
