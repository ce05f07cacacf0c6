#include "../support/check_schedules.hpp"
#include "../support/mutants.hpp"
#include "../support/scheduled.hpp"

#include <pagedkv/policy/locking/concept.hpp>
#include <pagedkv/policy/locking/parts/mutexes.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <set>
#include <vector>

namespace {

using namespace pagedkv::testing;
using word = scheduled<std::uint32_t>;

static_assert(pagedkv::atomic_of<word, std::uint32_t>);

TEST_CASE("every interleaving of two threads is explored", "[scheduler]") {
  // Two threads of three steps each: (3 + 3)! / (3! 3!) orders.
  auto explored = explorer{{.preemptions = 100}};
  const auto found = explored.exhaustive([](execution& e) {
    auto counter = word{0};
    for (auto thread = 0; thread < 2; ++thread) {
      e.spawn([&] {
        for (auto i = 0; i < 3; ++i) {
          counter.fetch_add(1);
        }
      });
    }
    e.run();
    e.expect(counter.load() == 6, "an increment is lost");
  });
  CHECK(found.failure.empty());
  CHECK(found.complete);
  CHECK(found.schedules > 20);  // the first one tells that both threads use the word
}

void increment_by_load_and_store(execution& e) {
  auto counter = word{0};
  for (auto thread = 0; thread < 2; ++thread) {
    e.spawn([&] { counter.store(counter.load() + 1); });
  }
  e.run();
  e.expect(counter.load() == 2, "an increment is lost");
}

TEST_CASE("a lost update is found, and found again on replay", "[scheduler]") {
  auto explored = explorer{};
  const auto exhaustive = explored.exhaustive(increment_by_load_and_store);
  CHECK(exhaustive.failure == "an increment is lost");
  CHECK(explored.replay(increment_by_load_and_store, exhaustive.schedule).failure == exhaustive.failure);

  const auto random = explored.random(increment_by_load_and_store, 42, 10'000);
  CHECK(random.failure == "an increment is lost");
  CHECK(explored.replay(increment_by_load_and_store, random.schedule).failure == random.failure);
}

/// Two threads of two additions each, with steps between them that do not concern the other thread.
std::uint64_t num_schedules_of_additions(int steps_between) {
  const auto found = explorer{{.preemptions = 3}}.exhaustive([=](execution& e) {
    auto counter = word{0};
    const auto constant = word{7};
    auto own = std::array<word, 2>{};
    for (auto thread = std::size_t{0}; thread < 2; ++thread) {
      e.spawn([&, thread] {
        for (auto round = 0; round < 2; ++round) {
          for (auto i = 0; i < steps_between; ++i) {
            own[thread].fetch_add(constant.load());
            own[thread].notify_all();
          }
          counter.fetch_add(1);
        }
      });
    }
    e.run();
    e.expect(counter.load() == 4, "an increment is lost");
  });
  check_complete(found);
  return found.schedules;
}

TEST_CASE("steps that concern no other thread add no schedules", "[scheduler]") {
  CHECK(num_schedules_of_additions(0) > 4);
  CHECK(num_schedules_of_additions(1) == num_schedules_of_additions(0));
  CHECK(num_schedules_of_additions(5) == num_schedules_of_additions(0));
}

/// Between load and store, the threads use words of their own.
void increment_between_other_steps(execution& e) {
  auto counter = word{0};
  auto own = std::array<word, 2>{};
  for (auto thread = std::size_t{0}; thread < 2; ++thread) {
    e.spawn([&, thread] {
      own[thread].store(1);
      const auto seen = counter.load();
      own[thread].store(2);
      own[thread].store(3);
      counter.store(seen + 1);
      own[thread].store(4);
    });
  }
  e.run();
  e.expect(counter.load() == 2, "an increment is lost");
}

/// The counter is plain.
void increment_plain_data(execution& e) {
  auto counter = 0;
  auto own = std::array<word, 2>{};
  for (auto thread = std::size_t{0}; thread < 2; ++thread) {
    e.spawn([&, thread] {
      own[thread].store(1);
      e.concerns_others();
      const auto seen = counter;
      own[thread].store(2);
      e.concerns_others();
      counter = seen + 1;
    });
  }
  e.run();
  e.expect(counter == 2, "an increment is lost");
}

/// The second thread uses the counter only where it comes between the first one's steps.
void increment_now_and_then(execution& e) {
  auto counter = word{0};
  auto open = scheduled<bool>{false};
  auto num_increments = std::uint32_t{1};
  e.spawn([&] {
    open.store(true);
    const auto seen = counter.load();
    counter.store(seen + 1);
    open.store(false);
  });
  e.spawn([&] {
    if (open.load()) {
      counter.fetch_add(1);
      ++num_increments;
    }
  });
  e.run();
  e.expect(counter.load() == num_increments, "an increment is lost");
}

/// The first thread constructs the counter, with a word for itself before it in some schedules.
void increment_what_a_thread_constructs(execution& e) {
  auto started = word{0};
  auto own = std::unique_ptr<word>{};
  auto counter = std::unique_ptr<word>{};
  auto published = scheduled<word*>{nullptr};
  auto num_increments = std::uint32_t{1};
  e.spawn([&] {
    if (started.load() != 0) {
      own = std::make_unique<word>(0);
    }
    counter = std::make_unique<word>(0);
    published.store(counter.get());
    const auto seen = counter->load();
    counter->store(seen + 1);
  });
  e.spawn([&] {
    started.store(1);
    if (auto* const found = published.load(); found != nullptr) {
      found->fetch_add(1);
      ++num_increments;
    }
  });
  e.run();
  e.expect(counter->load() == num_increments, "an increment is lost");
}

TEST_CASE("a lost update is found and replayed, whichever steps concern no other thread", "[scheduler]") {
  for (const auto body : {increment_between_other_steps, increment_plain_data, increment_now_and_then,
                          increment_what_a_thread_constructs}) {
    auto explored = explorer{{.preemptions = 1}};
    const auto found = explored.exhaustive(body);
    CHECK(found.failure == "an increment is lost");
    CHECK(explored.replay(body, found.schedule).failure == found.failure);
  }
}

scenario message(std::memory_order publish, std::memory_order observe) {
  return [=](execution& e) {
    auto data = scheduled_data<int>{0};
    auto ready = scheduled<bool>{false};
    e.spawn([&] {
      data.write(42);
      ready.store(true, publish);
    });
    e.spawn([&] {
      if (ready.load(observe)) {
        e.expect(data.read() == 42, "stale data");
      }
    });
    e.run();
  };
}

TEST_CASE("data published without release and acquire is a race", "[scheduler]") {
  using enum std::memory_order;
  CHECK(explorer{}.exhaustive(message(release, acquire)).failure.empty());
  CHECK(explorer{}.exhaustive(message(seq_cst, seq_cst)).failure.empty());
  CHECK_FALSE(explorer{}.exhaustive(message(relaxed, acquire)).failure.empty());
  CHECK_FALSE(explorer{}.exhaustive(message(release, relaxed)).failure.empty());
}

TEST_CASE("data written after its release is a race", "[scheduler]") {
  const auto found = explorer{}.exhaustive([](execution& e) {
    auto data = scheduled_data<int>{0};
    auto ready = scheduled<bool>{false};
    e.spawn([&] {
      ready.store(true, std::memory_order_release);
      data.write(42);
    });
    e.spawn([&] {
      if (ready.load(std::memory_order_acquire)) {
        static_cast<void>(data.read());
      }
    });
    e.run();
  });
  CHECK_FALSE(found.failure.empty());
}

TEST_CASE("a read-modify-write continues a release sequence and a store ends it", "[scheduler]") {
  const auto relay = [](bool by_store) {
    return [=](execution& e) {
      auto data = scheduled_data<int>{0};
      auto stage = word{0};
      e.spawn([&] {
        data.write(1);
        stage.store(1, std::memory_order_release);
      });
      e.spawn([&] {
        if (stage.load(std::memory_order_relaxed) == 1) {
          by_store ? stage.store(2, std::memory_order_relaxed)
                   : static_cast<void>(stage.fetch_add(1, std::memory_order_relaxed));
        }
      });
      e.spawn([&] {
        if (stage.load(std::memory_order_acquire) == 2) {
          static_cast<void>(data.read());
        }
      });
      e.run();
    };
  };
  CHECK(explorer{}.exhaustive(relay(false)).failure.empty());
  CHECK_FALSE(explorer{}.exhaustive(relay(true)).failure.empty());
}

scenario store_buffering(std::memory_order write, std::memory_order look) {
  return [=](execution& e) {
    auto words = std::array<word, 2>{};
    auto seen = std::array<std::uint32_t, 2>{};
    for (auto i = std::size_t{0}; i < 2; ++i) {
      e.spawn([&, i] {
        words[i].store(1, write);
        seen[i] = words[1 - i].load(look);
      });
    }
    e.run();
    e.expect(seen[0] + seen[1] > 0, "neither thread saw the other's store");
  };
}

/// Two words are written, and two threads read them in opposite orders.
scenario independent_reads(std::memory_order look) {
  return [=](execution& e) {
    auto words = std::array<word, 2>{};
    auto seen = std::array<std::array<std::uint32_t, 2>, 2>{};
    for (auto i = std::size_t{0}; i < 2; ++i) {
      e.spawn([&, i] { words[i].store(1, std::memory_order_release); });
      e.spawn([&, i] {
        seen[i][0] = words[i].load(look);
        seen[i][1] = words[1 - i].load(look);
      });
    }
    e.run();
    constexpr auto only_the_first = std::array{1U, 0U};
    e.expect(seen[0] != only_the_first || seen[1] != only_the_first, "each word was written before the other");
  };
}

TEST_CASE("loads may be stale when their order allows it", "[scheduler]") {
  using enum std::memory_order;
  const auto limits = bounds{.preemptions = 2, .surprises = 1};
  CHECK_FALSE(explorer{limits}.exhaustive(store_buffering(relaxed, relaxed)).failure.empty());
  CHECK_FALSE(explorer{limits}.exhaustive(store_buffering(release, acquire)).failure.empty());
  CHECK(explorer{}.exhaustive(store_buffering(relaxed, relaxed)).failure.empty());
  CHECK_FALSE(explorer{limits}.exhaustive(independent_reads(acquire)).failure.empty());
}

TEST_CASE("sequentially consistent loads must see earlier writes of the single order, and no later ones",
          "[scheduler]") {
  using enum std::memory_order;
  const auto limits = bounds{.preemptions = 3, .surprises = 2};
  CHECK(explorer{limits}.exhaustive(store_buffering(seq_cst, seq_cst)).failure.empty());
  CHECK_FALSE(explorer{limits}.exhaustive(store_buffering(release, seq_cst)).failure.empty());
  CHECK_FALSE(explorer{limits}.exhaustive(store_buffering(seq_cst, acquire)).failure.empty());
  CHECK(explorer{limits}.exhaustive(independent_reads(seq_cst)).failure.empty());
}

TEST_CASE("loads never return an older value than before, or than one that happened before", "[scheduler]") {
  const auto found = explorer{{.preemptions = 3, .surprises = 3}}.exhaustive([](execution& e) {
    auto value = word{0};
    auto ready = scheduled<bool>{false};
    e.spawn([&] {
      value.store(1, std::memory_order_relaxed);
      value.store(2, std::memory_order_relaxed);
      ready.store(true, std::memory_order_release);
      value.store(3, std::memory_order_relaxed);
    });
    e.spawn([&] {
      const auto published = ready.load(std::memory_order_acquire);
      const auto first = value.load(std::memory_order_relaxed);
      const auto second = value.load(std::memory_order_relaxed);
      e.expect(!published || first >= 2, "behind what happened before");
      e.expect(second >= first, "back");
    });
    e.run();
  });
  CHECK(found.failure.empty());
  CHECK(found.complete);
}

TEST_CASE("a weak compare-and-swap may fail idly", "[scheduler]") {
  const auto once = [](execution& e) {
    auto value = word{0};
    e.spawn([&] {
      auto expected = std::uint32_t{0};
      e.expect(value.compare_exchange_weak(expected, 1), "failed idly");
    });
    e.run();
  };
  CHECK_FALSE(explorer{{.surprises = 1}}.exhaustive(once).failure.empty());
  CHECK(explorer{}.exhaustive(once).failure.empty());
}

TEST_CASE("a thread that waits for a stopped one is reported, and one that does not is not", "[scheduler]") {
  const auto spin = [](execution& e) {
    auto locked = scheduled<bool>{false};
    for (auto thread = 0; thread < 2; ++thread) {
      e.spawn([&] {
        while (locked.exchange(true)) {
        }
        locked.store(false);
      });
    }
    e.run();
  };
  CHECK(explorer{}.stopped_anywhere(spin, 1, 7).failure == "no progress: too many steps");
  const auto add = [](execution& e) {
    auto counter = word{0};
    for (auto thread = 0; thread < 2; ++thread) {
      e.spawn([&] {
        for (auto seen = counter.load(); !counter.compare_exchange_weak(seen, seen + 1);) {
        }
      });
    }
    e.run();
    e.expect(counter.load() == 2, "an increment is lost");
  };
  check_complete(explorer{}.stopped_anywhere(add, 1, 7));
}

TEST_CASE("a wait that no thread ends is a deadlock", "[scheduler]") {
  const auto handover = [](bool notify) {
    return [=](execution& e) {
      auto ready = scheduled<bool>{false};
      e.spawn([&] { ready.wait(false); });
      e.spawn([&] {
        ready.store(true);
        if (notify) {
          ready.notify_one();
        }
      });
      e.run();
    };
  };
  CHECK(explorer{}.exhaustive(handover(true)).failure.empty());
  CHECK_FALSE(explorer{}.exhaustive(handover(false)).failure.empty());
}

TEST_CASE(
    "a notification may miss a thread that begins to sleep, unless the change before it is sequentially consistent",
    "[scheduler]") {
  const auto handover = [](std::memory_order change, std::memory_order look) {
    return [=](execution& e) {
      auto ready = scheduled<bool>{false};
      e.spawn([&] { ready.wait(false, look); });
      e.spawn([&] {
        ready.store(true, change);
        ready.notify_one();
      });
      e.run();
    };
  };
  using enum std::memory_order;
  const auto limits = bounds{.preemptions = 3, .surprises = 2};
  CHECK(explorer{limits}.exhaustive(handover(seq_cst, seq_cst)).failure.empty());
  CHECK(explorer{limits}.exhaustive(handover(seq_cst, acquire)).failure.empty());
  CHECK_FALSE(explorer{limits}.exhaustive(handover(release, seq_cst)).failure.empty());
  CHECK(explorer{{.preemptions = 3}}.exhaustive(handover(release, seq_cst)).failure.empty());
}

using scheduled_shared_mutex = pagedkv::basic_fair_shared_mutex<scheduled>;

/// Writers that count, and readers that read.
template <template <class> class Atomic, std::uint32_t NumPlaces = 16>
scenario count_under_lock(int num_writers, int num_readers) {
  return [=](execution& e) {
    auto mutex = pagedkv::basic_fair_shared_mutex<Atomic, pagedkv::no_contention_metrics, NumPlaces>{};
    auto value = scheduled_data<int>{0};
    for (auto writer = 0; writer < num_writers; ++writer) {
      e.spawn([&] {
        mutex.lock();
        value.write(value.read() + 1);
        mutex.unlock();
      });
    }
    for (auto reader = 0; reader < num_readers; ++reader) {
      e.spawn([&] {
        mutex.lock_shared();
        static_cast<void>(value.read());
        mutex.unlock_shared();
      });
    }
    e.run();
    e.expect(value.read() == num_writers, "two writers were inside together");
  };
}

TEST_CASE("fair_shared_mutex excludes and loses no wake-up under every schedule", "[scheduler][fair_shared_mutex]") {
  const auto num_writers = GENERATE(1, 2, 3);
  const auto limits = GENERATE(bounds{.preemptions = 3}, bounds{.preemptions = 2, .surprises = 1});
  CAPTURE(num_writers, limits.surprises);
  check_complete(explorer{limits}.exhaustive(count_under_lock<scheduled>(num_writers, 3 - num_writers)));
}

TEST_CASE("fair_shared_mutex wakes writers that share a place of its queue", "[scheduler][fair_shared_mutex]") {
  check_complete(explorer{{.preemptions = 2}}.exhaustive(count_under_lock<scheduled, 1>(4, 0)));
}

template <class T>
class wakes_one : public scheduled<T> {
 public:
  using scheduled<T>::scheduled;
  void notify_all() noexcept { this->notify_one(); }
};

template <class T>
class never_notified : public scheduled<T> {
 public:
  using scheduled<T>::scheduled;
  void notify_one() noexcept {}
  void notify_all() noexcept {}
};

TEST_CASE("bugs planted in fair_shared_mutex are found", "[scheduler][fair_shared_mutex]") {
  CHECK_FALSE(explorer{}.exhaustive(count_under_lock<load_then_store>(2, 1)).failure.empty());
  CHECK_FALSE(explorer{}.exhaustive(count_under_lock<unreleased>(2, 1)).failure.empty());
  CHECK_FALSE(explorer{}.exhaustive(count_under_lock<never_notified>(2, 1)).failure.empty());
  CHECK_FALSE(explorer{}.exhaustive(count_under_lock<wakes_one, 1>(4, 0)).failure.empty());
}

TEST_CASE("every notification of fair_shared_mutex needs the single order", "[scheduler][fair_shared_mutex]") {
  const auto found = [](const scenario& body) {
    return explorer{{.preemptions = 1, .surprises = 1}}.exhaustive(body).failure;
  };
  constexpr auto lost = "deadlock: a thread waits and nobody is left to wake it";
  CHECK(found(count_under_lock<no_single_order<>::atomic>(2, 1)) == lost);
  CHECK(found(count_under_lock<no_single_order<access::compare_exchange>::atomic>(2, 0)) == lost);
  CHECK(found(count_under_lock<no_single_order<access::fetch_add>::atomic>(1, 1)) == lost);
  CHECK(found(count_under_lock<no_single_order<access::fetch_sub>::atomic>(1, 1)) == lost);
  CHECK(found(count_under_lock<no_single_order<access::store>::atomic>(3, 0)) == lost);
}

TEST_CASE("fair_shared_mutex lets no thread pass a writer after max_looks attempts", "[scheduler][fair_shared_mutex]") {
  const auto readers_pass = GENERATE(false, true);
  CAPTURE(readers_pass);
  constexpr auto writer = std::size_t{1};
  constexpr auto steps_of_a_look = std::uint32_t{2};
  constexpr auto steps_to_the_front = steps_of_a_look + 2;
  constexpr auto steps_to_close = steps_to_the_front + steps_of_a_look * scheduled_shared_mutex::max_looks + 1;
  auto most_passes = 0;
  const auto body = [&](execution& e) {
    auto mutex = scheduled_shared_mutex{};
    auto served = false;
    auto passes = 0;
    mutex.lock();
    e.spawn([&] {
      mutex.lock();
      e.concerns_others();
      served = true;
      mutex.unlock();
    });
    e.spawn([&] {
      mutex.unlock();
      for (auto i = 0; i < 20 && !served; ++i) {
        readers_pass ? mutex.lock_shared() : mutex.lock();
        e.concerns_others();
        e.expect(served || e.steps(writer) < steps_to_close, "a writer was passed that has closed the door");
        passes += !served;
        readers_pass ? mutex.unlock_shared() : mutex.unlock();
        e.concerns_others();
      }
    });
    e.run();
    most_passes = std::max(most_passes, passes);
  };
  check_passes(explorer{{.preemptions = 4}}.random(body, 1, 20'000));
  CHECK(most_passes > 1);
  CHECK(explorer{{.preemptions = 2}}.exhaustive(body).failure.empty());
}

/// Reports whether the first thread of an execution, a reader, waits.
struct first_thread_waits : pagedkv::no_contention_metrics {
  static inline bool yes = false;
  static void waited() noexcept {
    execution::active()->concerns_others();
    yes |= execution::active()->current() == 1;
  }
};

TEST_CASE("fair_shared_mutex lets a reader wait for one writer at most", "[scheduler][fair_shared_mutex]") {
  const auto body = [](execution& e) {
    auto mutex = pagedkv::basic_fair_shared_mutex<scheduled, first_thread_waits>{};
    auto reader_inside = false;
    auto writers_ahead = 0;
    first_thread_waits::yes = false;
    e.spawn([&] {
      mutex.lock_shared();
      e.concerns_others();
      reader_inside = true;
      mutex.unlock_shared();
    });
    for (auto writer = 0; writer < 3; ++writer) {
      e.spawn([&] {
        mutex.lock();
        e.concerns_others();
        writers_ahead += first_thread_waits::yes && !reader_inside;
        mutex.unlock();
      });
    }
    e.run();
    e.expect(writers_ahead <= 1, "a reader was passed");
  };
  check_complete(explorer{{.preemptions = 2}}.exhaustive(body));
}

/// All that two threads of random steps on three words may see, over schedules within bounds.
std::set<std::vector<std::uint32_t>> outcomes(std::uint32_t seed, bool with_all_choices) {
  auto all = std::set<std::vector<std::uint32_t>>{};
  auto explored = explorer{{.preemptions = 2, .surprises = 1}};
  check_complete(explored.exhaustive([&](execution& e) {
    auto words = std::array<word, 3>{};
    auto seen = std::array<std::vector<std::uint32_t>, 2>{};
    for (auto thread = std::uint32_t{0}; thread < 2; ++thread) {
      e.spawn([&, thread] {
        auto random = std::mt19937{2 * seed + thread};
        for (auto i = std::uint32_t{1}; i <= 5; ++i) {
          auto& at = words[random() % words.size()];
          switch (random() % 3) {
            case 0: seen[thread].push_back(at.load(std::memory_order_acquire)); break;
            case 1: at.store(10 * thread + i, std::memory_order_release); break;
            default: seen[thread].push_back(at.fetch_add(1, std::memory_order_acq_rel));
          }
          if (with_all_choices) {
            e.concerns_others();
          }
        }
      });
    }
    e.run();
    auto outcome = seen[0];
    outcome.insert(outcome.end(), seen[1].begin(), seen[1].end());
    for (const auto& at : words) {
      outcome.push_back(at.load());
    }
    all.insert(outcome);
  }));
  return all;
}

TEST_CASE("schedules without choices before local steps have all outcomes", "[scheduler]") {
  for (auto seed = std::uint32_t{0}; seed < 20; ++seed) {
    CAPTURE(seed);
    CHECK(outcomes(seed, false) == outcomes(seed, true));
  }
}

}  // namespace
