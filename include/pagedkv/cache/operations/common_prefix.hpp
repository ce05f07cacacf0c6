#pragma once

#include <pagedkv/cache/operations/parts/check_group.hpp>
#include <pagedkv/cache/record_access.hpp>
#include <pagedkv/detail/copy_run.hpp>
#include <pagedkv/sequence/sequence.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace pagedkv::detail {

/// Full blocks of a sequence from `first` on, without those that it has dropped and what is behind them.
[[nodiscard]] inline std::span<const block_id> full_blocks(const sequence& s, std::size_t first,
                                                           std::size_t block_size) noexcept {
  const auto num_full = s.blocks.num_dropped() != 0 ? 0 : static_cast<std::size_t>(s.num_tokens) / block_size;
  return s.blocks.all().first(num_full).subspan(std::min(first, num_full));
}

/// How many full blocks all sequences have in common at their start; `full_from(s, first)` are those of one. Compares a
/// run of the first one's table at a time, so that no two sequences are entered at once. O(common blocks times
/// sequences).
template <class State, class FullFrom>
[[nodiscard]] result<std::int64_t> common_prefix(const State& state, std::span<const sequence_id> ids,
                                                 FullFrom&& full_from) noexcept {
  auto run = std::array<block_id, 256>{};
  auto num_common = std::size_t{0};
  for (auto size = ids.empty() ? std::size_t{0} : run.size(); size == run.size(); num_common += size) {
    const auto copied = visit_sequence(state, ids[0], [&](const auto& s) -> result<void> {
      const std::span<const block_id> blocks = full_from(s, num_common);
      size = std::min(size, blocks.size());
      copy_run(blocks.first(size), std::span<block_id>{run});
      return {};
    });
    if (!copied) {
      return copied.error();
    }
    for (const auto id : ids.subspan(1)) {
      const auto compared = visit_sequence(state, id, [&](const auto& s) -> result<void> {
        const std::span<const block_id> blocks = full_from(s, num_common);
        const auto end = run.begin() + static_cast<std::ptrdiff_t>(size);
        const auto parted = std::mismatch(run.begin(), end, blocks.begin(), blocks.end());
        size = static_cast<std::size_t>(parted.first - run.begin());
        return {};
      });
      if (!compared) {
        return compared.error();
      }
    }
  }
  return static_cast<std::int64_t>(num_common);
}

template <class State>
[[nodiscard]] result<std::int64_t> common_prefix(const State& state, std::span<const sequence_id> ids,
                                                 std::size_t group) noexcept {
  if (const auto checked = check_group(state, group); !checked) {
    return checked.error();
  }
  return common_prefix(state, ids, [&](const sequence& s, std::size_t first) {
    return full_blocks(s, first, state.block_size());
  });
}

}  // namespace pagedkv::detail
