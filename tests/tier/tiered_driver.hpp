#pragma once

#include "../support/first_difference.hpp"
#include "../support/hash_seed.hpp"
#include "../support/tokens.hpp"

#include <pagedkv/pagedkv.hpp>
#include <pagedkv/tier/tiered_cache.hpp>

#include <catch2/catch_test_macros.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

namespace pagedkv::test {

inline constexpr auto row_dim = std::size_t{2};

inline cache_config small_device(std::int32_t num_blocks) {
  auto config = cache_config{};
  config.num_blocks = num_blocks;
  config.block_size = 4;
  config.num_layers = 2;
  config.num_kv_heads = 1;
  config.head_dim = row_dim;
  config.max_sequences = 64;
  config.hash_seed = hash_seed();
  return config;
}

/// Tiers without threads of their own: transfers run when a test says so.
inline tier_config by_hand() {
  auto config = tier_config{};
  config.threads = false;
  config.known_records = 2'000;  // far fewer than the default: each check of the invariants looks at all
  return config;
}

/// Numbers of a sequence's tokens, each of which tells the salt and all tokens up to it.
inline std::vector<std::uint32_t> rows_of(std::span<const token> tokens, salt tag) {
  auto all = std::vector<std::uint32_t>{};
  auto hash = static_cast<std::uint32_t>(tag) * 2654435761U + 1;
  for (const auto next : tokens) {
    hash = (hash ^ static_cast<std::uint32_t>(next)) * 16777619U + 12345;
    all.push_back(hash);
  }
  return all;
}
/// K and V of such a token in a layer, so that a byte of another place shows.
using kv_row = std::array<float, row_dim>;
inline std::pair<kv_row, kv_row> row_at(std::uint32_t hash, std::int32_t layer) {
  const auto low = static_cast<float>(hash & 0xffff);
  const auto high = static_cast<float>(hash >> 16);
  const auto of_layer = static_cast<float>(layer);
  return {{low, high + of_layer}, {high - of_layer, low + 1}};
}
template <class Row>
auto rows(Row& row) {
  return contiguous_rows(row, 1, row_dim);
}
/// All numbers of K and of V of such tokens.
inline std::pair<std::vector<float>, std::vector<float>> rows_at(std::span<const std::uint32_t> hashes,
                                                                 std::int32_t layer) {
  auto numbers = std::pair<std::vector<float>, std::vector<float>>{};
  for (const auto hash : hashes) {
    const auto [key, value] = row_at(hash, layer);
    numbers.first.insert(numbers.first.end(), key.begin(), key.end());
    numbers.second.insert(numbers.second.end(), value.begin(), value.end());
  }
  return numbers;
}

/// Writes and checks K/V of sequences of a tiered cache.
template <class Cache>
class tiered_driver {
 public:
  struct stream_of {
    std::vector<token> tokens;
    salt tag{};
    std::int64_t num_written = 0;
  };

  explicit tiered_driver(Cache& cache) : cache_(cache) {}

  /// Creates a sequence and checks what it says is cached. No sequence when there is no room.
  std::optional<admission> create(const std::vector<token>& prompt, salt tag = {}, sequence_options options = {}) {
    options.salt = tag;
    const auto made = cache_.create_sequence(prompt, options);
    if (!made) {
      CHECK((made.error().code == error_code::capacity_exhausted || made.error().code == error_code::never_fits));
      return std::nullopt;
    }
    auto tokens = prompt;
    tokens.resize(static_cast<std::size_t>(made->num_tokens));
    live[made->id] = {tokens, tag, made->num_cached_tokens};
    check_contents(made->id);
    return *made;
  }

  /// Writes what is not written, and commits so many tokens of it.
  void compute(sequence_id id, std::int64_t num_tokens) {
    auto& s = live.at(id);
    const auto hashes = rows_of(s.tokens, s.tag);
    const auto first = std::min(s.num_written, num_tokens);
    auto slots = std::vector<slot>(static_cast<std::size_t>(num_tokens - first));
    REQUIRE(cache_.slot_mapping(id, first, slots));
    for (auto layer = std::int32_t{0}; layer < 2; ++layer) {
      const auto [keys, values] =
          rows_at(std::span(hashes).subspan(static_cast<std::size_t>(first), slots.size()), layer);
      REQUIRE(cache_.write(layer, slots, rows(keys), rows(values)));
    }
    s.num_written = std::max(s.num_written, num_tokens);
    REQUIRE(cache_.commit(id, num_tokens));
  }
  void compute(sequence_id id) { compute(id, std::ssize(live.at(id).tokens)); }

  bool append(sequence_id id, token next) {
    if (!cache_.append(id, next)) {
      return false;
    }
    live.at(id).tokens.push_back(next);
    return true;
  }

  void settle(sequence_id id) {
    const auto num = cache_.settle(id);
    REQUIRE(num);
    auto& s = live.at(id);
    CHECK(*num >= s.num_written);
    s.num_written = *num;
    check_contents(id);
  }

  void release(sequence_id id) {
    check_contents(id);
    REQUIRE(cache_.release(id));
    live.erase(id);
  }

  /// Computes a prompt, of which tiers may have a part, and keeps it.
  sequence_id hold(const std::vector<token>& prompt) {
    const auto made = create(prompt);
    REQUIRE(made);
    settle(made->id);
    compute(made->id);
    return made->id;
  }

  /// Runs a prompt from start to end; returns how many of its tokens were not computed.
  std::int64_t serve(const std::vector<token>& prompt, salt tag = {}) {
    const auto made = create(prompt, tag);
    REQUIRE(made);
    if (made->num_loading_tokens != 0) {
      cache_.wait(made->id);
      settle(made->id);
    }
    const auto num_cached = live.at(made->id).num_written;
    compute(made->id);
    release(made->id);
    return num_cached;
  }

  void check_contents(sequence_id id) {
    const auto& s = live.at(id);
    const auto hashes = rows_of(s.tokens, s.tag);
    auto slots = std::vector<slot>(static_cast<std::size_t>(s.num_written));
    REQUIRE(cache_.slot_mapping(id, 0, slots));
    for (auto layer = std::int32_t{0}; layer < 2; ++layer) {
      const auto expected = rows_at(std::span(hashes).first(slots.size()), layer);
      auto keys = std::vector<float>(expected.first.size());
      auto values = keys;
      REQUIRE(cache_.read(layer, slots, rows(keys), rows(values)));
      REQUIRE(first_difference(keys, expected.first) == no_difference);
      REQUIRE(first_difference(values, expected.second) == no_difference);
    }
  }

  void check_invariants() {
    const auto broken = cache_.check_invariants();
    CAPTURE(broken);
    REQUIRE(broken.empty());
  }

  std::map<sequence_id, stream_of> live;

 private:
  Cache& cache_;
};

/// A prompt whose blocks come from a small tree, so that prompts share prefixes often.
inline std::vector<token> random_prompt(std::mt19937& random, std::size_t max_blocks) {
  const auto num_tokens = 1 + random() % (4 * max_blocks);
  auto prompt = std::vector<token>{};
  auto branch = token{0};
  for (std::size_t i = 0; i < num_tokens; ++i) {
    if (i % 4 == 0) {
      branch = static_cast<token>(random() % 4 == 0 ? random() % 3 : 0);
    }
    prompt.push_back(static_cast<token>(i) * 10 + branch);
  }
  return prompt;
}

/// Tokens that sequences did not have to compute.
template <class Cache>
std::int64_t num_hits(Cache& cache) {
  auto sum = cache.statistics().hit_tokens;
  for (std::size_t i = 0; i < cache.num_tiers; ++i) {
    sum += cache.tier(i).hit_tokens;
  }
  return sum;
}

/// Random operations; each token that is said to be cached has its own K/V, and all counts add up. `heal` is called
/// before anything waits for a tier.
template <class Cache, class Heal>
void run_randomly(Cache& cache, std::uint32_t seed, int num_operations, const Heal& heal) {
  CAPTURE(seed);
  const auto hits_before = num_hits(cache);
  auto random = std::mt19937{seed};
  auto driver = tiered_driver{cache};
  auto steps = std::vector<step_id>{};
  const auto any = [&] {
    return std::next(driver.live.begin(), static_cast<std::ptrdiff_t>(random() % driver.live.size()))->first;
  };
  auto num_cached = std::int64_t{0};
  for (auto i = 0; i < num_operations; ++i) {
    const auto kind = random() % 16;
    if (kind < 5 || driver.live.empty()) {
      auto options = sequence_options{};
      if (random() % 4 == 0) {
        options.first_chunk = static_cast<std::int64_t>(1 + random() % 9);
      }
      if (random() % 16 == 0) {
        options.publish = false;
      }
      if (const auto made = driver.create(random_prompt(random, 7), salt{random() % 2}, options)) {
        num_cached += made->num_cached_tokens;
        if (made->num_loading_tokens == 0 && random() % 2 == 0) {
          driver.compute(made->id);
        }
      }
    } else if (kind < 8) {
      const auto id = any();
      const auto before = driver.live.at(id).num_written;
      driver.settle(id);
      num_cached += driver.live.at(id).num_written - before;
      const auto size = std::ssize(driver.live.at(id).tokens);
      driver.compute(id, std::max(driver.live.at(id).num_written, size - static_cast<std::int64_t>(random() % 3)));
    } else if (kind < 10) {
      const auto id = any();
      static_cast<void>(driver.append(id, static_cast<token>(random() % 3)));
    } else if (kind < 14) {
      driver.release(any());
    } else if (kind == 14) {
      if (steps.size() < 3) {
        const auto step = cache.begin_step();
        REQUIRE(step);
        steps.push_back(*step);
      } else {
        REQUIRE(cache.retire_step(steps.front()));
        steps.erase(steps.begin());
      }
    } else {
      if (random() % 2 == 0) {
        cache.invalidate_prefix(random_prompt(random, 7), salt{random() % 2});
        driver.check_invariants();
      }
      cache.run_transfers();
      if (steps.empty()) {
        REQUIRE(cache.compact());
      }
    }
    driver.check_invariants();
  }
  while (!driver.live.empty()) {
    driver.release(driver.live.begin()->first);
  }
  for (const auto step : steps) {
    REQUIRE(cache.retire_step(step));
  }
  heal();
  cache.wait_idle();
  driver.check_invariants();
  CHECK(num_hits(cache) - hits_before == num_cached);
  CHECK(cache.statistics().blocks.in_use == 0);
}
template <class Cache>
void run_randomly(Cache& cache, std::uint32_t seed, int num_operations) {
  run_randomly(cache, seed, num_operations, [] {});
}

}  // namespace pagedkv::test
