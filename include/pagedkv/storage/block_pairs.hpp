#pragma once

#include <pagedkv/core/block_pair.hpp>
#include <pagedkv/core/result.hpp>
#include <pagedkv/storage/view.hpp>

#include <span>

namespace pagedkv {

/// Whether every source lies in `from`, and every destination in `to`. Errors: `invalid_argument`.
[[nodiscard]] inline result<void> check_pairs(const block_storage_view& from, const block_storage_view& to,
                                              std::span<const block_pair> pairs) noexcept {
  for (const auto& [source, destination] : pairs) {
    if (source < 0 || source >= from.num_blocks) {
      return detail::bad_index("source block", source, from.num_blocks);
    }
    if (destination < 0 || destination >= to.num_blocks) {
      return detail::bad_index("destination block", destination, to.num_blocks);
    }
  }
  return {};
}

[[nodiscard]] inline result<void> check_pairs(const block_storage_view& view,
                                              std::span<const block_pair> pairs) noexcept {
  return check_pairs(view, view, pairs);
}

}  // namespace pagedkv
