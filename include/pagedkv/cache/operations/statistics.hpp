#pragma once

#include <pagedkv/cache/cache_state.hpp>
#include <pagedkv/metrics/statistics.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

// A cache's counts, and the invariants that its checker verifies.

namespace pagedkv::detail {

template <class State>
[[nodiscard]] cache_statistics take_statistics(const State& state) {
  auto taken = cache_statistics{};
  taken.blocks = state.pool.counts();
  taken.peak_in_use = std::max(state.peak_in_use.load(std::memory_order_relaxed), taken.blocks.in_use);
  taken.num_sequences = state.sequences.size();
  taken.num_pins = state.pins.size();
  state.sequences.for_each_usage([&](const table_usage& used) {
    taken.num_tokens += used.num_tokens;
    taken.unfilled_slots += used.num_blocks * state.config.block_size - used.num_tokens;
  });
  state.counts.write_to(taken);
  taken.contention = state.pool.contention();
  taken.contention += state.sequences.contention();
  taken.contention += state.pins.contention();
  return taken;
}

/// Without payload.
template <class State>
[[nodiscard]] memory_profile profile_metadata(const State& state) {
  auto profile = memory_profile{};
  profile.pool = static_cast<std::int64_t>(state.pool.metadata_bytes());
  profile.index = static_cast<std::int64_t>(state.index_bytes());
  profile.sequences = static_cast<std::int64_t>(state.sequences.metadata_bytes() + state.pins.metadata_bytes());
  const auto add_table = [&](const table_usage& used) { profile.sequences += used.bytes; };
  state.sequences.for_each_usage(add_table);
  state.pins.for_each_usage(add_table);
  return profile;
}

/// The part that both index models check: references, states and counts of blocks.
template <class State>
class pool_check {
 protected:
  explicit pool_check(const State& state) : state_(state), references_(num_blocks()), times_free_(num_blocks()) {
    state_.pool.for_each_free([&](block_id block) {
      expect(to_index(block) < num_blocks(), "the free list has a block outside the pool", std::int64_t(block));
      if (to_index(block) < num_blocks()) {
        ++times_free_[to_index(block)];
      }
    });
  }

  [[nodiscard]] std::size_t num_blocks() const noexcept { return static_cast<std::size_t>(state_.config.capacity()); }

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

  void check_lengths(const sequence_record& s) {
    expect(0 <= s.num_computed_tokens && s.num_computed_tokens <= s.num_tokens,
           "a sequence has more computed tokens than tokens", s.num_computed_tokens);
  }

  /// When all references are counted. Calls `check(block, state)` on each block of the pool.
  template <class Check>
  void check_blocks(Check&& check) {
    auto counted = block_counts{};
    for (std::size_t i = 0; i < num_blocks(); ++i) {
      const auto state = state_.pool.state(to_block(i));
      if (i < static_cast<std::size_t>(state_.pool.size())) {
        check_block(to_block(i), state, counted);
        check(to_block(i), state);
      } else {
        expect(state.word() == block_state::outside().word() && references_[i] == 0 && times_free_[i] == 0,
               "a block outside the pool has a state, a holder or a place in the free list",
               static_cast<std::int64_t>(i));
      }
    }
    check_counts(counted);
  }

  const State& state_;
  std::vector<std::uint32_t> references_;
  std::vector<std::uint32_t> times_free_;
  std::vector<std::string> broken_;

 private:
  void check_block(block_id block, block_state state, block_counts& counted) {
    const auto name = static_cast<std::int64_t>(block);
    expect(state.count() == references_[to_index(block)],
           "a reference count differs from the block-table entries and pins", name);
    expect(!state.claimed() || state.count() > 0, "a block is left claimed by an evictor", name);
    expect(state.leases() == 0, "a lease on a block has not ended", name);
    expect(times_free_[to_index(block)] == (state.word() == 0 ? 1U : 0U),
           "a free block is not in the free list once, or another is there", name);
    if (state.count() != 0) {
      ++counted.in_use;
    } else if (state.step() != 0) {
      ++counted.retiring;
    } else {
      ++(state.published() ? counted.evictable : counted.free);
    }
  }

  void check_counts(const block_counts& counted) {
    const auto kept = state_.pool.counts();
    expect(kept.free == counted.free, "the free list differs in size from the free blocks", kept.free);
    expect(kept.free + kept.in_use + kept.evictable + kept.retiring == state_.pool.size(),
           "the blocks of all states do not add up to the pool", state_.pool.size());
    expect(kept.evictable == counted.evictable, "the count of evictable blocks is wrong", kept.evictable);
    expect(kept.retiring == counted.retiring, "the count of retiring blocks is wrong", kept.retiring);
    expect(state_.pool.step_in_flight() || counted.retiring == 0, "blocks are retiring with no step in flight",
           counted.retiring);
    expect(state_.sequences.size() + state_.pins.size() > 0 || counted.in_use == 0,
           "blocks are in use without sequences or pins", counted.in_use);
  }
};

/// Collects a sentence for each invariant that does not hold. Linear in the pool and in all block tables.
template <class State>
class invariant_check : pool_check<State> {
  using base = pool_check<State>;
  using base::expect;
  using base::num_blocks;
  using base::state_;

 public:
  explicit invariant_check(const State& state) : base(state), children_(num_blocks()) {}

  [[nodiscard]] std::vector<std::string> run() {
    state_.sequences.for_each([&](const auto& cell) { check_sequence(cell.record()); });
    state_.pins.for_each([&](const auto& cell) { this->count_references(cell.record().blocks.held()); });
    count_children();
    this->check_blocks([&](block_id block, block_state state) { check_block(block, state); });
    return std::move(base::broken_);
  }

 private:
  void check_sequence(const sequence& s) {
    this->count_references(s.blocks.held());
    this->check_lengths(s);
    expect(s.blocks.size() == state_.blocks_for(std::max(s.num_tokens, s.num_reserved)),
           "a block table does not match its sequence's length", s.num_tokens);
    const auto num_full = static_cast<std::size_t>(s.num_computed_tokens) / state_.block_size();
    expect(s.num_published_blocks == num_full || s.is_withdrawn ||
               (!s.options.publish && s.num_published_blocks < num_full),
           "a sequence's full committed blocks are not all published", static_cast<std::int64_t>(num_full));
    check_chain(s);
    if (s.has_room()) {
      const auto block = s.blocks[static_cast<std::size_t>(s.num_tokens) / state_.block_size()];
      expect(state_.pool.writable(block), "a sequence may append to a block that others can see",
             std::int64_t(block));
    }
  }

  /// Published blocks hang together, and what is published next will hang on the last of them.
  void check_chain(const sequence& s) {
    auto before = s.window_start;
    for (auto i = s.blocks.num_dropped(); i < s.num_published_blocks; ++i) {
      const auto block = s.blocks[i];
      expect(state_.pool.state(block).published(), "a committed full block is not published", std::int64_t(block));
      expect(state_.index.continues(block, before), "a block hangs under another than the one before it",
             std::int64_t(block));
      before = state_.index.link(block);
    }
    expect(s.tail == before, "a sequence's next block would hang under another than its last", s.num_computed_tokens);
  }

  void count_children() {
    for (std::size_t i = 0; i < num_blocks(); ++i) {
      const auto block = to_block(i);
      if (state_.pool.state(block).published()) {
        const auto parent = state_.index.parent(block);
        if (parent != no_block) {
          ++children_[to_index(parent)];
        }
      }
    }
  }

  void check_block(block_id block, block_state state) {
    const auto name = static_cast<std::int64_t>(block);
    if (state.published()) {
      const auto withdrawn = state_.index.withdrawn(block);
      expect(withdrawn || !state.claimed(), "a withdrawn block can still be found", name);
      expect(state_.index.reaches(block) != withdrawn, "a published block is missing from the prefix index", name);
      expect(state_.index.contents_agree(block), "a published block's tokens have changed", name);
    }
    expect(state_.index.num_children(block) == children_[to_index(block)], "a block's count of children is wrong",
           name);
    if constexpr (std::remove_cvref_t<decltype(state_.index)>::links_are_exact) {
      expect(state_.index.link_agrees(block), "a block's newest child is not its child", name);
    }
  }

  std::vector<std::uint32_t> children_;
};

}  // namespace pagedkv::detail
