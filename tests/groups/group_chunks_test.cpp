// A prompt that is admitted in chunks can be completed in them, when nothing else is in use.

#include <pagedkv/pagedkv.hpp>

#include "../support/printing.hpp"
#include "group_engine.hpp"

#include <catch2/catch_get_random_seed.hpp>
#include <catch2/catch_test_macros.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <vector>

using namespace pagedkv;
using namespace pagedkv::test;

namespace {

using cache_type = group_cache<float32>;

/// For each length of a prompt, how many blocks its sequence holds at most while chunks of at most `chunk` tokens are
/// appended and committed, wherever they begin: as a pool that has room for all of it tells.
std::vector<std::int64_t> most_held(const group_list& groups, std::int64_t chunk, std::int64_t longest) {
  auto cache = cache_type{config_of(groups, 2'000)};
  const auto id = cache.create_sequence(tokens{}, {.publish = false}).value().id;
  const auto held = [&] { return cache.statistics().blocks.in_use; };
  auto most = std::vector<std::int64_t>{held()};
  while (std::ssize(most) <= std::min(chunk, longest)) {
    REQUIRE(cache.append(id, token{1}));
    most.push_back(held());
  }
  REQUIRE(cache.truncate(id, 0));
  while (std::ssize(most) <= longest) {
    REQUIRE(cache.append(id, token{1}));
    const auto computed = std::ssize(most) - chunk;
    REQUIRE(cache.commit(id, computed));
    REQUIRE(cache.append(id, tokens(static_cast<std::size_t>(chunk), 1)));
    most.push_back(std::max(most.back(), held()));
    REQUIRE(cache.truncate(id, computed));
  }
  return most;
}

/// Computes the rest of a prompt, `next_size()` tokens at a time; returns why a chunk was refused, or nothing.
template <class NextSize>
std::string complete(cache_type& cache, const admission& made, const tokens& prompt, NextSize&& next_size) {
  const auto length = std::ssize(prompt);
  auto computed = made.num_cached_tokens;
  auto end = made.num_tokens;
  for (;;) {
    while (computed < end) {
      computed = std::min(end, cache.next_saved_length(made.id).value());
      REQUIRE(cache.commit(made.id, computed));
    }
    if (end == length) {
      return {};
    }
    const auto size = std::min<std::int64_t>(next_size(), length - end);
    const auto rest = std::span{prompt}.subspan(static_cast<std::size_t>(end), static_cast<std::size_t>(size));
    if (const auto appended = cache.append(made.id, rest); !appended) {
      return appended.error().message();
    }
    end += size;
  }
}

/// Groups of every kind, the first of which attends to all tokens.
group_list draw_groups(std::mt19937_64& random) {
  const auto between = [&](int least, int most) { return std::uniform_int_distribution{least, most}(random); };
  auto groups = std::vector<group_config>{};
  const auto add = [&](group_kind kind) {
    auto group = group_config{.kind = kind, .num_layers = between(1, 4), .key_dim = between(2, 12)};
    group.value_dim = between(1, group.key_dim);
    if (kind == group_kind::window || kind == group_kind::chunked) {
      group.window = between(1, 40);
      group.num_sinks = kind == group_kind::window && between(0, 1) == 0 ? between(1, 9) : 0;
    }
    if (kind == group_kind::state) {
      group.key_dim = group.value_dim = 0;
      group.state_bytes = between(1, 20) * 16;
    }
    groups.push_back(group);
  };
  add(between(0, 3) == 0 ? group_kind::latent : group_kind::full);
  for (auto i = between(0, 3); i > 0; --i) {
    add(between(0, 2) == 0 ? group_kind::chunked : group_kind::window);
  }
  if (between(0, 2) == 0) {
    add(group_kind::state);
  }
  return group_list{std::span<const group_config>{groups}};
}

}  // namespace

TEST_CASE("a chunked prompt is admitted when the pool has what its chunks take, and refused before the first else",
          "[group_cache][chunks]") {
  constexpr auto longest = std::int64_t{300};
  for (const auto& [name, groups] : kinds) {
    for (const auto chunk : {std::int64_t{0}, std::int64_t{1}, std::int64_t{4}, std::int64_t{7}, std::int64_t{16},
                             std::int64_t{21}, std::int64_t{48}, std::int64_t{160}, whole_length}) {
      INFO(name << ", chunks of " << chunk);
      const auto most = most_held(groups, std::max(chunk, std::int64_t{1}), longest);
      const auto num_blocks = most[200];
      auto cache = cache_type{config_of(groups, static_cast<std::int32_t>(num_blocks))};
      for (auto length = std::int64_t{0}; length <= longest; ++length) {
        INFO("length " << length);
        const auto prompt = counted(static_cast<int>(length));
        const auto options = sequence_options{.publish = false, .first_chunk = chunk};
        const auto forecast = cache.would_fit(prompt, options);
        const auto made = cache.create_sequence(prompt, options);
        const auto needed = most[static_cast<std::size_t>(length)];
        REQUIRE(made.has_value() == (needed <= num_blocks));
        REQUIRE(forecast.has_value() == made.has_value());
        if (!made) {
          CHECK(made.error().code == error_code::never_fits);
          CHECK(made.error().value == needed);
          CHECK(forecast.error().message() == made.error().message());
          continue;
        }
        CHECK(complete(cache, *made, prompt, [&] { return std::max(chunk, std::int64_t{1}); }).empty());
        REQUIRE(cache.release(made->id));
      }
    }
  }
}

TEST_CASE("a prompt that is admitted beside nothing but cached blocks is completed in chunks",
          "[group_cache][random]") {
  const auto seed = Catch::getSeed();
  auto num_hits = 0;
  auto num_refused = 0;
  for (auto round = std::uint64_t{0}; round < 60; ++round) {
    INFO("seed " << seed << ", round " << round);
    auto random = std::mt19937_64{seed + round};
    const auto between = [&](int least, int most) { return std::uniform_int_distribution{least, most}(random); };
    const auto groups = draw_groups(random);
    auto config = config_of(groups, 1, std::array{1, 4, 8}[static_cast<std::size_t>(between(0, 2))]);
    const auto plan = plan_memory(groups, size_of_element<float32>, config.block_size).value();
    for (const auto& each : std::span{plan.groups}.first(groups.size())) {
      config.num_blocks +=
          each.blocks_per_state != 0 ? each.blocks_per_state * between(1, 3) : between(20, 200) / each.block_size + 1;
    }
    auto cache = cache_type{config};
    auto before = tokens{};
    for (auto i = 0; i < 40; ++i) {
      INFO("prompt " << i);
      auto prompt = tokens(before.begin(), before.begin() + between(0, static_cast<int>(before.size())));
      const auto more = counted(between(1, between(0, 1) == 0 ? 20 : 200), 1'000 * i);
      prompt.insert(prompt.end(), more.begin(), more.end());
      const auto chunk = between(1, between(0, 1) == 0 ? 8 : 100);
      auto options = sequence_options{.first_chunk = between(0, 7) == 0 ? whole_length : chunk};
      options.saving = {between(0, 1) == 0, between(0, 1) == 0, between(0, 2) == 0 ? 16 : 0, between(0, 1) == 0};
      const auto made = cache.create_sequence(prompt, options);
      if (!made) {
        ++num_refused;
        CHECK(made.error().code == error_code::never_fits);  // nothing is in the way
        CHECK(cache.reset_prefix_cache());
        CHECK_FALSE(cache.create_sequence(prompt, options));  // a hit saves blocks
        continue;
      }
      num_hits += made->num_cached_tokens != 0;
      CHECK(complete(cache, *made, prompt, [&] { return between(0, 2) == 0 ? between(1, chunk) : chunk; }).empty());
      REQUIRE(cache.release(made->id));
      before = prompt;
    }
    CHECK(cache.check_invariants() == sound);
  }
  CHECK(num_hits > 200);
  CHECK(num_refused > 200);
}
