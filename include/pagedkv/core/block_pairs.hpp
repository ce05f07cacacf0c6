#pragma once

#include <pagedkv/core/error.hpp>
#include <pagedkv/core/view.hpp>

#include <cstdint>
#include <span>

namespace pagedkv {

/// Whether both blocks of every pair lie in the storage.
[[nodiscard]] inline result<void> check_pairs(const block_storage_view& view,
                                              std::span<const block_pair> pairs) noexcept {
  for (const auto& [source, destination] : pairs) {
    if (source < 0 || source >= view.num_blocks) {
      return error{error_code::invalid_argument, "source block", source, view.num_blocks};
    }
    if (destination < 0 || destination >= view.num_blocks) {
      return error{error_code::invalid_argument, "destination block", destination, view.num_blocks};
    }
  }
  return {};
}

}  // namespace pagedkv
