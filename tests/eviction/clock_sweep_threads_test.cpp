#include <pagedkv/policy/eviction/clock_sweep.hpp>

#include <catch2/catch_test_macros.hpp>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <random>
#include <thread>
#include <vector>

using namespace pagedkv;

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
  auto threads = std::vector<std::thread>{};
  for (auto i = 0U; i < num_threads; ++i) {
    threads.emplace_back(run, i + 1);
  }
  std::ranges::for_each(threads, &std::thread::join);
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

TEST_CASE("clock_sweep offers a block four times at most when none can be taken", "[eviction]") {
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
  CHECK(num_offers <= 4 * num_blocks);
}
