#include "../support/check_schedules.hpp"
#include "../support/messages.hpp"
#include "../support/scheduled.hpp"

#include <pagedkv/router/worker_index.hpp>

#include <catch2/catch_get_random_seed.hpp>
#include <catch2/catch_test_macros.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <thread>
#include <vector>

namespace {

using namespace pagedkv;
using namespace pagedkv::testing;

std::vector<std::int64_t> held_by(const worker_index& index, const std::vector<std::uint64_t>& keys) {
  auto held = std::vector<std::int64_t>(static_cast<std::size_t>(index.num_workers()));
  index.num_held(keys, held);
  return held;
}

TEST_CASE("an index of no size is refused", "[router][messages]") {
  const auto with = [](std::int64_t num_blocks, std::int32_t num_workers) {
    return test::thrown([&] { worker_index{{.num_blocks = num_blocks, .num_workers = num_workers}}; });
  };
  test::check_messages({
      {with(8, 0), test::invalid("worker_index_config.num_workers is 0, limit 1")},
      {with(8, 5000), test::invalid("worker_index_config.num_workers is 5000, limit 1023")},
      {with(0, 1), test::invalid("worker_index_config.num_blocks is 0, limit 1")},
      {with(std::int64_t{1} << 60, 1),
       test::invalid("worker_index_config.num_blocks is 1152921504606846976, limit 1099511627776")},
  });
}

TEST_CASE("a worker holds the leading keys that it was given", "[router]") {
  auto index = worker_index{{.num_blocks = 64, .num_workers = 3}};
  for (const auto key : {10U, 11U, 12U}) {
    CHECK(index.add(worker_id{0}, key));
  }
  CHECK(index.add(worker_id{2}, 10));
  CHECK(index.add(worker_id{2}, 12));
  CHECK(held_by(index, {10, 11, 12, 13}) == std::vector<std::int64_t>{3, 0, 1});
  CHECK(held_by(index, {10, 11, 12}) == std::vector<std::int64_t>{3, 0, 1});
  CHECK(held_by(index, {}) == std::vector<std::int64_t>{0, 0, 0});
  index.remove(worker_id{0}, 11);
  index.remove(worker_id{1}, 10);  // which it never held
  CHECK(held_by(index, {10, 11, 12}) == std::vector<std::int64_t>{1, 0, 1});
}

TEST_CASE("sizes that cannot be are refused", "[router]") {
  CHECK_THROWS_AS(worker_index{worker_index_config{}}, pagedkv::exception);
  CHECK_THROWS_AS((worker_index{{.num_blocks = 0}}), pagedkv::exception);
  CHECK_THROWS_AS((worker_index{{.num_blocks = 1, .num_workers = 0}}), pagedkv::exception);
  CHECK_THROWS_AS((worker_index{{.num_blocks = 1, .num_workers = 1'024}}), pagedkv::exception);
  CHECK_NOTHROW(worker_index{{.num_blocks = 1, .num_workers = 1'023}});
}

template <class T>
class counted_atomic : public std::atomic<T> {
 public:
  static inline auto count = std::int64_t{0};

  counted_atomic() noexcept { ++count; }
};

TEST_CASE("an index takes 32 to 64 bytes for a block, and half of it more for each further 64 workers", "[router]") {
  const auto bytes = [](std::int64_t num_blocks, std::int32_t num_workers) {
    counted_atomic<std::uint64_t>::count = 0;
    const auto index = basic_worker_index<counted_atomic>{{.num_blocks = num_blocks, .num_workers = num_workers}};
    return 8 * counted_atomic<std::uint64_t>::count;
  };
  for (const auto num_workers : {1, 63}) {
    CHECK(bytes(4'088, num_workers) < 33 * 4'088);
    CHECK(bytes(4'096, num_workers) == 64 * 4'096);
  }
  CHECK(bytes(4'096, 64) == (64 + 32) * 4'096);
  CHECK(bytes(4'096, 1'023) == (64 + 15 * 32) * 4'096);
}

/// More keys than the table was made for, so that entries change their keys all the time.
TEST_CASE("an index answers like a set for each worker", "[router][random]") {
  const auto seed = Catch::getSeed();
  CAPTURE(seed);
  auto random = std::mt19937{seed};
  for (const auto num_workers : {1, 63, 64, 200}) {
    CAPTURE(num_workers);
    auto index = worker_index{{.num_blocks = 400, .num_workers = num_workers}};
    auto model = std::map<std::int32_t, std::set<std::uint64_t>>{};
    auto held = std::set<std::uint64_t>{};
    for (auto i = 0; i < 40'000; ++i) {
      const auto worker = static_cast<std::int32_t>(random() % static_cast<unsigned>(num_workers));
      const auto key = std::uint64_t{random() % 500} * 0x9e37'79b9'7f4a'7c15U;  // the first one is 0
      if (random() % 2 == 0) {
        REQUIRE(index.add(worker_id{worker}, key));
        model[worker].insert(key);
      } else {
        index.remove(worker_id{worker}, key);
        model[worker].erase(key);
      }
      const auto asked = worker_id{static_cast<std::int32_t>(random() % static_cast<unsigned>(num_workers))};
      REQUIRE(index.holds(asked, key) == model[static_cast<std::int32_t>(asked)].contains(key));
    }
    for (auto i = 0; i < 100; ++i) {
      auto keys = std::vector<std::uint64_t>(4);
      std::ranges::generate(keys, [&] { return std::uint64_t{random() % 500} * 0x9e37'79b9'7f4a'7c15U; });
      const auto found = held_by(index, keys);
      for (auto worker = 0; worker < num_workers; ++worker) {
        const auto lost = std::ranges::find_if(keys, [&](auto key) { return !model[worker].contains(key); });
        REQUIRE(found[static_cast<std::size_t>(worker)] == lost - keys.begin());
      }
    }
  }
}

TEST_CASE("0 is a key like any other", "[router]") {
  auto index = worker_index{{.num_blocks = 8, .num_workers = 1}};
  for (const auto key : {0U, 1U}) {
    CHECK_FALSE(index.holds(worker_id{0}, key));
    CHECK(index.try_add(worker_id{0}, key) == index_addition::added);
    CHECK(index.try_add(worker_id{0}, key) == index_addition::held);
    CHECK(index.holds(worker_id{0}, key));
  }
  index.remove(worker_id{0}, 0);
  CHECK_FALSE(index.holds(worker_id{0}, 0));
  CHECK(index.holds(worker_id{0}, 1));
}

TEST_CASE("what finds no room is refused, and the rest stays", "[router]") {
  auto index = worker_index{{.num_blocks = 8, .num_workers = 1}};
  auto kept = std::vector<std::uint64_t>{};
  auto num_refused = 0;
  for (auto key = std::uint64_t{1}; key < 200; ++key) {
    if (index.add(worker_id{0}, key)) {
      kept.push_back(key);
    } else {
      ++num_refused;
    }
  }
  CHECK(num_refused > 0);
  CHECK(kept.size() >= 8);
  CHECK(std::ranges::all_of(kept, [&](auto key) { return index.holds(worker_id{0}, key); }));
  std::ranges::for_each(kept, [&](auto key) { index.remove(worker_id{0}, key); });
  CHECK(index.add(worker_id{0}, 1'000));
}

TEST_CASE("each worker's own thread, and one that asks", "[router][random]") {
  constexpr auto num_workers = 4;
  const auto seed = Catch::getSeed();
  CAPTURE(seed);
  auto index = worker_index{{.num_blocks = 200, .num_workers = num_workers}};
  auto done = std::atomic<int>{0};
  auto wrong = std::atomic<int>{0};
  auto left = std::array<std::set<std::uint64_t>, num_workers>{};
  {
    auto threads = std::vector<std::jthread>{};
    for (auto worker = 0; worker < num_workers; ++worker) {
      threads.emplace_back([&, worker] {
        auto random = std::mt19937{seed + static_cast<unsigned>(worker)};
        auto& own = left[static_cast<std::size_t>(worker)];
        for (auto i = 0; i < 20'000; ++i) {
          const auto key = std::uint64_t{1 + random() % 100};
          if (random() % 2 == 0) {
            if (index.add(worker_id{worker}, key)) {
              own.insert(key);
            }
          } else {
            index.remove(worker_id{worker}, key);
            own.erase(key);
          }
          wrong += index.holds(worker_id{worker}, key) != own.contains(key);
        }
        ++done;
      });
    }
    threads.emplace_back([&] {
      const auto keys = std::array<std::uint64_t, 3>{1, 2, 3};
      auto held = std::array<std::int64_t, num_workers>{};
      while (done < num_workers) {
        index.num_held(keys, held);
        wrong += std::ranges::any_of(held, [](auto count) { return count < 0 || count > 3; });
      }
    });
  }
  CHECK(wrong == 0);
  for (auto worker = 0; worker < num_workers; ++worker) {
    for (auto key = std::uint64_t{1}; key <= 100; ++key) {
      REQUIRE(index.holds(worker_id{worker}, key) == left[static_cast<std::size_t>(worker)].contains(key));
    }
  }
}

/// Two workers' threads give entries other keys. The first one's bit is in the word that is claimed; `Second` may be in
/// another word.
template <std::int32_t Second>
struct entries_change_keys {
  static constexpr auto workers = std::array{worker_id{0}, worker_id{Second}};

  // Odd keys, so that all of them want the first entry of one bucket.
  static constexpr auto shared = std::uint64_t{1};
  static constexpr auto own = std::array<std::uint64_t, 2>{3, 5};

  basic_worker_index<scheduled> index{{.num_blocks = 1, .num_workers = 65}};

  explicit entries_change_keys(execution& e) {
    static_cast<void>(index.add(workers[0], shared));
    for (std::size_t i = 0; i < workers.size(); ++i) {
      e.spawn([this, &e, i] {
        index.remove(workers[i], shared);
        e.expect(index.add(workers[i], own[i]), "no room");
        e.expect(index.holds(workers[i], own[i]), "an added block is not found");
        e.expect(index.add(workers[i], shared), "no room");
        e.expect(index.holds(workers[i], shared), "a block that two add is not found");
      });
    }
    e.run();
  }
};

template <std::int32_t Second>
void run_to_the_end(execution& e) {
  auto scene = entries_change_keys<Second>{e};
  for (std::size_t i = 0; i < 2; ++i) {
    const auto worker = scene.workers[i];
    e.expect(scene.index.holds(worker, scene.shared) && scene.index.holds(worker, scene.own[i]),
             "an added block is lost");
    e.expect(!scene.index.holds(worker, scene.own[1 - i]), "a block is found at a worker that never held it");
  }
}

template <std::int32_t Second>
void run(execution& e) {
  const auto scene = entries_change_keys<Second>{e};
}

TEST_CASE("entries change keys under every schedule", "[router][scheduler]") {
  for (const auto body : {run_to_the_end<1>, run_to_the_end<64>}) {
    check_complete(explorer{{.preemptions = 2, .surprises = 0}}.exhaustive(body));
  }
}

TEST_CASE("a thread stopped anywhere in the index stops no other", "[router][scheduler]") {
  for (const auto body : {run<1>, run<64>}) {
    for (const auto thread : {0U, 1U}) {
      check_complete(explorer{}.stopped_anywhere(body, thread, 1));
    }
  }
}

/// Two workers' threads add a block each, and one entry is free: the first one's key was there before. `refused` counts
/// additions; none of them is found, all others are, and a later one succeeds.
template <std::int32_t NumWorkers>
void additions_want_one_entry(execution& e, int& refused) {
  constexpr auto num_entries = std::uint64_t{16};  // of both buckets
  constexpr auto first_worker = worker_id{NumWorkers - 1};
  auto index = basic_worker_index<scheduled>{{.num_blocks = 1, .num_workers = NumWorkers}};
  for (auto key = std::uint64_t{1}; key <= num_entries; ++key) {
    e.expect(index.add(worker_id{0}, key), "no room");
  }
  index.remove(worker_id{0}, 1);
  auto added = std::array<bool, 2>{};
  e.spawn([&] { added[0] = index.add(first_worker, 1); });
  e.spawn([&] { added[1] = index.add(worker_id{1}, num_entries + 1); });
  e.run();
  e.expect(index.holds(first_worker, 1) == added[0] && index.holds(worker_id{1}, num_entries + 1) == added[1],
           "a block is found that was refused, or one is not that was added");
  e.expect(!added[0] || !added[1], "one entry took two keys");
  refused = !added[0] + !added[1];
  e.expect(refused == 1 || index.add(worker_id{1}, num_entries + 2), "no entry is free though all additions were refused");
}

TEST_CASE("of two additions that want one entry, both are refused only where workers fill several words",
          "[router][scheduler]") {
  auto most_refused = 0;
  const auto explore = [&](auto additions) {
    most_refused = 0;
    const auto body = [&](execution& e) {
      auto refused = 0;
      additions(e, refused);
      most_refused = std::max(most_refused, refused);
    };
    check_complete(explorer{{.preemptions = 2}}.exhaustive(body));
  };
  explore(additions_want_one_entry<63>);
  CHECK(most_refused == 1);
  explore(additions_want_one_entry<64>);
  CHECK(most_refused == 2);
}

constexpr auto former_key = std::uint64_t{1};
constexpr auto new_key = std::uint64_t{3};  // which finds the same entry free first

/// An entry gets another key and another worker while a thread asks once who holds a block: a worker that holds the new
/// one never held the former one, nor the other way around.
template <template <class> class Atomic, std::int32_t New, bool AsksForFormer>
void query_while_an_entry_changes(execution& e) {
  auto index = basic_worker_index<Atomic>{{.num_blocks = 1, .num_workers = 65}};
  static_cast<void>(index.add(worker_id{0}, former_key));
  e.spawn([&] {
    index.remove(worker_id{0}, former_key);
    e.expect(index.add(worker_id{New}, new_key), "no room");
  });
  e.spawn([&] {
    const bool holds = AsksForFormer ? index.holds(worker_id{New}, former_key) : index.holds(worker_id{0}, new_key);
    e.expect(!holds, "a worker is named that never held the block");
  });
  e.run();
}

template <template <class> class Atomic>
std::vector<scenario> queries() {
  return {query_while_an_entry_changes<Atomic, 1, true>, query_while_an_entry_changes<Atomic, 1, false>,
          query_while_an_entry_changes<Atomic, 64, true>, query_while_an_entry_changes<Atomic, 64, false>};
}

constexpr auto with_stale_loads = bounds{.preemptions = 2, .surprises = 1};

TEST_CASE("a query names no worker of an entry's other key under every schedule", "[router][scheduler]") {
  for (const auto& body : queries<scheduled>()) {
    check_complete(explorer{with_stale_loads}.exhaustive(body));
  }
}

/// A claim stores its key, or else its worker, without releasing.
template <class T, bool IsKey>
class unreleased_claim : public scheduled<T> {
  using base = scheduled<T>;

 public:
  using base::base;

  void store(T value, std::memory_order order) noexcept {
    base::store(value, (value == new_key) == IsKey ? std::memory_order_relaxed : order);
  }
};
template <class T>
class unreleased_key : public unreleased_claim<T, true> {};
template <class T>
class unreleased_worker : public unreleased_claim<T, false> {};

/// A query sees each word once: it has no second look at the key.
template <class T>
class without_second_look : public scheduled<T> {
  using base = scheduled<T>;

 public:
  using base::base;

  T load(std::memory_order order = std::memory_order_seq_cst) const noexcept {
    auto& first = seen_[execution::active()->current()];
    if (order != std::memory_order_acquire) {
      return base::load(order);
    }
    first = first ? first : base::load(order);
    return *first;
  }

 private:
  mutable std::array<std::optional<T>, max_threads> seen_;
};

TEST_CASE("bugs planted in claims and queries of an index are caught", "[router][scheduler]") {
  const auto caught = [](const std::vector<scenario>& all) {
    return std::ranges::any_of(
        all, [](const auto& body) { return !explorer{with_stale_loads}.exhaustive(body).failure.empty(); });
  };
  CHECK(caught(queries<unreleased_key>()));
  CHECK(caught(queries<unreleased_worker>()));
  CHECK(caught(queries<without_second_look>()));
}

}  // namespace
