#pragma once

#include <pagedkv/cache/index_model.hpp>
#include <pagedkv/core/ids.hpp>
#include <pagedkv/sequence/sequence.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace pagedkv::detail {

/// Notes that look-ups or a fork are about to share more of a sequence, or that one which publishes nothing has full
/// blocks: perhaps ahead of the launch of the newest step, if that is open.
template <class State>
void note_unlaunched(const State& state, sequence_record& s) noexcept {
  const auto newest = state.pool.newest_open_step();
  const auto num_full = static_cast<std::size_t>(s.num_computed_tokens) / state.tokens_per_node();
  const auto first = s.options.publish ? s.hot.num_published : num_full;
  s.first_unlaunched = s.unlaunched_step == newest ? std::min(s.first_unlaunched, first) : first;
  s.unlaunched_step = newest;
}

/// Whether a launch may still have to write K/V of a sequence's nodes from `first_unlaunched` on.
template <class State>
[[nodiscard]] bool is_unlaunched(const State& state, const sequence_record& s) noexcept {
  return s.unlaunched_step != step_id{} && s.unlaunched_step == state.pool.newest_open_step();
}

/// Calls `visit(block)` on the blocks that the sequence holds of these nodes and behind them; of nodes from `first` on.
template <class State>
void for_each_unlaunched(const State& state, const sequence& s, auto&& visit, std::size_t first = 0) noexcept {
  if (is_unlaunched(state, s)) {
    for (auto i = std::max({s.first_unlaunched, first, s.blocks.num_dropped()}); i < s.blocks.size(); ++i) {
      visit(s.blocks[i]);
    }
  }
}
template <layered State>
void for_each_unlaunched(const State& state, const typename State::sequence_type& s, auto&& visit) noexcept {
  if (is_unlaunched(state, s)) {
    state.for_each_place(s.first_unlaunched, [&](std::size_t g, std::size_t first) {
      s.tables[g].for_each_from(first, [&](block_id block, std::size_t, block_id) { visit(block); });
    });
  }
}

/// How many of them others hold, or want: sorted ids. These need the sequence's launch.
template <class State>
[[nodiscard]] std::int64_t num_unlaunched_shared(const State& state, const auto& s,
                                                 std::span<const block_id> wanted = {}) noexcept {
  auto num_shared = std::int64_t{0};
  for_each_unlaunched(state, s, [&](block_id block) {
    num_shared += state.pool.state(block).count() > 1 || std::ranges::binary_search(wanted, block);
  });
  return num_shared;
}
/// How many of them look-ups have a lease on: others may be about to hold these.
template <class State>
[[nodiscard]] std::int64_t num_unlaunched_leased(const State& state, const auto& s) noexcept {
  auto num_leased = std::int64_t{0};
  for_each_unlaunched(state, s, [&](block_id block) { num_leased += state.pool.state(block).leases() != 0; });
  return num_leased;
}

}  // namespace pagedkv::detail
