#pragma once

#include "../support/full_numbers.hpp"
#include "../support/on_threads.hpp"
#include "../support/tokens.hpp"

#include <pagedkv/pagedkv.hpp>
#include <pagedkv/policy/locking/parts/guards.hpp>
#include <pagedkv/policy/locking/parts/mutexes.hpp>

#include <catch2/catch_test_macros.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <barrier>
#include <cstddef>
#include <cstdint>
#include <random>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <vector>

// Cases of caches of one group and of caches of several.
namespace pagedkv::test {

template <class Cache>
void check_idle(Cache& cache) {
  const auto statistics = cache.statistics();
  CHECK(statistics.blocks.in_use == 0);
  CHECK(statistics.blocks.retiring == 0);
  CHECK(statistics.num_sequences == 0);
  CHECK(cache.check_invariants() == std::vector<std::string>{});
}

template <class Cache>
float key_at(Cache& cache, sequence_id id, std::int64_t position, std::size_t group = 0) {
  auto at = std::array<slot, 1>{};
  auto key = 0.0F;
  auto value = 0.0F;
  cache.slot_mapping(id, position, at, group).value();
  cache.read(0, at, {&key, 1, 1, 1, 1, 1}, {&value, 1, 1, 1, 1, 1}, {}, group).value();
  return key;
}

template <class Cache>
void write_key(Cache& cache, sequence_id id, std::int64_t position, float key, std::size_t group = 0) {
  auto at = std::array<slot, 1>{};
  cache.slot_mapping(id, position, at, group).value();
  cache.write(0, at, {&key, 1, 1, 1, 1, 1}, {&key, 1, 1, 1, 1, 1}, {}, group).value();
}

/// Two threads release each sequence at once.
template <class Cache>
void check_ends_once(Cache& cache, int rounds) {
  auto id = sequence_id{};
  auto num_released = std::atomic{0};
  auto wrong_answers = std::atomic{0};
  auto gather = std::barrier{2};
  on_threads(2, [&](int thread) {
    for (auto round = 0; round < rounds; ++round) {
      if (thread == 0) {
        id = cache.create_sequence(numbered(5)).value().id;
      }
      gather.arrive_and_wait();
      const auto released = cache.release(id);
      num_released += released.has_value();
      wrong_answers += !released && released.error().code != error_code::unknown_sequence &&
                       (Cache::locking_type::waits_for_sequence || released.error().code != error_code::sequence_busy);
      gather.arrive_and_wait();
    }
  });
  CHECK(num_released == rounds);
  CHECK(wrong_answers == 0);
  CHECK(cache.release(id).error().code == error_code::unknown_sequence);
  CHECK(cache.statistics().blocks == block_counts{.free = cache.num_blocks()});
  check_idle(cache);
}

/// So many threads ask at once for a prompt of so many blocks, which do not suffice for all.
template <int NumThreads, class Cache>
void check_all_or_nothing(Cache& cache, int num_tokens, std::int32_t num_blocks_each, int rounds) {
  const auto num_blocks = cache.num_blocks();
  auto granted = std::array<sequence_id, static_cast<std::size_t>(NumThreads)>{};
  auto was_granted = std::array<bool, static_cast<std::size_t>(NumThreads)>{};
  auto wrong_sums = std::atomic{0};
  auto gather = std::barrier{NumThreads};
  on_threads(NumThreads, [&](int thread) {
    const auto own = static_cast<std::size_t>(thread);
    for (auto round = 0; round < rounds; ++round) {
      gather.arrive_and_wait();
      const auto made = cache.create_sequence(numbered(num_tokens, 1000 * thread));
      was_granted[own] = made.has_value();
      if (made) {
        granted[own] = made->id;
      }
      gather.arrive_and_wait();
      if (thread == 0) {
        const auto num_used = std::ranges::count(was_granted, true) * num_blocks_each;
        const auto counts = cache.statistics().blocks;
        wrong_sums += counts.in_use != num_used || counts.free != num_blocks - num_used;
      }
      gather.arrive_and_wait();
      if (was_granted[own]) {
        wrong_sums += !cache.release(granted[own]);
      }
    }
  });
  CHECK(wrong_sums == 0);
  CHECK(cache.statistics().blocks == block_counts{.free = num_blocks});
  check_idle(cache);
}

/// Under `lock_free` nothing moves, and the size changes while others read and write.
template <class Cache>
[[nodiscard]] result<std::vector<block_pair>> change_size(Cache& cache, fair_shared_mutex& kernels,
                                                          std::int32_t num_blocks, bool compacts) {
  if constexpr (detail::runs_alone<typename Cache::locking_type>) {
    const auto guard = exclusive_guard{kernels};
    return compacts ? cache.compact() : cache.resize(num_blocks);
  } else {
    return cache.resize(num_blocks);
  }
}

/// Threads serve `Requests` while others change the size of the cache, invalidate what it has and end pins. Returns how
/// many blocks were invalidated.
template <class Requests, class Cache>
std::int64_t serve_while_others_change(Cache& cache, std::int32_t most_blocks, unsigned seed) {
  constexpr auto num_workers = 3;
  const auto rounds = testing::scaled(1'500, 50'000);
  auto kernels = fair_shared_mutex{};
  auto num_at_work = std::atomic{num_workers};
  auto wrong = std::atomic{0};
  auto num_hits = std::atomic{0};
  auto num_changes = std::atomic{0};
  auto num_invalidated = std::atomic<std::int64_t>{0};

  const auto serve = [&](unsigned own_seed) {
    auto requests = Requests{cache, kernels, own_seed};
    // On a machine with few processors, the others may not get their turns for long.
    for (auto round = 0; round < rounds || num_changes == 0 || num_invalidated == 0; ++round) {
      requests.serve_one();
    }
    wrong += requests.num_wrong();
    num_hits += requests.num_hits();
    --num_at_work;
  };
  const auto change_sizes = [&](std::mt19937 random) {
    while (num_at_work > 0) {
      const auto num_blocks = 20 + static_cast<std::int32_t>(random() % static_cast<unsigned>(most_blocks - 19));
      const auto changed = change_size(cache, kernels, num_blocks, random() % 8 == 0);
      num_changes += changed.has_value();
      wrong += !changed && changed.error().code != error_code::in_use;
      std::this_thread::yield();
    }
  };
  const auto invalidate = [&](std::mt19937 random) {
    while (num_at_work > 0) {
      const auto tag = salt{random() % 2};
      const auto draw_block = [&] { return block_id(random() % static_cast<unsigned>(most_blocks)); };
      const auto blocks = std::array{draw_block(), draw_block()};
      switch (random() % 16) {
        case 0: num_invalidated += cache.invalidate_salt(tag); break;
        case 1:
          num_invalidated += cache.invalidate_prefix(numbered(4, static_cast<token>(1'000 * (random() % 4))), tag);
          break;
        case 2:
          if (const auto num = cache.invalidate_blocks(blocks)) {  // unless one is outside the pool
            num_invalidated += *num;
          }
          break;
        case 3: cache.unpin_all(); break;
        default: std::this_thread::yield();
      }
    }
  };
  on_threads(num_workers + 2, [&](int thread) {
    const auto own_seed = seed + static_cast<unsigned>(thread);
    if (thread < num_workers) {
      serve(own_seed);
    } else if (thread == num_workers) {
      change_sizes(std::mt19937{own_seed});
    } else {
      invalidate(std::mt19937{own_seed});
    }
  });
  CHECK(wrong == 0);
  CHECK(num_hits > 0);
  CHECK(num_changes > 0);
  CHECK(num_invalidated > 0);
  check_idle(cache);
  return num_invalidated;
}

/// The size still changes, and nothing is left over.
template <class Cache>
void check_resizes(Cache& cache, std::int32_t most_blocks) {
  CHECK(cache.resize(1));
  CHECK(cache.resize(most_blocks));
  CHECK(cache.reset_prefix_cache());
  CHECK(cache.statistics().blocks == block_counts{.free = most_blocks});
}

/// 256 different hashes, each of which names a bucket and a fingerprint of its own.
struct hash_of_8_bits {
  [[nodiscard]] static std::uint64_t hash(std::uint64_t previous, std::span<const token> tokens) noexcept {
    return (xxh3_hash::hash(previous, tokens) & 0xff) * 0x0101'0101'0101'0101;
  }
};

/// Publishes texts of three blocks of two tokens, and looks others up on two threads. Every text has a K of its own
/// behind each of its blocks, so a wrong hit shows as a wrong prefix length.
template <class Cache>
void check_no_wrong_hits(Cache& cache, int num_texts, int look_ups_each, unsigned seed) {
  constexpr auto block_size = std::size_t{2};
  auto random = std::mt19937{seed};
  const auto draw = [](auto& from) {
    auto tokens = std::vector<token>(3 * block_size);
    std::ranges::generate(tokens, [&] { return static_cast<token>(from() % 6); });
    return tokens;
  };
  const auto prefix_of = [](const std::vector<token>& tokens, std::size_t size) {
    return std::vector<token>(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(size));
  };
  auto published = std::set<std::vector<token>>{};
  for (auto i = 0; i < num_texts; ++i) {
    const auto tokens = draw(random);
    const auto id = cache.create_sequence(tokens).value().id;
    cache.commit(id, std::ssize(tokens)).value();
    for (auto size = block_size; size <= tokens.size(); size += block_size) {
      published.insert(prefix_of(tokens, size));
    }
  }
  auto num_wrong = std::atomic{0};
  auto num_hits = std::atomic{0};
  on_threads(2, [&](int thread) {
    auto own = std::mt19937{seed + 1 + static_cast<unsigned>(thread)};
    for (auto i = 0; i < look_ups_each; ++i) {
      auto tokens = draw(own);
      auto wanted = tokens.size();
      while (wanted > 0 && !published.contains(prefix_of(tokens, wanted))) {
        wanted -= block_size;
      }
      tokens.push_back(0);  // is left to compute
      const auto found = cache.find_prefix(tokens);
      num_wrong += found != static_cast<std::int64_t>(wanted);
      num_hits += found > 0;
    }
  });
  CHECK(num_wrong == 0);
  CHECK(num_hits > 0);
}

}  // namespace pagedkv::test
