#pragma once

#include <pagedkv/core/ids.hpp>
#include <pagedkv/policy/backend/concept.hpp>
#include <pagedkv/policy/locking/parts/guards.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace pagedkv::detail {

/// Whether every slot is of a block that is in use or retiring. (Published and shared ones may be written, too, since
/// commit may come before the kernels.) Slots outside the storage are for the backend to refuse, and those that the
/// host cannot read pass.
template <class Backend, class State, class Mutex>
[[nodiscard]] bool slots_in_use(const State& state, Mutex& mutex, std::span<const slot> slots,
                                std::int32_t block_size) noexcept {
  if constexpr (reads_on_host<Backend>) {
    const auto guard = shared_guard{mutex};
    const auto nodes = state.guard_nodes();
    return std::ranges::all_of(slots, [&](slot s) {
      const auto position = static_cast<std::int64_t>(s);
      const auto block = position / block_size;
      if (position < 0 || block >= state.pool.size()) {
        return true;
      }
      const auto found = state.pool.state(to_block(static_cast<std::size_t>(block)));
      return found.count() > 0 || found.retiring();
    });
  }
  return true;
}

}  // namespace pagedkv::detail
