#pragma once

#include <pagedkv/cache/groups/group_state.hpp>
#include <pagedkv/cache/index_model.hpp>
#include <pagedkv/detail/with_memory.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace pagedkv::detail {

/// Room for hashes that a caller tells, so that keeping them does not allocate. False when memory is exhausted.
[[nodiscard]] inline bool reserve_hashes(group_sequence& s, std::span<const std::uint64_t> hashes) noexcept {
  const auto reserve = [&] {
    if (hashes.size() > s.hashes.capacity()) {
      s.hashes.reserve(std::max(hashes.size(), 2 * s.hashes.capacity()));
    }
    return true;
  };
  return with_memory(reserve, false);
}

/// Keeps the hashes that a caller told of runs which are full now, until they are published.
template <layered State>
void note_hashes(const State& state, group_sequence& s, std::span<const std::uint64_t> hashes) noexcept {
  const auto num_full = static_cast<std::size_t>(s.num_tokens / state.granularity());
  for (auto i = s.num_nodes + s.hashes.size(); i < std::min(num_full, hashes.size()); ++i) {
    s.hashes.push_back(hashes[i]);
  }
}

}  // namespace pagedkv::detail
