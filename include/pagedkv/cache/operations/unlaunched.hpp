#pragma once

#include <pagedkv/cache/index_model.hpp>
#include <pagedkv/cache/operations/release_blocks.hpp>
#include <pagedkv/core/ids.hpp>
#include <pagedkv/sequence/sequence.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

// Blocks that a sequence has published ahead of its launch, and how they are hidden from look-ups.

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

/// How many blocks at these nodes, in places that the sequence has dropped, others hold, or want. Nothing tells whether
/// it has written these itself. After an invalidation by others, each may be one that it wrote and another one holds.
template <class State>
[[nodiscard]] std::int64_t num_dropped_shared(const State&, const sequence&, std::span<const block_id>) noexcept {
  return 0;
}
template <layered State>
[[nodiscard]] std::int64_t num_dropped_shared(const State& state, const typename State::sequence_type& s,
                                              std::span<const block_id> wanted) noexcept {
  auto num_shared = std::int64_t{0};
  if (state.commits_only_publish() || !is_unlaunched(state, s)) {
    return num_shared;
  }
  auto node = s.tail.node;
  for (auto left = s.num_nodes; left > s.first_unlaunched; --left, node = state.nodes.parent(node)) {
    const bool invalidated = state.nodes.is_withdrawn(node) && !s.is_withdrawn;
    state.for_each_place(left - 1, [&](std::size_t g, std::size_t place) {
      if (!s.tables[g].is_held(place)) {
        const auto block = state.nodes.attached(node, g);
        num_shared += block == no_block ? invalidated
                                        : state.pool.state(block).count() != 0 ||
                                              std::ranges::binary_search(wanted, block);
      }
    });
  }
  return num_shared;
}

/// How many blocks of the sequence at these nodes others hold, or want: sorted ids. These need its launch. The caller
/// has the guard of the nodes.
template <class State>
[[nodiscard]] std::int64_t num_unlaunched_shared(const State& state, const auto& s,
                                                 std::span<const block_id> wanted = {}) noexcept {
  auto num_shared = num_dropped_shared(state, s, wanted);
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

/// Hides a published block, to which the caller has a reference, from look-ups that begin afterwards. The block is
/// freed with its last reference. False when it was hidden before: a lease may have kept it since.
template <class State>
bool withdraw(State& state, block_id block) noexcept {
  const bool first = state.pool.withdraw(block) && state.index.withdraw(block);
  if (first) {
    count<&cache_statistics::invalidations>(state.counts, 1);
    state.report_eviction(block);
  }
  return first;
}

/// Hides what a sequence has published ahead of a launch, of nodes from `first` on; returns how many blocks.
template <class State>
std::int64_t withdraw_unlaunched(State& state, const sequence& s, std::size_t first = 0) noexcept {
  auto count = std::int64_t{0};
  const auto hide = [&](block_id block) {
    count += state.pool.state(block).published() && withdraw(state, block) ? 1 : 0;
  };
  for_each_unlaunched(state, s, hide, first);
  return count;
}

}  // namespace pagedkv::detail
