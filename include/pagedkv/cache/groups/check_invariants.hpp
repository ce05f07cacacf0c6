#pragma once

#include <pagedkv/cache/groups/group_state.hpp>
#include <pagedkv/cache/operations/check_invariants.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace pagedkv::detail {

/// Collects a sentence for each invariant that does not hold. Linear in the pool, the nodes and all block tables.
template <layered State>
class invariant_check<State> {
 public:
  explicit invariant_check(const State& state)
      : state_(state), references_(num_blocks()), attached_(num_blocks()), times_free_(num_blocks()) {}

  [[nodiscard]] std::vector<std::string> run() {
    state_.sequences.for_each([&](const auto& cell) { check_sequence(cell.record()); });
    state_.pins.for_each([&](const auto& cell) {
      std::ranges::for_each(cell.record().tables, [&](const group_table& table) { count_references(table.all()); });
    });
    state_.pool.for_each_free([&](block_id block) { ++times_free_[to_index(block)]; });
    state_.nodes.for_each([&](node_id node, std::uint32_t depth, std::uint32_t num) { check_node(node, depth, num); });
    auto counted = block_counts{};
    for (std::size_t i = 0; i < num_blocks(); ++i) {
      check_block(to_block(i), counted);
    }
    const auto kept = state_.pool.counts();
    expect(kept.free == counted.free, "the free list differs in size from the free blocks", kept.free);
    expect(kept.evictable == counted.evictable, "the count of evictable blocks is wrong", kept.evictable);
    expect(kept.retiring == counted.retiring, "the count of retiring blocks is wrong", kept.retiring);
    expect(state_.sequences.size() + state_.pins.size() > 0 || counted.in_use == 0,
           "blocks are in use without sequences or pins", counted.in_use);
    return std::move(broken_);
  }

 private:
  [[nodiscard]] std::size_t num_blocks() const noexcept { return static_cast<std::size_t>(state_.pool.size()); }

  void expect(bool holds, const char* sentence, std::int64_t which) {
    if (!holds) {
      broken_.push_back(std::string(sentence) + " (" + std::to_string(which) + ")");
    }
  }

  void count_references(std::span<const block_id> blocks) {
    for (const auto block : blocks) {
      expect(to_index(block) < num_blocks(), "a block table names a block outside the pool", std::int64_t(block));
      if (to_index(block) < num_blocks()) {
        ++references_[to_index(block)];
      }
    }
  }

  void check_sequence(const group_sequence& s) {
    s.for_each_run([&](std::span<const block_id> blocks) { count_references(blocks); });
    for (std::size_t g = 0; g < state_.num_groups(); ++g) {
      const auto& table = s.tables[g];
      if (!state_.holds_tokens(g)) {
        expect(table.all().size() == state_.blocks_of_state(g), "a sequence has no state of its own", s.num_tokens);
        continue;
      }
      expect(table.end() == std::max(state_.places_for(g, std::max(s.num_tokens, s.num_reserved)), table.first()),
             "a block table does not match its sequence's length", s.num_tokens);
      expect(table.first() <= std::max(state_.first_place(g, s.num_computed_tokens), table.num_sinks()),
             "a block was released that a window of the computed tokens needs", s.num_computed_tokens);
    }
    expect(0 <= s.num_computed_tokens && s.num_computed_tokens <= s.num_tokens,
           "a sequence has more computed tokens than tokens", s.num_computed_tokens);
    const auto num_published = static_cast<std::int64_t>(s.num_nodes) * state_.granularity();
    expect(num_published + static_cast<std::int64_t>(s.pending.size()) == s.num_tokens,
           "published and pending tokens are not the sequence's", s.num_tokens);
    expect(num_published <= s.num_computed_tokens, "tokens are published that are not committed", num_published);
    const auto no_nodes = s.tail.node == no_node;
    expect(no_nodes ? s.num_nodes == 0 : state_.nodes.depth(s.tail.node) + 1 == s.num_nodes,
           "a sequence's last node is at another depth", num_published);
  }

  void check_node(node_id node, std::uint32_t depth, std::uint32_t num_attached) {
    const auto name = static_cast<std::int64_t>(node);
    const auto above = state_.nodes.parent(node);
    expect(above == no_node ? depth == 0 : state_.nodes.depth(above) + 1 == depth, "a node's depth is wrong", name);
    const bool is_withdrawn = state_.nodes.is_withdrawn(node);
    expect(above == no_node || !state_.nodes.is_withdrawn(above) || is_withdrawn, "a node continues an invalidated one",
           name);
    expect(!is_withdrawn || num_attached == 0, "an invalidated node has blocks", name);
    auto num = std::uint32_t{0};
    for (std::size_t g = 0; g < state_.num_groups(); ++g) {
      for (auto block = state_.nodes.attached(node, g); block != no_block;) {
        ++attached_[to_index(block)];
        num += block == state_.nodes.attached(node, g);
        expect(state_.nodes.group_of(block) == g, "a block is attached for another group than its own", name);
        block = state_.holds_tokens(g) ? no_block : state_.nodes.next_of_state(block);
      }
    }
    expect(num == num_attached, "a node's number of blocks is wrong", name);
    auto reachable = above == no_node || state_.nodes.is_announced(above);
    for (std::size_t g = 0; g < state_.num_groups(); ++g) {
      reachable = reachable && (!state_.is_whole(g) || state_.nodes.holds_place(node, g));
    }
    expect(state_.nodes.is_announced(node) == reachable, "a node is announced wrongly", name);
    expect(state_.nodes.index().link_agrees(node), "a node's newest child is not its child", name);
  }

  void check_block(block_id block, block_counts& counted) {
    const auto seen = state_.pool.state(block);
    const auto name = static_cast<std::int64_t>(block);
    expect(seen.count() == references_[to_index(block)],
           "a reference count differs from the block-table entries and pins", name);
    expect(seen.leases() == 0 && (!seen.claimed() || seen.count() != 0), "a block is left claimed or leased", name);
    expect(!seen.claimed() || attached_[to_index(block)] == 0, "an invalidated block can still be found", name);
    expect(times_free_[to_index(block)] == (seen.word() == 0 ? 1U : 0U),
           "a free block is not in the free list once, or another is there", name);
    expect(state_.nodes.is_attached(block) == (attached_[to_index(block)] != 0),
           "a block and its nodes disagree on whether it is attached", name);
    expect(attached_[to_index(block)] == 0 || seen.published(), "a block is attached that is not published", name);
    expect(seen.count() != 0 || !seen.published() || attached_[to_index(block)] != 0,
           "a block waits for its eviction that no hit can find", name);
    if (seen.count() != 0) {
      ++counted.in_use;
    } else if (seen.step() != 0) {
      ++counted.retiring;
    } else {
      ++(seen.published() ? counted.evictable : counted.free);
    }
  }

  const State& state_;
  std::vector<std::uint32_t> references_;
  std::vector<std::uint32_t> attached_;
  std::vector<std::uint32_t> times_free_;
  std::vector<std::string> broken_;
};

}  // namespace pagedkv::detail
