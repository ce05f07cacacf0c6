#include <pagedkv/pagedkv.hpp>
#include <pagedkv/policy/eviction/clock_sweep.hpp>
#include <pagedkv/policy/locking/lock_free.hpp>
#include <pagedkv/policy/locking/sharded_mutex.hpp>

#include <catch2/catch_test_macros.hpp>

#include <array>
#include <atomic>
#include <mutex>
#include <thread>

namespace {

using namespace pagedkv;

constexpr auto small = cache_config{.block_size = 4, .num_blocks = 8, .head_dim = 1};

/// Another thread fills its own cache of free blocks, so that this one finds blocks nowhere else.
template <class Cache>
void steal_blocks(Cache& cache) {
  const auto prompt = std::array<token, 32>{};
  std::jthread{[&] { cache.release(cache.create_sequence(prompt).value().id).value(); }}.join();
  cache.release(cache.create_sequence(prompt).value().id).value();
}

TEST_CASE("contention is counted for each cache on its own", "[contention]") {
  using counting_cache = kv_cache<float32, basic_lock_free<std::atomic, count_contention>, clock_sweep>;
  auto contended = counting_cache{small};
  auto idle = counting_cache{small};
  static_cast<void>(this_thread_index{}.current());
  steal_blocks(contended);
  CHECK(contended.statistics().contention.steals > 0);
  CHECK(idle.statistics().contention == contention_counts{});
}

TEST_CASE("contention is not counted unless the locking policy says so", "[contention]") {
  auto cache = kv_cache<float32, lock_free, clock_sweep>{small};
  static_cast<void>(this_thread_index{}.current());
  steal_blocks(cache);
  CHECK(cache.statistics().contention == contention_counts{});
}

/// Every first attempt fails.
class busy_mutex {
 public:
  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }
  bool try_lock() { return false; }

 private:
  std::mutex mutex_;
};

TEST_CASE("waits for sequences, the evictable order and free lists all count", "[contention]") {
  auto cache = kv_cache<float32, basic_sharded_mutex<1, busy_mutex, count_contention>>{small};
  const auto id = cache.create_sequence(std::array<token, 4>{}).value().id;
  const auto after_creation = cache.statistics().contention.waits;
  CHECK(after_creation > 0);  // for the free lists of blocks and of records
  REQUIRE(cache.append(id, 1).has_value());
  const auto after_append = cache.statistics().contention.waits;
  CHECK(after_append > after_creation);  // for the sequence
  REQUIRE(cache.commit(id, 4).has_value());
  REQUIRE(cache.release(id).has_value());
  CHECK(cache.statistics().contention.waits > after_append);
}

TEST_CASE("waits for the mutex of a whole cache count", "[contention]") {
  auto cache = kv_cache<float32, basic_rw_lock<basic_fair_shared_mutex<std::atomic, count_contention>>>{small};
  auto other = kv_cache<float32, basic_rw_lock<basic_fair_shared_mutex<std::atomic, count_contention>>>{small};
  const auto id = cache.create_sequence(std::array<token, 4>{}).value().id;
  auto stop = std::atomic{false};
  auto reader = std::jthread{[&] {
    while (!stop) {
      static_cast<void>(cache.describe(id));
    }
  }};
  while (cache.statistics().contention.waits == 0) {
    REQUIRE(cache.commit(id, 0).has_value());
  }
  stop = true;
  reader.join();
  CHECK(other.statistics().contention == contention_counts{});
}

}  // namespace
