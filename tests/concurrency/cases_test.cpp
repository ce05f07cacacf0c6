#include "../support/no_chains.hpp"
#include "../support/stopping_backend.hpp"
#include "shared_cases.hpp"

#include <pagedkv/pagedkv.hpp>
#include <pagedkv/policy/eviction/clock_sweep.hpp>
#include <pagedkv/policy/locking/lock_free.hpp>
#include <pagedkv/policy/locking/parts/guards.hpp>
#include <pagedkv/policy/locking/parts/mutexes.hpp>
#include <pagedkv/policy/locking/sharded_mutex.hpp>

#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/generators/catch_generators_adapters.hpp>
#include <catch2/generators/catch_generators_random.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <barrier>
#include <cstdint>
#include <random>
#include <span>
#include <thread>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

/// Cases that systems of this kind have got wrong. Case 7, writers among readers, is in fair_shared_mutex_test.cpp;
/// case 3, a pop that sleeps, in tests/schedules/tagged_index_stack_test.cpp.
namespace {

using namespace pagedkv;
using namespace pagedkv::test;

using lock_free_cache = kv_cache<float32, lock_free, clock_sweep>;
using sharded_cache = kv_cache<float32, sharded_mutex>;
using rw_lock_cache = kv_cache<float32, rw_lock>;
using caches = std::tuple<lock_free_cache, sharded_cache, rw_lock_cache>;

cache_config config_of(std::int32_t num_blocks, std::int32_t block_size, std::int32_t max_sequences = 64) {
  auto config = cache_config{};
  config.head_dim = 1;
  config.block_size = block_size;
  config.num_blocks = num_blocks;
  config.max_sequences = max_sequences;
  config.hash_seed = 1;
  return config;
}

template <class Pool>
block_id allocate(Pool& pool) {
  auto chains = testing::no_chains{};
  auto block = std::array{no_block};
  auto num_evicted = std::int64_t{0};
  return pool.allocate(block, chains, timestamp{0}, num_evicted) ? block[0] : no_block;
}

using pools = std::tuple<block_pool<lock_free, clock_sweep, any_free_block>,
                         block_pool<sharded_mutex, clock_sweep, any_free_block>,
                         block_pool<sharded_mutex, lru, any_free_block>>;

// Plain numbers stand for the bytes: ThreadSanitizer sees them, too.
TEMPLATE_LIST_TEST_CASE("case 1: eight hitters and an evictor see old bytes or a miss", "[cases]", pools) {
  constexpr auto num_hitters = 8;
  const auto rounds = testing::full_numbers() ? 10'000'000 : 200'000;
  auto pool = TestType{1};
  auto bytes = std::array<int, 16>{};
  const auto publish = [&](int value) {
    const auto block = allocate(pool);
    if (block != no_block) {
      bytes.fill(value);
      pool.publish(block);
      pool.release(block, block_release{});
    }
    return block != no_block;
  };
  REQUIRE(publish(0));
  auto torn = std::atomic{0};
  auto num_evicted = 0;
  auto num_hits = std::atomic{0};
  auto done = std::atomic{false};
  on_threads(num_hitters + 1, [&](int thread) {
    if (thread == 0) {
      // On a machine with few processors one side may not get its turn for long.
      for (auto round = 1; round <= rounds || num_evicted == 0 || num_hits < rounds / 100; ++round) {
        num_evicted += publish(round);
      }
      done = true;
    }
    while (!done) {
      if (pool.reference_published(block_id{0})) {
        const auto first = bytes.front();
        torn += std::ranges::any_of(bytes, [&](int byte) { return byte != first; });
        ++num_hits;
        pool.release(block_id{0}, block_release{});
      }
      std::this_thread::yield();  // here rather than while it holds the block
    }
  });
  CHECK(torn == 0);
  CHECK(num_evicted > 0);
  CHECK(pool.counts() == block_counts{.evictable = 1});
}

TEMPLATE_LIST_TEST_CASE("case 2: sixteen threads never share a block, and leave all free", "[cases]", pools) {
  constexpr auto num_threads = 16;
  const auto num_blocks = std::int32_t{1} << (testing::full_numbers() ? 20 : 14);
  const auto rounds = testing::full_numbers() ? 30'000'000 : 20'000;
  auto pool = TestType{num_blocks};
  auto owners = std::vector<std::atomic<bool>>(static_cast<std::size_t>(num_blocks));
  auto num_shared = std::atomic{0};
  auto num_refused = std::atomic{0};
  on_threads(num_threads, [&](int thread) {
    auto held = std::vector<block_id>{};
    auto random = std::minstd_rand{static_cast<unsigned>(thread) + 1};
    for (auto round = 0; round < rounds; ++round) {
      if (held.size() < 100 && random() % 2 == 0) {
        const auto block = allocate(pool);
        if (block == no_block) {
          ++num_refused;
          continue;
        }
        num_shared += owners[to_index(block)].exchange(true);
        held.push_back(block);
      } else if (!held.empty()) {
        std::swap(held[random() % held.size()], held.back());
        owners[to_index(held.back())] = false;
        pool.release(held.back(), block_release{});
        held.pop_back();
      }
    }
    for (const auto block : held) {
      owners[to_index(block)] = false;
      pool.release(block, block_release{});
    }
  });
  CHECK(num_shared == 0);
  CHECK(num_refused == 0);
  CHECK(pool.counts() == block_counts{.free = num_blocks});
}

TEMPLATE_LIST_TEST_CASE("case 4: a block freed twice is freed once, and the second release is an error", "[cases]",
                        caches) {
  const auto rounds = testing::full_numbers() ? 100'000 : 2'000;
  auto cache = TestType{config_of(8, 2)};
  check_ends_once(cache, rounds);
}

TEST_CASE("case 5: a lock-free cache has 70,000 blocks", "[cases]") {
  const auto num_blocks = testing::full_numbers() ? 4'000'000 : 70'000;
  auto cache = lock_free_cache{config_of(num_blocks, 1)};
  constexpr auto num_threads = 2;
  auto held = std::array<sequence_id, num_threads>{};
  on_threads(num_threads, [&](int thread) {
    held[static_cast<std::size_t>(thread)] =
        cache.create_sequence(numbered(static_cast<std::size_t>(num_blocks) / num_threads)).value().id;
  });
  auto seen = std::vector<bool>(static_cast<std::size_t>(num_blocks));
  auto table = std::vector<block_id>(static_cast<std::size_t>(num_blocks) / num_threads);
  auto num_distinct = 0;
  for (const auto id : held) {
    REQUIRE(cache.block_table(id, table).value() == table.size());
    for (const auto block : table) {
      num_distinct += !seen[to_index(block)];
      seen[to_index(block)] = true;
    }
  }
  CHECK(num_distinct == num_blocks);
  CHECK(cache.create_sequence(numbered(1)).error().code == error_code::capacity_exhausted);
  on_threads(num_threads, [&](int thread) { cache.release(held[static_cast<std::size_t>(thread)]).value(); });
  CHECK(cache.statistics().blocks == block_counts{.free = num_blocks});
}

TEMPLATE_LIST_TEST_CASE("case 5: a pool has 4,000,000 blocks", "[cases]", pools) {
  constexpr auto num_blocks = std::int32_t{testing::under_thread_sanitizer ? 400'000 : 4'000'000};
  auto pool = TestType{num_blocks};
  auto seen = std::vector<bool>(num_blocks);
  auto num_distinct = 0;
  for (auto block = allocate(pool); block != no_block; block = allocate(pool)) {
    num_distinct += !seen[to_index(block)];
    seen[to_index(block)] = true;
  }
  CHECK(num_distinct == num_blocks);
  for (auto block = 0; block < num_blocks; ++block) {
    pool.release(block_id{block}, block_release{});
  }
  CHECK(pool.counts() == block_counts{.free = num_blocks});
}

TEMPLATE_LIST_TEST_CASE("case 6: sixteen threads that ask for more than there is get all or nothing", "[cases]",
                        caches) {
  constexpr auto num_threads = 16;
  constexpr auto num_blocks = 160;
  constexpr auto share = num_blocks / num_threads + 1;
  auto cache = TestType{config_of(num_blocks, 1)};
  check_all_or_nothing<num_threads>(cache, share, share, testing::scaled(200, 10'000));
}

TEMPLATE_LIST_TEST_CASE("case 8: with 99 % pinned, sixteen threads get a block or a refusal", "[cases]", caches) {
  constexpr auto num_threads = 16;
  constexpr auto num_blocks = 1'000;
  const auto rounds = testing::full_numbers() ? 100'000 : testing::under_thread_sanitizer ? 100 : 1'000;
  auto cache = TestType{config_of(num_blocks, 1)};
  const auto first = cache.create_sequence(numbered(990)).value().id;
  cache.commit(first, 990).value();
  const auto pinned = cache.pin(numbered(990)).value();
  REQUIRE(pinned.num_tokens == 990);
  cache.release(first).value();

  auto num_held = std::atomic{0};
  auto num_granted = std::atomic{0};
  auto wrong = std::atomic{0};
  on_threads(num_threads, [&](int thread) {
    for (auto round = 0; round < rounds; ++round) {
      const auto made = cache.create_sequence(numbered(1, 10'000 + thread));
      if (made) {
        ++num_granted;
        wrong += ++num_held > num_blocks - 990;
        static_cast<void>(cache.commit(made->id, 1));
        --num_held;
        wrong += !cache.release(made->id);
      } else {
        wrong += made.error().code != error_code::capacity_exhausted;
      }
    }
  });
  CHECK(wrong == 0);
  CHECK(num_granted > 0);
  CHECK(cache.find_prefix(numbered(991)) == 990);
  cache.unpin(pinned.id).value();
  check_idle(cache);
}

TEMPLATE_LIST_TEST_CASE("case 10: two sequences that append to a shared block get their own bytes", "[cases]", caches) {
  const auto rounds = testing::full_numbers() ? 100'000 : 1'000;
  auto cache = TestType{config_of(8, 4)};
  auto ids = std::array<sequence_id, 2>{};
  auto wrong = std::atomic{0};
  auto gather = std::barrier{2};
  auto num_copies = std::int64_t{0};
  on_threads(2, [&](int thread) {
    const auto own = static_cast<std::size_t>(thread);
    for (auto round = 0; round < rounds; ++round) {
      if (thread == 0) {
        num_copies = cache.statistics().copies;
        ids[0] = cache.create_sequence(numbered(2)).value().id;
        write_key(cache, ids[0], 0, 10.0F);
        write_key(cache, ids[0], 1, 11.0F);
        cache.commit(ids[0], 2).value();
        ids[1] = cache.fork(ids[0]).value();
      }
      gather.arrive_and_wait();
      cache.append(ids[own], token{7 + thread}).value();
      write_key(cache, ids[own], 2, 20.0F + static_cast<float>(thread));
      gather.arrive_and_wait();
      wrong += key_at(cache, ids[own], 0) != 10.0F || key_at(cache, ids[own], 1) != 11.0F;
      wrong += key_at(cache, ids[own], 2) != 20.0F + static_cast<float>(thread);
      gather.arrive_and_wait();
      if (thread == 0) {
        // Where the two are not kept apart, each may find the block shared.
        const auto copies = cache.statistics().copies - num_copies;
        wrong += copies < 1 || copies > (TestType::locking_type::family::concurrent ? 2 : 1);
        wrong += !cache.release(ids[0]) || !cache.release(ids[1]);
      }
    }
  });
  CHECK(wrong == 0);
  check_idle(cache);

  // One after the other, there is one copy under every policy.
  const auto copies_before = cache.statistics().copies;
  const auto first = cache.create_sequence(numbered(2)).value().id;
  cache.commit(first, 2).value();
  const auto second = cache.fork(first).value();
  cache.append(first, token{7}).value();
  cache.append(second, token{8}).value();
  CHECK(cache.statistics().copies == copies_before + 1);
}

/// One thread's requests to a cache of which others change the size and the contents. Tokens of one text and salt have
/// equal keys everywhere, and others have others.
template <class Cache>
class served_requests {
 public:
  /// Blocks move only under `kernels`, alone.
  served_requests(Cache& cache, fair_shared_mutex& kernels, unsigned seed)
      : cache_(cache), kernels_(kernels), random_(seed) {}

  [[nodiscard]] int num_wrong() const { return num_wrong_; }
  [[nodiscard]] int num_hits() const { return num_hits_; }

  void serve_one() {
    const auto text_number = below(4);
    const auto tag = below(2);
    first_ = 1'000 * text_number;
    number_ = static_cast<float>(first_ + 100 * tag);
    const auto prompt = numbered(static_cast<std::size_t>(1 + below(20)), first_);
    const auto options = sequence_options{.salt = salt{static_cast<std::uint64_t>(tag)}};
    if (const auto fits = cache_.would_fit(prompt, options)) {
      num_wrong_ += fits->num_cached_tokens >= std::ssize(prompt);
    } else {
      num_wrong_ += !is_full(fits.error());
    }
    const auto made = cache_.create_sequence(prompt, options);
    if (!made) {
      num_wrong_ += !is_full(made.error());
      return;
    }
    id_ = made->id;
    num_hits_ += made->num_cached_tokens != 0;
    compare(0, made->num_cached_tokens);
    write(made->num_cached_tokens, made->num_tokens);
    const auto length = extend(made->num_tokens);
    write(made->num_tokens, length);
    compare(0, length);
    fork(length);
    pin(prompt, options.salt);
    num_wrong_ += !cache_.release(id_);
  }

 private:
  int below(unsigned end) { return static_cast<int>(random_() % end); }
  [[nodiscard]] static bool is_full(const error& refused) {
    return refused.code == error_code::capacity_exhausted || refused.code == error_code::never_fits;
  }

  /// Commits and appends in one call, and takes slots ahead, which are there or given back. Returns the length.
  [[nodiscard]] std::int64_t extend(std::int64_t length) {
    const auto run = numbered(static_cast<std::size_t>(below(6)), first_ + static_cast<token>(length));
    auto slots = std::array<slot, 8>{};
    auto failures = std::array<batch_failure, 1>{};
    const auto entry = batch_entry{.id = id_, .run = run, .num_computed_tokens = length, .num_ahead = below(3)};
    const auto done = cache_.append_batch({&entry, 1}, {slots, failures, {}});
    num_wrong_ += !done || (done->num_failures != 0 && !is_full(failures[0].reason));
    length += done && done->num_failures == 0 ? std::ssize(run) : 0;
    if (const auto ahead = std::int64_t{below(4)}; cache_.reserve_slots(id_, ahead)) {
      num_wrong_ += !cache_.slot_mapping(id_, length, std::span{slots}.first(static_cast<std::size_t>(ahead)));
    }
    num_wrong_ += !cache_.truncate(id_, length);
    return length;
  }

  /// The fork writes behind a block that both have.
  void fork(std::int64_t length) {
    num_wrong_ += !cache_.commit(id_, length);
    if (const auto forked = below(3) == 0 ? cache_.fork(id_) : result<sequence_id>{error{}}) {
      const auto first = std::exchange(id_, *forked);
      const auto longer = extend(length);
      write(length, longer);
      num_wrong_ += !cache_.release(first);
      compare(0, longer);
    }
  }

  /// Another thread may end all pins, and be inside this one.
  void pin(std::span<const token> prompt, salt tag) {
    if (const auto pinned = below(4) == 0 ? cache_.pin(prompt, tag) : result<pinning>{error{}}) {
      const auto ended = cache_.unpin(pinned->id);
      const auto by_another = !ended && (ended.error().code == error_code::unknown_pin ||
                                         (std::is_same_v<typename Cache::locking_type, lock_free> &&
                                          ended.error().code == error_code::sequence_busy));
      num_wrong_ += !ended && !by_another;
    }
  }

  void write(std::int64_t from, std::int64_t to) {
    const auto guard = shared_guard{kernels_};
    for (auto i = from; i < to; ++i) {
      write_key(cache_, id_, i, number_ + static_cast<float>(i));
    }
  }
  void compare(std::int64_t from, std::int64_t to) {
    const auto guard = shared_guard{kernels_};
    for (auto i = from; i < to; ++i) {
      num_wrong_ += key_at(cache_, id_, i) != number_ + static_cast<float>(i);
    }
  }

  Cache& cache_;
  fair_shared_mutex& kernels_;
  std::mt19937 random_;
  sequence_id id_{};
  token first_ = 0;
  float number_ = 0.0F;
  int num_wrong_ = 0;
  int num_hits_ = 0;
};

TEMPLATE_LIST_TEST_CASE("threads see the bytes of their tokens while others resize, invalidate and unpin",
                        "[cases][random]", caches) {
  constexpr auto most_blocks = std::int32_t{60};
  const auto seed = GENERATE(take(1, random(0U, 0xffff'ffffU)));
  CAPTURE(seed);
  auto cache = TestType{config_of(most_blocks, 2)};
  const auto num_invalidated = serve_while_others_change<served_requests<TestType>>(cache, most_blocks, seed);
  CHECK(num_invalidated <= cache.statistics().invalidations);  // which counts commits that one has overtaken, too
  check_resizes(cache, most_blocks);
}

template <locking Locking, eviction_policy Eviction>
using colliding_cache = kv_cache<float32, Locking, Eviction, hash_of_8_bits>;

using colliding_caches = std::tuple<colliding_cache<lock_free, clock_sweep>, colliding_cache<sharded_mutex, lru>,
                                    colliding_cache<rw_lock, lru>>;

TEMPLATE_LIST_TEST_CASE("case 11: hashes of 8 bits give no wrong hit", "[cases][random]", colliding_caches) {
  constexpr auto num_texts = 300;
  const auto seed = GENERATE(take(1, random(0U, 0xffff'ffffU)));
  CAPTURE(seed);
  auto cache = TestType{config_of(4 * num_texts, 2, num_texts)};
  check_no_wrong_hits(cache, num_texts, testing::scaled(5'000, 500'000), seed);
}

TEMPLATE_LIST_TEST_CASE("statistics can be read while threads are at work", "[cases]", caches) {
  // Two records: a reader that goes through more may meet one request in several of them, one after the other.
  auto cache = TestType{config_of(64, 2, 2)};
  auto done = std::atomic{0};
  auto wrong = std::atomic{0};
  on_threads(3, [&](int thread) {
    if (thread == 2) {
      while (done < 2) {
        const auto statistics = cache.statistics();
        wrong += statistics.num_tokens < 0 || statistics.num_tokens > 2 * 35;
        wrong += cache.memory().sequences <= 0;
      }
      return;
    }
    for (auto round = 0; round < (testing::full_numbers() ? 50'000 : 500); ++round) {
      const auto id = cache.create_sequence(numbered(5, 100 * thread)).value().id;
      for (auto i = 0; i < 30; ++i) {
        const auto appended = cache.append(id, token{i});
        wrong += !appended && appended.error().code != error_code::sequence_busy;
      }
      while (!cache.release(id)) {
      }
    }
    ++done;
  });
  CHECK(wrong == 0);
  check_idle(cache);
}

using stopping_caches = std::tuple<kv_cache<float32, lock_free, clock_sweep, stopping_backend>,
                                   kv_cache<float32, sharded_mutex, stopping_backend>>;

TEMPLATE_LIST_TEST_CASE("a second operation on a sequence waits, or is told that it is busy and changes nothing",
                        "[cases]", stopping_caches) {
  auto gate = stopping_backend::gate{};
  auto backend = stopping_backend{};
  backend.stop = &gate;
  auto cache = TestType{config_of(16, 4), host_allocator{}, backend};
  const auto id = cache.create_sequence(numbered(2)).value().id;
  cache.commit(id, 2).value();
  const auto other = cache.fork(id).value();
  const auto unrelated = cache.create_sequence(numbered(2, 50)).value().id;

  gate.closed = true;
  auto first = std::jthread{[&] { cache.append(id, token{100}).value(); }};
  gate.reached.wait(false);

  // Operations on other sequences go on, also on one that shares the block in question.
  CHECK(cache.append(unrelated, token{1}).has_value());
  CHECK(cache.describe(other).value().num_tokens == 2);
  CHECK(cache.find_prefix(numbered(2)) == 0);

  if constexpr (TestType::locking_type::waits_for_sequence) {
    auto second = std::jthread{[&] { cache.append(id, token{101}).value(); }};
    gate.closed = false;
    gate.closed.notify_all();
    first.join();
    second.join();
    CHECK(cache.describe(id).value().num_tokens == 4);
    cache.commit(id, 4).value();
    auto expected = numbered(2);
    expected.insert(expected.end(), {100, 101, 0});
    CHECK(cache.find_prefix(expected) == 4);  // in the order in which they came
  } else {
    for (const auto& answer : {cache.append(id, token{101}), cache.append(id, numbered(9)), cache.commit(id, 2),
                               cache.truncate(id, 1), cache.drop_before(id, 0), cache.release(id)}) {
      CHECK(answer.error().code == error_code::sequence_busy);
    }
    CHECK(cache.fork(id).error().code == error_code::sequence_busy);
    CHECK(cache.describe(id).error().code == error_code::sequence_busy);
    gate.closed = false;
    gate.closed.notify_all();
    first.join();
    CHECK(cache.describe(id).value().num_tokens == 3);
    CHECK(cache.describe(id).value().num_computed_tokens == 2);
  }
  for (const auto each : {id, other, unrelated}) {
    cache.release(each).value();
  }
  check_idle(cache);
}

}  // namespace
