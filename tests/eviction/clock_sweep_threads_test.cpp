#include "../support/on_threads.hpp"

#include <pagedkv/policy/eviction/clock_sweep.hpp>

#include <catch2/catch_test_macros.hpp>

#include <atomic>
#include <cstdint>
#include <random>
#include <vector>

using namespace pagedkv;
using pagedkv::test::on_threads;

namespace {

// The relevant part of the pool: one word per block, which decides races between hits and evictions.
class words {
 public:
  static constexpr auto taken = -1;

  explicit words(std::size_t size) : words_(size) {}

  [[nodiscard]] bool swap(block_id block, int from, int to) noexcept {
    return words_[to_index(block)].compare_exchange_strong(from, to, std::memory_order_acq_rel);
  }

 private:
  std::vector<std::atomic<int>> words_;  // references; evictable at 0
};

thread_local auto chosen_index = std::uint32_t{0};

/// Lets one thread call for several.
struct chosen_thread_index {
  [[nodiscard]] static std::uint32_t current() noexcept { return chosen_index; }
  [[nodiscard]] static std::uint32_t limit() noexcept { return 2; }
};

}  // namespace

TEST_CASE("clock_sweep loses no block and hands none out twice while threads hit, release and evict", "[eviction][threads]") {
  constexpr auto num_blocks = 300;
  constexpr auto num_threads = 4U;
  constexpr auto num_rounds = 20'000;
  auto policy = clock_sweep{num_blocks};
  auto state = words{num_blocks};
  for (auto i = 0; i < num_blocks; ++i) {
    policy.insert(block_id{i}, {});
  }
  const auto offer = [&](block_id block, auto...) {
    return state.swap(block, 0, words::taken) ? eviction_answer::taken : eviction_answer::in_use;
  };
  auto num_victims = std::atomic<int>{0};
  auto num_wrong = std::atomic<int>{0};
  const auto run = [&](std::uint64_t seed) {
    auto random = std::mt19937_64{seed};
    for (auto round = 0; round < num_rounds; ++round) {
      if (random() % 2 == 0) {
        const auto block = to_block(random() % num_blocks);
        if (state.swap(block, 0, 1)) {
          policy.remove(block);
          num_wrong += state.swap(block, 1, 0) ? 0 : 1;
          policy.insert(block, {});
        }
      } else if (const auto block = policy.victim(offer, {}); block != no_block) {
        ++num_victims;
        num_wrong += state.swap(block, words::taken, 0) ? 0 : 1;
        policy.insert(block, {});
      }
    }
  };
  on_threads(num_threads, [&](unsigned thread) { run(thread + 1); });
  CHECK(num_wrong == 0);
  CHECK(num_victims > 0);
  auto num_left = 0;
  while (policy.victim(offer, {}) != no_block) {
    ++num_left;
  }
  CHECK(num_left == num_blocks);
}

TEST_CASE("clock_sweep finds the one evictable block among a million", "[eviction]") {
  constexpr auto num_blocks = 1'000'000;
  auto policy = clock_sweep{num_blocks};
  policy.insert(block_id{777'777}, {});
  auto num_offers = 0;
  const auto offer = [&](block_id, auto...) {
    ++num_offers;
    return eviction_answer::taken;
  };
  CHECK(policy.victim(offer, {}) == block_id{777'777});
  CHECK(policy.victim(offer, {}) == no_block);
  CHECK(num_offers == 1);
}

TEST_CASE("clock_sweep offers a block three times at most when none can be taken", "[eviction]") {
  constexpr auto num_blocks = 10'000;
  auto policy = clock_sweep{num_blocks};
  for (auto i = 0; i < num_blocks; ++i) {
    policy.insert(block_id{i}, {});
  }
  auto num_offers = 0;
  const auto refuse = [&](block_id, auto...) {
    ++num_offers;
    return eviction_answer::fenced;
  };
  CHECK(policy.victim(refuse, {}) == no_block);
  CHECK(num_offers >= num_blocks);
  CHECK(num_offers <= 3 * num_blocks);
}

TEST_CASE("clock_sweep evicts no block that is often hit because a thread was given none without children",
          "[eviction]") {
  constexpr auto num_blocks = 512;
  constexpr auto hot = block_id{5};
  constexpr auto first_of_lap = block_id{6};
  const auto has_children = [](block_id block) { return to_index(block) / 64 == 1; };
  auto policy = basic_clock_sweep<3, std::atomic, chosen_thread_index>{num_blocks};
  policy.insert(hot, {});
  for (auto hits = 0; hits < 7; ++hits) {
    policy.remove(hot);
    policy.insert(hot, {});
  }
  for (auto i = 64; i < num_blocks; ++i) {
    policy.insert(block_id{i}, {});
  }
  const auto answer = [&](block_id block, auto...) {
    return has_children(block) ? eviction_answer::has_children : eviction_answer::taken;
  };
  const auto let_other_thread_begin_next_lap = [&] {
    chosen_index = 1;
    while (policy.victim(answer, {}) != block_id{num_blocks - 1}) {
    }
    policy.insert(first_of_lap, {});
    for (auto i = 128; i < num_blocks; ++i) {
      policy.insert(block_id{i}, {});
    }
    CHECK(policy.victim(answer, {}) == first_of_lap);
    chosen_index = 0;
  };
  auto num_laps = 0;
  const auto victim = policy.victim(
      [&](block_id block, auto...) {
        if (block == block_id{127} && ++num_laps <= 3) {
          let_other_thread_begin_next_lap();
        }
        return answer(block);
      },
      {});
  CHECK(num_laps > 2);
  CHECK(victim != hot);
}
