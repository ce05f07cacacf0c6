#pragma once

#include <pagedkv/cache/operations/unlaunched.hpp>
#include <pagedkv/cache/outcomes.hpp>
#include <pagedkv/cache/record_map.hpp>
#include <pagedkv/core/config.hpp>
#include <pagedkv/detail/memory.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

// Which sequences to release so that blocks become available.

namespace pagedkv::detail {

/// One reference to a block.
struct block_reference {
  block_id block{};
  std::size_t order = 0;  // of the sequence, among those asked for
  bool fenced = false;    // a step that uses the sequence is open

  friend bool operator<(const block_reference& a, const block_reference& b) noexcept {
    return a.block != b.block ? a.block < b.block : a.order < b.order;
  }
};

/// Adds the references of a sequence; nothing when it is gone or busy, or when others need its launch: another
/// sequence, or the beneficiary, which would share these sorted blocks. Takes memory only outside of the sequence, so
/// that other threads find it busy for no longer than a copy takes.
template <class State>
void add_references(const State& state, sequence_id id, std::size_t order, std::span<const block_id> shared,
                    std::vector<block_reference>& references) {
  auto num_missing = std::size_t{0};
  do {
    references.reserve(std::max(references.size() + num_missing, num_missing == 0 ? 0 : 2 * references.capacity()));
    num_missing = 0;
    const auto copy = [&](const auto& s) -> result<void> {
      if (const auto guard = state.guard_nodes(); num_unlaunched_shared(state, s, shared) != 0) {
        return {};
      }
      auto num_held = std::size_t{0};
      s.for_each_run([&](std::span<const block_id> held) { num_held += held.size(); });
      if (num_held > references.capacity() - references.size()) {
        num_missing = num_held;
        return {};
      }
      const bool fenced = state.pool.fence_of(s.steps) != 0;
      s.for_each_run([&](std::span<const block_id> held) {
        for (const auto block : held) {
          references.push_back({block, order, fenced});
        }
      });
      return {};
    };
    static_cast<void>(visit_sequence(state, id, copy));
  } while (num_missing != 0);
}

/// A block that releasing sequences gains: its references, a range of `released_blocks::references`.
struct gained_block {
  std::size_t first = 0;
  std::size_t end = 0;
  std::size_t last_order = 0;  // of the sequences that hold it, the last one asked for
  bool fenced = false;         // gained only when open steps have retired
};

/// References that the release of sequences ends, by block, and the blocks that it gains.
struct released_blocks {
  std::vector<block_reference> references;
  std::vector<gained_block> gained;
};

/// The positions of the ids that no earlier one equals. May throw `std::bad_alloc`.
[[nodiscard]] inline std::vector<std::size_t> first_of_equal(std::span<const sequence_id> ids) {
  auto positions = std::vector<std::size_t>(ids.size());
  std::iota(positions.begin(), positions.end(), std::size_t{0});
  if (ids.size() > 1) {
    std::sort(positions.begin(), positions.end(), [&](std::size_t a, std::size_t b) {
      return ids[a] != ids[b] ? ids[a] < ids[b] : a < b;
    });
    const auto equal = [&](std::size_t a, std::size_t b) { return ids[a] == ids[b]; };
    positions.erase(std::unique(positions.begin(), positions.end(), equal), positions.end());
  }
  return positions;
}

/// Blocks that an append to the beneficiary, if there is one, would copy only because others hold them, too:
/// `visit_ends(sequence, visit)` calls `visit(block)` on each. May throw `std::bad_alloc`.
template <class State, class VisitEnds>
[[nodiscard]] std::vector<block_id> shared_ends(const State& state, sequence_id beneficiary, VisitEnds&& visit_ends) {
  auto blocks = std::vector<block_id>{};
  if (beneficiary != sequence_id{}) {
    blocks.reserve(group_list::max_size);
    static_cast<void>(visit_sequence(state, beneficiary, [&](const auto& s) -> result<void> {
      const auto guard = state.guard_nodes();
      visit_ends(s, [&](block_id block) { blocks.push_back(block); });
      return {};
    }));
  }
  return blocks;
}

/// Blocks that the release of all these sequences gains, because no other sequence and no pin holds them, and they are
/// not `shared`; and those of `ends` that then only the beneficiary holds, which so needs no copy. Only references of
/// blocks with several are sorted. May throw `std::bad_alloc`.
template <class State>
[[nodiscard]] released_blocks blocks_gained(const State& state, std::span<const sequence_id> ids,
                                            std::vector<block_id> shared, std::span<const block_id> ends = {}) {
  auto released = released_blocks{};
  auto& references = released.references;
  std::sort(shared.begin(), shared.end());
  for (const auto i : first_of_equal(ids)) {
    add_references(state, ids[i], i, shared, references);
  }
  released.gained.reserve(references.size());
  const auto add_if_gained = [&](const gained_block& run) {
    const auto block = references[run.first].block;
    if (state.pool.could_be_released(block) && !std::binary_search(shared.begin(), shared.end(), block)) {
      released.gained.push_back(run);
      released.gained.back().fenced |= state.pool.fenced(block);
    }
  };
  const auto several = std::partition(references.begin(), references.end(), [&](const block_reference& reference) {
    return state.pool.state(reference.block).count() == 1;
  });
  const auto num_single = static_cast<std::size_t>(several - references.begin());
  for (std::size_t i = 0; i < num_single; ++i) {
    add_if_gained({i, i + 1, references[i].order, references[i].fenced});
  }
  std::sort(several, references.end());
  for (auto next = num_single; next < references.size();) {
    const auto block = references[next].block;
    auto run = gained_block{next, next, 0, false};
    for (; run.end < references.size() && references[run.end].block == block; ++run.end) {
      run.last_order = std::max(run.last_order, references[run.end].order);
      run.fenced |= references[run.end].fenced;
    }
    next = run.end;
    const auto num_held = std::size_t{state.pool.state(block).count()};
    if (run.end - run.first == num_held) {
      add_if_gained(run);
    } else if (run.end - run.first + 1 == num_held && std::ranges::find(ends, block) != ends.end()) {
      released.gained.push_back({run.first, run.end, run.last_order, false});
    }
  }
  return released;
}

/// How many of the sequences, from the first on, have to be released to gain so many blocks; 0 when all are not enough,
/// and for no blocks.
[[nodiscard]] inline std::size_t fewest_in_order(const released_blocks& released, std::size_t num_sequences,
                                                 std::int64_t num_blocks) {
  if (num_blocks <= 0) {
    return 0;
  }
  auto gains = std::vector<std::size_t>(num_sequences);  // a block is gained with the last of its references
  for (const auto& block : released.gained) {
    ++gains[block.last_order];
  }
  for (std::size_t i = 0; i < gains.size(); ++i) {
    num_blocks -= static_cast<std::int64_t>(gains[i]);
    if (num_blocks <= 0) {
      return i + 1;
    }
  }
  return 0;
}

/// Which of the first `count` sequences hold a block that releasing these gains.
[[nodiscard]] inline std::vector<std::size_t> useful_among(const released_blocks& released, std::size_t count) {
  auto useful = std::vector<std::size_t>(count);
  for (const auto& block : released.gained) {
    if (block.last_order < count) {
      for (auto i = block.first; i < block.end; ++i) {
        useful[released.references[i].order] = 1;
      }
    }
  }
  auto num_chosen = std::size_t{0};
  for (std::size_t i = 0; i < count; ++i) {
    if (useful[i] != 0) {
      useful[num_chosen++] = i;
    }
  }
  useful.resize(num_chosen);
  return useful;
}

[[nodiscard]] inline error no_memory_for_gain(std::size_t num_sequences) noexcept {
  return {error_code::out_of_memory, "number of sequences to release", static_cast<std::int64_t>(num_sequences)};
}

/// `find_shared()`: blocks that a sequence of the beneficiary's prompt would share. May throw `std::bad_alloc`.
template <class State, class FindShared>
[[nodiscard]] result<release_gain> gain_of_releasing(const State& state, std::span<const sequence_id> ids,
                                                     FindShared&& find_shared) noexcept {
  const auto add_up = [&]() -> result<release_gain> {
    auto sum = release_gain{};
    for (const auto& block : blocks_gained(state, ids, find_shared()).gained) {
      ++(block.fenced ? sum.with_steps : sum.at_once);
    }
    return sum;
  };
  return with_memory(add_up, no_memory_for_gain(ids.size()));
}

/// `visit_ends`: see `shared_ends`.
template <class State, class FindShared, class VisitEnds>
[[nodiscard]] result<std::vector<std::size_t>> fewest_to_release(const State& state, std::span<const sequence_id> ids,
                                                                 std::int64_t num_blocks, FindShared&& find_shared,
                                                                 sequence_id beneficiary,
                                                                 VisitEnds&& visit_ends) noexcept {
  const auto choose = [&]() -> result<std::vector<std::size_t>> {
    const auto released = blocks_gained(state, ids, find_shared(), shared_ends(state, beneficiary, visit_ends));
    return useful_among(released, fewest_in_order(released, ids.size(), num_blocks));
  };
  return with_memory(choose, no_memory_for_gain(ids.size()));
}

}  // namespace pagedkv::detail
