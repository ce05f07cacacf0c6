#pragma once

#include "cache_under_test.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace pagedkv::test {

/// The groups of a cache, and numbers that a caller can work out from them. A cache without groups has one that attends
/// to all tokens.
struct model_shape {
  std::int64_t granularity;
  std::vector<group_config> groups;
  std::vector<group_plan> plans;
  std::size_t with_state;  // the group with a state; the number of groups if there is none

  model_shape(const cache_under_test& cache, const cache_config& config)
      : granularity(config.block_size), groups(config.groups.begin(), config.groups.end()) {
    if (const auto* const plan = cache.plan()) {
      plans.assign(plan->groups.begin(), plan->groups.begin() + std::ssize(groups));
    } else {
      groups = {{.num_layers = config.num_layers,
                 .num_kv_heads = config.num_kv_heads,
                 .key_dim = config.head_dim,
                 .value_dim = config.head_dim}};
      plans = {{.block_size = config.block_size}};
    }
    const auto found = std::ranges::find(groups, group_kind::state, &group_config::kind);
    with_state = static_cast<std::size_t>(found - groups.begin());
  }

  [[nodiscard]] std::size_t num_groups() const noexcept { return groups.size(); }
  [[nodiscard]] bool has_state() const noexcept { return with_state != num_groups(); }
  [[nodiscard]] bool holds_tokens(std::size_t g) const noexcept { return g != with_state; }
  [[nodiscard]] std::int64_t block_size(std::size_t g) const { return plans.at(g).block_size; }
  [[nodiscard]] std::int64_t blocks_of_state() const { return has_state() ? plans[with_state].blocks_per_state : 0; }

  [[nodiscard]] std::size_t places_for(std::size_t g, std::int64_t num_tokens) const {
    return static_cast<std::size_t>((num_tokens + block_size(g) - 1) / block_size(g));
  }
  [[nodiscard]] std::size_t sinks_of(std::size_t g) const {
    return holds_tokens(g) ? places_for(g, groups[g].num_sinks) : 0;
  }
  /// The first place behind the sinks that is held when so many tokens are computed; 0 if none was released.
  [[nodiscard]] std::size_t first_place(std::size_t g, std::int64_t num_computed) const {
    const auto first = holds_tokens(g) ? groups[g].first_needed(num_computed) / block_size(g) : 0;
    return static_cast<std::size_t>(first) > sinks_of(g) ? static_cast<std::size_t>(first) : 0;
  }
  /// Blocks of a sequence of so many tokens, but for those that tokens from `next` on do not read.
  [[nodiscard]] std::int64_t blocks_for(std::int64_t num_tokens, std::int64_t next = 0) const {
    auto count = blocks_of_state();
    for (std::size_t g = 0; g < num_groups(); ++g) {
      if (holds_tokens(g)) {
        const auto end = static_cast<std::int64_t>(places_for(g, num_tokens));
        const auto first = std::min(groups[g].first_needed(next) / block_size(g), end);
        count += end - first + std::min(static_cast<std::int64_t>(sinks_of(g)), first);
      }
    }
    return count;
  }
  /// Blocks that a prompt takes at some moment, if it is computed in chunks of at most so many tokens behind the cached
  /// ones, wherever they end; with 0, token by token.
  [[nodiscard]] std::int64_t most_for(std::int64_t num_cached, std::int64_t num_tokens,
                                      std::int64_t first_chunk) const {
    const auto chunk = std::min(std::max(first_chunk, std::int64_t{1}), num_tokens - num_cached);
    auto most = blocks_of_state();
    for (auto start = num_cached; start + chunk <= num_tokens; ++start) {
      most = std::max(most, blocks_for(start + chunk, start));
    }
    return most;
  }
  /// The longest sequence, of at most so many tokens, for which so many blocks are enough, none of them released.
  [[nodiscard]] std::int64_t longest_in(std::int64_t num_blocks, std::int64_t most) const {
    auto length = std::int64_t{0};
    while (length < most && blocks_for(length + 1) <= num_blocks) {
      ++length;
    }
    return length;
  }
};

}  // namespace pagedkv::test
