#pragma once

#include <pagedkv/cache/operations/parts/unlaunched.hpp>
#include <pagedkv/cache/operations/parts/withdraw.hpp>

#include <cstddef>
#include <cstdint>

namespace pagedkv::detail {

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
