#include "../support/check_schedules.hpp"
#include "../support/full_numbers.hpp"
#include "../support/mutants.hpp"
#include "../support/scheduled.hpp"

#include <pagedkv/pool/lock_free_free_list.hpp>

#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/generators/catch_generators_adapters.hpp>
#include <catch2/generators/catch_generators_random.hpp>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

namespace {

using namespace pagedkv;
using namespace pagedkv::testing;

// Magazines of one id, so that few operations reach every path.
template <template <class> class Atomic, std::uint32_t MagazineSize = 1>
using list_of = lock_free_free_list<Atomic, scheduled_thread_index, MagazineSize>;

/// A list that checks every result: an id belongs to one thread at a time and carries its last owner's writes to the
/// next; `no_block` requires a moment of the call at which nothing was surely free; and a size requires a moment at
/// which no more were. The number of free ids is an atomic, so that a call sees all calls that ended before it.
template <class List>
class audited {
 public:
  audited(execution& e, std::int32_t num_blocks, std::uint32_t num_caches)
      : execution_(e),
        list_(num_blocks, num_caches),
        num_free_(num_blocks),
        held_(static_cast<std::size_t>(num_blocks)),
        contents_(static_cast<std::size_t>(num_blocks)) {}

  block_id pop() {
    const auto call = call_in_progress{*this, -1};
    const auto block = list_.pop();
    execution_.concerns_others();
    if (block == no_block) {
      execution_.expect(call.fewest_free() < 0, "refused while a block was free");
      num_free_.fetch_add(1);
      return block;
    }
    execution_.expect(!held_[to_index(block)], "handed out twice");
    held_[to_index(block)] = true;
    contents_[to_index(block)].write(1);
    return block;
  }

  void push(block_id block) {
    if (block == no_block) {
      return;
    }
    execution_.concerns_others();
    contents_[to_index(block)].write(2);
    held_[to_index(block)] = false;
    list_.push(block);
    num_free_.fetch_add(1);
  }

  /// Keeps the ids from one on. The others may be out of the list meanwhile.
  void take_from(block_id first) {
    const auto all = static_cast<std::int32_t>(held_.size());
    const auto call = call_in_progress{*this, -all};
    auto num_taken = std::int32_t{0};
    list_.take_from(first, [&](block_id block) {
      execution_.concerns_others();
      execution_.expect(block >= first && !held_[to_index(block)], "taken though too low or held");
      held_[to_index(block)] = true;
      contents_[to_index(block)].write(3);
      ++num_taken;
    });
    num_free_.fetch_add(all - num_taken);
  }

  void measure() {
    const auto call = call_in_progress{*this, 0};
    const auto size = list_.size();
    execution_.concerns_others();
    execution_.expect(size >= call.fewest_free(), "a size below all that it was");
  }

  /// Runs the threads and pops the remaining ids.
  void run() {
    execution_.run();
    const auto num_held = static_cast<std::int32_t>(std::count(held_.begin(), held_.end(), true));
    const auto num_blocks = static_cast<std::int32_t>(held_.size());
    execution_.expect(list_.size() == num_blocks - num_held, "wrong size");
    for (auto i = num_held; i < num_blocks; ++i) {
      execution_.expect(pop() != no_block, "a block is lost");
    }
    execution_.expect(pop() == no_block, "a block too many");
  }

 private:
  /// Records the smallest number of ids that were surely free since it began: a pop counts from its beginning, because
  /// it may already have an id, and a push from its end. Negative when more were claimed than exist.
  class call_in_progress {
   public:
    call_in_progress(audited& list, std::int32_t change)
        : list_(list), fewest_free_(list.num_free_.fetch_add(change) + change) {
      for (auto* other : list_.calls_) {
        other->fewest_free_ = std::min(other->fewest_free_, fewest_free_);
      }
      list_.calls_.push_back(this);
    }
    call_in_progress(const call_in_progress&) = delete;
    call_in_progress& operator=(const call_in_progress&) = delete;
    ~call_in_progress() { std::erase(list_.calls_, this); }

    [[nodiscard]] std::int32_t fewest_free() const { return fewest_free_; }

   private:
    audited& list_;
    std::int32_t fewest_free_;
  };

  execution& execution_;
  List list_;
  scheduled<std::int32_t> num_free_;
  std::vector<call_in_progress*> calls_;
  std::vector<bool> held_;
  std::vector<scheduled_data<int>> contents_;
};

/// Two threads, each popping `depth` ids and pushing them back, twice.
template <class List>
scenario pairs(std::int32_t num_blocks, std::uint32_t num_caches, int depth) {
  return [=](execution& e) {
    auto list = audited<List>{e, num_blocks, num_caches};
    for (auto thread = 0; thread < 2; ++thread) {
      e.spawn([&] {
        auto first = no_block;
        auto second = no_block;
        for (auto round = 0; round < 2; ++round) {
          first = list.pop();
          if (depth > 1) {
            second = list.pop();
          }
          list.push(first);
          if (depth > 1) {
            list.push(second);
          }
        }
      });
    }
    list.run();
  };
}

/// One thread pushes ids while another pops.
template <class List>
scenario handover(std::int32_t num_blocks, std::uint32_t num_caches) {
  return [=](execution& e) {
    auto list = audited<List>{e, num_blocks, num_caches};
    const auto first = list.pop();
    const auto second = list.pop();
    e.spawn([&] {
      list.push(first);
      list.push(second);
    });
    e.spawn([&] {
      list.pop();
      list.pop();
    });
    list.run();
  };
}

/// An id is always free, but it moves away from the part that one thread has not yet read.
template <class List>
scenario relay(std::uint32_t num_caches) {
  return [=](execution& e) {
    auto list = audited<List>{e, 2, num_caches};
    const auto first = list.pop();
    const auto second = list.pop();
    e.spawn([&] { list.pop(); });
    e.spawn([&] {
      list.push(first);
      list.pop();
    });
    e.spawn([&] { list.push(second); });
    list.run();
  };
}

/// The same, when the first id is taken from a cache whose owner is elsewhere.
template <class List>
scenario theft(std::uint32_t num_caches) {
  return [=](execution& e) {
    auto list = audited<List>{e, 2, num_caches};
    const auto first = list.pop();
    const auto second = list.pop();
    list.push(first);
    e.spawn([&] { list.push(second); });
    e.spawn([&] { list.pop(); });
    e.spawn([&] { list.pop(); });
    list.run();
  };
}

/// The same with one thread, which pushes one id and then pops another from the magazine of the first.
template <class List>
scenario turnover(std::uint32_t num_caches) {
  return [=](execution& e) {
    auto list = audited<List>{e, 2, num_caches};
    e.spawn([&] {
      list.push(list.pop());
      list.pop();
    });
    e.spawn([&] { list.pop(); });
    list.run();
  };
}

/// One thread takes the upper ids out while another pops and pushes.
template <class List>
scenario taking(std::int32_t num_blocks, std::uint32_t num_caches) {
  return [=](execution& e) {
    auto list = audited<List>{e, num_blocks, num_caches};
    const auto first = list.pop();
    const auto second = list.pop();
    list.push(first);
    e.spawn([&] { list.take_from(block_id{1}); });
    e.spawn([&] {
      list.push(second);
      list.push(list.pop());
      list.pop();
    });
    list.run();
  };
}

/// One thread reads the size while another pops, exchanging magazines, and pushes, twice.
template <class List>
scenario count_in_passing(std::int32_t num_blocks, std::uint32_t num_caches, int depth) {
  return [=](execution& e) {
    auto list = audited<List>{e, num_blocks, num_caches};
    e.spawn([&] { list.measure(); });
    e.spawn([&] {
      auto held = std::vector<block_id>{};
      for (auto round = 0; round < 2; ++round) {
        for (auto i = 0; i < depth; ++i) {
          held.push_back(list.pop());
        }
        for (; !held.empty(); held.pop_back()) {
          list.push(held.back());
        }
      }
    });
    list.run();
  };
}

/// One thread reads the size while an id is pushed and another popped, from a cache whose owner is elsewhere or not.
template <class List>
scenario count_in_between(std::uint32_t num_caches, bool stolen) {
  return [=](execution& e) {
    auto list = audited<List>{e, 2, num_caches};
    const auto held = list.pop();
    if (stolen) {
      list.push(list.pop());
    }
    e.spawn([&] { list.push(held); });
    e.spawn([&] { list.pop(); });
    e.spawn([&] { list.measure(); });
    list.run();
  };
}

/// More threads than an exhaustive schedule allows; the last ones have no cache.
template <class List>
scenario crowd(std::int32_t num_blocks, std::uint32_t num_caches, int num_threads) {
  return [=](execution& e) {
    auto list = audited<List>{e, num_blocks, num_caches};
    for (auto thread = 0; thread < num_threads; ++thread) {
      e.spawn([&] {
        block_id held[3] = {};
        for (auto round = 0; round < 3; ++round) {
          for (auto& block : held) {
            block = list.pop();
          }
          for (const auto block : held) {
            list.push(block);
          }
        }
      });
    }
    list.run();
  };
}

TEST_CASE("a lock-free free list is exact under every schedule of two threads", "[lock_free_free_list][scheduler]") {
  using list = list_of<scheduled>;
  auto explored = explorer{{.preemptions = 2}};
  for (const auto& body :
       {pairs<list>(1, 3, 1), pairs<list>(2, 3, 1), pairs<list>(3, 3, 2), handover<list>(2, 3), handover<list>(3, 3),
        pairs<list>(2, 2, 1), pairs<list>(2, 1, 1), pairs<list_of<scheduled, 3>>(3, 3, 1)}) {
    const auto found = explored.exhaustive(body);
    check_passes(found);
    CHECK(found.complete);
  }
}

TEST_CASE("a lock-free free list never overlooks the last free id", "[lock_free_free_list][scheduler]") {
  auto explored = explorer{{.preemptions = 2}};
  for (const auto num_caches : {1U, 2U, 3U, 4U}) {
    const auto found = explored.exhaustive(relay<list_of<scheduled>>(num_caches));
    check_passes(found);
    CHECK(found.complete);
  }
}

TEST_CASE("the upper ids of a lock-free free list can be taken out under every schedule",
          "[lock_free_free_list][scheduler]") {
  auto explored = explorer{{.preemptions = 2, .surprises = 1}};
  for (const auto& body : {taking<list_of<scheduled>>(3, 3), taking<list_of<scheduled>>(3, 2),
                           taking<list_of<scheduled>>(3, 1), taking<list_of<scheduled, 3>>(4, 3)}) {
    const auto found = explored.exhaustive(body);
    check_passes(found);
    CHECK(found.complete);
  }
}

TEST_CASE("a lock-free free list is never counted too small", "[lock_free_free_list][scheduler]") {
  using list = list_of<scheduled>;
  auto explored = explorer{{.preemptions = 2, .surprises = 1}};
  for (const auto& body :
       {count_in_passing<list>(3, 3, 2), count_in_passing<list>(2, 2, 1),
        count_in_passing<list_of<scheduled, 3>>(6, 3, 4), count_in_between<list>(4, false),
        count_in_between<list>(3, false), count_in_between<list>(2, false), count_in_between<list>(4, true)}) {
    const auto found = explored.exhaustive(body);
    check_passes(found);
    CHECK(found.complete);
  }
}

/// The number of the thread that the scheduler runs; during preparation, any chosen number.
struct assigned_thread_index {
  static inline auto assigned = std::optional<std::uint32_t>{};

  static std::uint32_t current() noexcept {
    return assigned ? *assigned : static_cast<std::uint32_t>(execution::active()->current());
  }
  static std::uint32_t limit() noexcept { return 5; }
};

/// The first thread pops and pushes one id repeatedly, the second steals it after the last push, the third reads the
/// size. The other id is free throughout.
scenario count_behind_a_theft(std::uint32_t num_caches) {
  return [=](execution& e) {
    using index = assigned_thread_index;
    auto list = lock_free_free_list<scheduled, index, 3>{2, num_caches};
    index::assigned = 1;
    const auto busy = list.pop();
    index::assigned = 4;
    list.push(list.pop());
    index::assigned = 1;
    list.push(busy);
    index::assigned.reset();
    auto num_rounds = 0;
    auto stolen = no_block;
    auto counted = 0;
    e.spawn([&] {
      for (auto block = list.pop(); block == busy && num_rounds < 3; ++num_rounds) {
        list.push(block);
        block = num_rounds < 2 ? list.pop() : no_block;
      }
    });
    e.spawn([&] { stolen = list.pop(); });
    e.spawn([&] { counted = list.size(); });
    e.run();
    e.expect(num_rounds < 3 || stolen != busy || counted >= 1, "counted nothing though one id was free throughout");
  };
}

TEST_CASE("no count misses an id because another was stolen on its way", "[lock_free_free_list][scheduler]") {
  const auto beyond_the_caches = explorer{{.preemptions = 3}}.exhaustive(count_behind_a_theft(1));
  check_passes(beyond_the_caches);
  CHECK(beyond_the_caches.complete);
  const auto in_a_cache = explorer{{.preemptions = scaled(2U, 3U)}}.exhaustive(count_behind_a_theft(5));
  check_passes(in_a_cache);
  CHECK(in_a_cache.complete);
}

TEST_CASE("a lock-free free list stands loads as stale as their order allows", "[lock_free_free_list][scheduler]") {
  using list = list_of<scheduled>;
  auto explored = explorer{{.preemptions = 2, .surprises = 2}};
  for (const auto& body : {handover<list>(2, 3), relay<list>(2), relay<list>(4), theft<list>(1), theft<list>(2),
                           theft<list>(3), theft<list>(4)}) {
    const auto found = explored.exhaustive(body);
    check_passes(found);
    CHECK(found.complete);
  }
  const auto found = explorer{{.preemptions = 3, .surprises = 2}}.exhaustive(turnover<list_of<scheduled, 2>>(3));
  check_passes(found);
  CHECK(found.complete);
}

TEST_CASE("a lock-free free list is exact under random schedules of many threads",
          "[lock_free_free_list][scheduler][random]") {
  const auto seed = GENERATE(take(1, random(std::uint64_t{1}, std::uint64_t{1} << 40)));
  auto explored = explorer{{.preemptions = 1'000, .max_steps = 20'000}};
  check_passes(explored.random(crowd<list_of<scheduled>>(5, 9, 3), seed, 2'000));
  check_passes(explored.random(crowd<list_of<scheduled>>(7, 4, 4), seed, 2'000));
  check_passes(explored.random(crowd<list_of<scheduled, 3>>(10, 9, 4), seed, 2'000));
  auto stale = explorer{{.preemptions = 1'000, .surprises = 1'000, .max_steps = 20'000}};
  check_passes(stale.random(crowd<list_of<scheduled>>(5, 9, 3), seed, 2'000));
  check_passes(stale.random(crowd<list_of<scheduled, 3>>(10, 3, 4), seed, 2'000));
}

TEST_CASE("a thread stopped anywhere in a lock-free free list stops no other",
          "[lock_free_free_list][scheduler][random]") {
  using list = list_of<scheduled>;
  auto explored = explorer{{.preemptions = 3}};
  const auto seed = GENERATE(take(1, random(std::uint64_t{1}, std::uint64_t{1} << 40)));
  for (const auto& body : {pairs<list>(3, 3, 2), handover<list>(3, 3), pairs<list>(3, 1, 2), crowd<list>(5, 9, 3),
                           pairs<list_of<scheduled, 3>>(3, 3, 1), pairs<list_of<scheduled, 3>>(4, 3, 2)}) {
    for (const auto thread : {std::size_t{1}, std::size_t{2}}) {
      const auto found = explored.stopped_anywhere(body, thread, seed);
      check_passes(found);
      CHECK(found.complete);
    }
  }
}

bool caught(const scenario& body) { return !explorer{}.exhaustive(body).failure.empty(); }

TEST_CASE("bugs planted in a lock-free free list are caught", "[lock_free_free_list][scheduler]") {
  CHECK(caught(pairs<list_of<untagged>>(2, 1, 2)));
  CHECK(caught(relay<list_of<load_then_store>>(1)));
  CHECK(caught(pairs<list_of<load_then_store>>(2, 1, 1)));
  CHECK(caught(pairs<list_of<load_then_store_exchange>>(1, 3, 1)));
  CHECK(caught(pairs<list_of<unreleased>>(1, 3, 1)));

  // The bounds needed to see the last id with stale loads.
  auto stale = explorer{{.preemptions = 2, .surprises = 2}};
  CHECK(stale.exhaustive(theft<list_of<scheduled>>(2)).failure.empty());
  CHECK(stale.exhaustive(theft<list_of<unreleased_exchange>>(2)).failure == "refused while a block was free");
  CHECK(stale.exhaustive(count_in_between<list_of<unreleased>>(2, false)).failure == "a size below all that it was");
}

}  // namespace
