#pragma once

#include <pagedkv/core/block_pair.hpp>
#include <pagedkv/host/stream_bytes.hpp>
#include <pagedkv/storage/block_pairs.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace pagedkv::host {

/// Copies one block in every layer, with scales and padding. The two are different blocks.
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

/// Copies between two storages, of the same element and inner layout. `read_soon`: whether the copies are; others do not
/// pass through the processor's caches, unless they are few. Errors: `invalid_argument` for blocks or storages that do
/// not fit, before anything is written.
[[nodiscard]] inline result<void> copy_blocks(const block_storage_view& from, const block_storage_view& to,
                                              std::span<const block_pair> pairs, bool read_soon = true) noexcept {
  if (from.layer_bytes() != to.layer_bytes() || from.num_layers != to.num_layers) {
    return error{error_code::invalid_argument, "bytes of a block of the destination, which are not the source's,",
                 to.layer_bytes() * to.num_layers, from.layer_bytes() * from.num_layers};
  }
  if (const auto checked = check_pairs(from, to, pairs); !checked) {
    return checked;
  }
  constexpr auto num_ahead = std::size_t{4};
  constexpr auto few_bytes = std::size_t{32} << 10;  // below, to wait for the last stores takes longer
  const auto bytes = static_cast<std::size_t>(from.layer_bytes());
  const auto streams = !read_soon && pairs.size() * bytes * static_cast<std::size_t>(from.num_layers) >= few_bytes;
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    const auto& [source, destination] = pairs[i];
    for (auto layer = std::int32_t{0}; layer < from.num_layers; ++layer) {
      if (i + num_ahead < pairs.size()) {
        detail::prefetch_bytes(from.block(layer, pairs[i + num_ahead].source), bytes);
      }
      if (streams) {
        detail::stream_bytes(to.block(layer, destination), from.block(layer, source), bytes);
      } else {
        std::memcpy(to.block(layer, destination), from.block(layer, source), bytes);
      }
    }
  }
  if (streams) {
    detail::finish_streaming();
  }
  return {};
}

}  // namespace pagedkv::host
