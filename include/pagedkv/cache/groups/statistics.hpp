#pragma once

#include <pagedkv/cache/groups/group_state.hpp>
#include <pagedkv/cache/operations/statistics.hpp>
#include <pagedkv/cache/record_map.hpp>
#include <pagedkv/metrics/statistics.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

// Counts of a cache with several groups, and the invariants that its checker verifies.

namespace pagedkv::detail {

template <layered State>
[[nodiscard]] cache_statistics take_statistics(const State& state) {
  auto taken = cache_statistics{};
  {
    const auto guard = state.guard_nodes();
    taken.blocks = state.pool.counts();
    taken.peak_in_use = state.peak_in_use;
  }
  taken.num_sequences = state.sequences.size();
  taken.num_pins = state.pins.size();
  const auto add = [&](const group_sequence& s) -> result<void> {
    taken.num_tokens += s.num_tokens;
    for (std::size_t g = 0; g < state.num_groups(); ++g) {
      if (state.holds_tokens(g)) {
        const auto room = static_cast<std::int64_t>(s.tables[g].end()) * state.block_size(g);
        taken.unfilled_slots += std::max(room - s.num_tokens, std::int64_t{0});
      }
    }
    return {};
  };
  state.sequences.for_each([&](const auto& open) {
    static_cast<void>(visit_sequence(state, sequence_id{state.sequences.id_of(open)}, add));  // unless it has ended
  });
  state.counts.write_to(taken);
  taken.contention = state.pool.contention();
  taken.contention += state.sequences.contention();
  taken.contention += state.pins.contention();
  taken.contention += state.contention();
  return taken;
}

/// Collects a sentence for each invariant that does not hold. Linear in the pool, the nodes and all block tables.
template <layered State>
class invariant_check<State> : pool_check<State> {
  using base = pool_check<State>;
  using base::expect;
  using base::num_blocks;
  using base::state_;

 public:
  explicit invariant_check(const State& state) : base(state), attached_(num_blocks()) {}

  [[nodiscard]] std::vector<std::string> run() {
    state_.sequences.for_each([&](const auto& cell) { check_sequence(cell.record()); });
    state_.pins.for_each([&](const auto& cell) {
      std::ranges::for_each(cell.record().tables,
                            [&](const group_table& table) { this->count_references(table.all()); });
    });
    state_.nodes.for_each([&](node_id node) { check_node(node); });
    this->check_blocks([&](block_id block, block_state state) { check_block(block, state); });
    return std::move(base::broken_);
  }

 private:
  void check_sequence(const group_sequence& s) {
    s.for_each_run([&](std::span<const block_id> blocks) { this->count_references(blocks); });
    this->check_lengths(s);
    for (std::size_t g = 0; g < state_.num_groups(); ++g) {
      const auto& table = s.tables[g];
      if (!state_.holds_tokens(g)) {
        expect(table.all().size() == state_.blocks_of_state(g), "a sequence has no state of its own", s.num_tokens);
        continue;
      }
      expect(table.end() == std::max(state_.places_for(g, std::max(s.num_tokens, s.num_reserved)), table.first()),
             "a block table does not match its sequence's length", s.num_tokens);
      const auto num_read = std::max(s.num_computed_tokens, s.num_elsewhere);
      expect(s.is_withdrawn || table.first() <= std::max(state_.first_place(g, num_read), table.num_sinks()),
             "a block was released that a window of the computed tokens needs", s.num_computed_tokens);
    }
    const auto num_published = static_cast<std::int64_t>(s.num_nodes) * state_.granularity();
    expect(s.has_room() ? s.hot.next_token == s.pending.from(state_.num_pending(s)).data() : true,
           "an append would write elsewhere than behind the pending tokens", s.num_tokens);
    expect(s.is_withdrawn || num_published <= s.num_computed_tokens, "tokens are published that are not committed",
           num_published);
    const auto no_nodes = s.tail.node == no_node;
    expect(no_nodes ? s.num_nodes == 0 : state_.nodes.depth(s.tail.node) + 1 == s.num_nodes,
           "a sequence's last node is at another depth", num_published);
  }

  void check_node(node_id node) {
    const auto name = static_cast<std::int64_t>(node);
    const auto above = state_.nodes.parent(node);
    const auto depth = state_.nodes.depth(node);
    expect(above == no_node ? depth == 0 : state_.nodes.depth(above) + 1 == depth, "a node's depth is wrong", name);
    expect(state_.nodes.is_needed(node), "a node stays that nothing needs", name);
    const bool is_withdrawn = state_.nodes.is_withdrawn(node);
    expect(above == no_node || !state_.nodes.is_withdrawn(above) || is_withdrawn, "a node continues an invalidated one",
           name);
    auto has_blocks = false;
    for (std::size_t g = 0; g < state_.num_groups(); ++g) {
      for (auto block = state_.nodes.attached(node, g); block != no_block;) {
        has_blocks = true;
        ++attached_[to_index(block)];
        expect(!is_withdrawn, "an invalidated node has blocks", name);
        expect(state_.nodes.group_of(block) == g, "a block is attached for another group than its own", name);
        block = state_.holds_tokens(g) ? no_block : state_.nodes.next_of_state(block);
      }
    }
    expect(state_.nodes.is_announced(node) == (state_.has_whole() ? state_.is_reachable(node)
                                                                  : has_blocks || state_.nodes.is_announced_behind(node)),
           "a node is announced wrongly", name);
    expect(state_.nodes.index().link_agrees(node), "a node's newest child is not its child", name);
  }

  void check_block(block_id block, block_state seen) {
    const auto name = static_cast<std::int64_t>(block);
    const auto num_nodes = attached_[to_index(block)];
    expect(!seen.claimed() || num_nodes == 0, "an invalidated block can still be found", name);
    expect(state_.nodes.is_attached(block) == (num_nodes != 0),
           "a block and its nodes disagree on whether it is attached", name);
    expect(num_nodes == 0 || seen.published(), "a block is attached that is not published", name);
    expect(seen.count() != 0 || !seen.published() || num_nodes != 0,
           "a block waits for its eviction that no hit can find", name);
  }

  std::vector<std::uint32_t> attached_;  // nodes of each block
};

}  // namespace pagedkv::detail
