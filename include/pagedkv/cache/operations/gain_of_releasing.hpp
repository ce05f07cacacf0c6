#pragma once

#include <pagedkv/cache/operations/parts/leases.hpp>
#include <pagedkv/cache/outcomes.hpp>
#include <pagedkv/cache/record_access.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <new>
#include <span>
#include <tuple>
#include <vector>

namespace pagedkv::detail {

/// One reference to a block.
struct block_reference {
  block_id block{};
  sequence_id by{};
  std::size_t order = 0;  // of the sequence, among those asked for
  bool fenced = false;    // a step that uses the sequence is open

  friend bool operator<(const block_reference& a, const block_reference& b) noexcept {
    return std::tie(a.block, a.by, a.order) < std::tie(b.block, b.by, b.order);
  }
};

/// Adds the references of a sequence; nothing when it is gone or busy. Takes memory only outside of the sequence, so that
/// other threads find it busy for no longer than a copy takes.
template <class State>
void add_references(State& state, sequence_id id, std::size_t order, std::vector<block_reference>& references) {
  auto num_missing = std::size_t{0};
  do {
    references.reserve(std::max(references.size() + num_missing, num_missing == 0 ? 0 : 2 * references.capacity()));
    num_missing = 0;
    const auto copy = [&](const sequence& s) -> result<void> {
      const auto held = s.blocks.held();
      if (held.size() > references.capacity() - references.size()) {
        num_missing = held.size();
        return {};
      }
      const bool fenced = state.pool.fence_of(s.steps) != 0;
      std::ranges::for_each(held, [&](block_id block) { references.push_back({block, id, order, fenced}); });
      return {};
    };
    static_cast<void>(visit_record(state.sequences, static_cast<std::uint64_t>(id), copy));
  } while (num_missing != 0);
}

/// Blocks that a sequence of this prompt would share, ascending. As in `create_sequence`, the last token is left to compute.
template <class State>
[[nodiscard]] std::vector<block_id> find_shared(State& state, const token_run& prompt, salt tag) {
  const auto max_shared = prompt.tokens.empty() ? 0 : (prompt.tokens.size() - 1) / state.block_size();
  auto shared = std::vector<block_id>{};
  shared.reserve(max_shared);
  const auto leases = leases_of(state);
  match_chain(state.index, state.index.root(tag), prompt, state.block_size(), max_shared, leases, [&](block_id block) {
    shared.push_back(block);
    leases.end(block);
  });
  std::ranges::sort(shared);
  return shared;
}

/// Element i: what releasing the sequence `ids[i]` gains when all before it are released, too. A block is gained with
/// the last of its references. May throw `std::bad_alloc`.
template <class State>
[[nodiscard]] std::vector<release_gain> gains_in_order(State& state, std::span<const sequence_id> ids,
                                                       const token_run& prompt, salt tag) {
  auto gains = std::vector<release_gain>(ids.size());
  auto references = std::vector<block_reference>{};
  for (std::size_t i = 0; i < ids.size(); ++i) {
    add_references(state, ids[i], i, references);
  }
  std::sort(references.begin(), references.end());
  const auto twice = [](const block_reference& a, const block_reference& b) { return a.block == b.block && a.by == b.by; };
  references.erase(std::unique(references.begin(), references.end(), twice), references.end());

  const auto shared = find_shared(state, prompt, tag);
  for (auto run = references.begin(); run != references.end();) {
    const auto block = run->block;
    auto last = std::size_t{0};
    auto count = std::uint32_t{0};
    auto fenced = state.pool.fenced(block);
    for (; run != references.end() && run->block == block; ++run, ++count) {
      last = std::max(last, run->order);
      fenced |= run->fenced;
    }
    if (count == state.pool.state(block).count() && state.pool.could_be_released(block) &&
        !std::ranges::binary_search(shared, block)) {
      ++(fenced ? gains[last].with_steps : gains[last].at_once);
    }
  }
  return gains;
}

[[nodiscard]] inline error no_memory_for_gain(std::size_t num_sequences) noexcept {
  return {error_code::out_of_memory, "number of sequences to release", static_cast<std::int64_t>(num_sequences)};
}

template <class State>
[[nodiscard]] result<release_gain> gain_of_releasing(State& state, std::span<const sequence_id> ids,
                                                     const token_run& prompt, salt tag) noexcept {
  try {
    auto sum = release_gain{};
    for (const auto& [at_once, with_steps] : gains_in_order(state, ids, prompt, tag)) {
      sum.at_once += at_once;
      sum.with_steps += with_steps;
    }
    return sum;
  } catch (const std::bad_alloc&) {
    return no_memory_for_gain(ids.size());
  }
}

template <class State>
[[nodiscard]] result<std::size_t> fewest_to_release(State& state, std::span<const sequence_id> ids,
                                                    std::int64_t num_blocks, const token_run& prompt,
                                                    salt tag) noexcept {
  try {
    const auto gains = gains_in_order(state, ids, prompt, tag);
    for (std::size_t i = 0; i < gains.size(); ++i) {
      num_blocks -= gains[i].at_once + gains[i].with_steps;
      if (num_blocks <= 0) {
        return i + 1;
      }
    }
    return std::size_t{0};
  } catch (const std::bad_alloc&) {
    return no_memory_for_gain(ids.size());
  }
}

}  // namespace pagedkv::detail
