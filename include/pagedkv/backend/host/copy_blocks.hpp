#pragma once

#include <pagedkv/core/error.hpp>
#include <pagedkv/core/view.hpp>

#include <cstdint>
#include <cstring>
#include <span>

namespace pagedkv::host {

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

/// Copies one block in every layer, scales and padding along. The two are different blocks.
inline void copy_block(const block_storage_view& view, block_pair pair) noexcept {
  const auto bytes = static_cast<std::size_t>(view.layer_bytes());
  for (auto layer = std::int32_t{0}; layer < view.num_layers; ++layer) {
    std::memcpy(view.block(layer, pair.destination), view.block(layer, pair.source), bytes);
  }
}

/// Copies blocks in every layer; no destination is also a source. Errors: `invalid_argument` for a block outside the
/// storage, before anything is written.
[[nodiscard]] inline result<void> copy_blocks(const block_storage_view& view,
                                              std::span<const block_pair> pairs) noexcept {
  if (const auto checked = check_pairs(view, pairs); !checked) {
    return checked;
  }
  for (const auto pair : pairs) {
    copy_block(view, pair);
  }
  return {};
}

}  // namespace pagedkv::host
