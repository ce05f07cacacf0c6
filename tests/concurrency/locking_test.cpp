#include <pagedkv/policy/locking/rw_lock.hpp>
#include <pagedkv/policy/locking/single_thread.hpp>

#include <catch2/catch_template_test_macros.hpp>

#include <mutex>
#include <shared_mutex>
#include <tuple>
#include <type_traits>

namespace {

using namespace pagedkv;

// Every policy, and one with a mutex that is not the library's.
using policies = std::tuple<single_thread, rw_lock<>, rw_lock<std::shared_mutex>>;

TEMPLATE_LIST_TEST_CASE("a locking policy's atomic behaves like std::atomic on one thread", "[locking]", policies) {
  using atomic = typename TestType::template atomic<std::uint32_t>;
  constexpr auto order = std::memory_order_seq_cst;
  auto word = atomic{};
  CHECK(word.load(order) == 0);

  word.store(6, order);
  CHECK(word.exchange(12, order) == 6);
  CHECK(word.fetch_add(3, order) == 12);
  CHECK(word.fetch_sub(1, order) == 15);
  CHECK(word.fetch_and(0b0110, order) == 14);
  CHECK(word.fetch_or(0b1001, order) == 6);
  CHECK(word.load(order) == 15);

  word.store(0, order);
  CHECK(word.fetch_sub(1, order) == 0);
  CHECK(word.load(order) == 0xffff'ffffU);

  auto expected = std::uint32_t{7};
  CHECK_FALSE(word.compare_exchange_strong(expected, 8, order, std::memory_order_relaxed));
  CHECK(expected == 0xffff'ffffU);
  CHECK(word.compare_exchange_strong(expected, 8, order, std::memory_order_relaxed));
  expected = 8;
  while (!word.compare_exchange_weak(expected, 9, order, std::memory_order_relaxed)) {
    CHECK(expected == 8);
  }
  CHECK(word.load(order) == 9);
}

TEMPLATE_LIST_TEST_CASE("a locking policy's mutexes fit the standard's guards", "[locking]", policies) {
  auto cache = typename TestType::cache_mutex{};
  auto sequence = typename TestType::sequence_mutex{};
  {
    const auto writer = std::lock_guard{cache};
    const auto owner = std::unique_lock{sequence, std::try_to_lock};
    CHECK(owner.owns_lock());
  }
  {
    const auto reader = std::shared_lock{cache};
    CHECK(reader.owns_lock());
  }
  const auto again = std::lock_guard{cache};
  CHECK_FALSE(TestType::name.empty());
}

template <class Mutex>
struct guarded {
  [[no_unique_address]] Mutex mutex;
  std::uint64_t value;
};

static_assert(sizeof(guarded<single_thread::cache_mutex>) == sizeof(std::uint64_t));
static_assert(sizeof(guarded<single_thread::sequence_mutex>) == sizeof(std::uint64_t));
static_assert(sizeof(guarded<rw_lock<>::sequence_mutex>) == sizeof(std::uint64_t));
static_assert(!std::is_copy_constructible_v<single_thread::atomic<int>>, "what compiles must compile with std::atomic");

}  // namespace
