#pragma once

#include <pagedkv/core/block_pair.hpp>
#include <pagedkv/detail/with_memory.hpp>
#include <pagedkv/host/copy_blocks.hpp>
#include <pagedkv/storage/move_order.hpp>

#include <algorithm>

namespace pagedkv::host {

/// Exchanges two blocks in every layer.
inline void swap_block(const block_storage_view& view, block_pair pair) noexcept {
  for (auto layer = std::int32_t{0}; layer < view.num_layers; ++layer) {
    auto* const source = view.block(layer, pair.source);
    std::swap_ranges(source, source + view.layer_bytes(), view.block(layer, pair.destination));
  }
}

/// Copies blocks in every layer as if all sources were read first; chains and cycles are allowed and need no second
/// buffer. Errors, before anything is written: `invalid_argument` for a block outside the storage or the destination of
/// two moves; `out_of_memory` for the working memory, which is proportional to the moves.
[[nodiscard]] inline result<void> move_blocks(const block_storage_view& view,
                                              std::span<const block_pair> pairs) noexcept {
  if (const auto checked = check_pairs(view, pairs); !checked) {
    return checked;
  }
  const auto move = [&]() -> result<void> {
    auto order = move_order{pairs};
    if (const auto twice = order.ambiguous_destination()) {
      return error{error_code::invalid_argument, "destination block of two moves", *twice};
    }
    order.run([&](block_pair pair) { copy_block(view, pair); }, [&](block_pair pair) { swap_block(view, pair); });
    return {};
  };
  const auto num_moves = static_cast<std::int64_t>(pairs.size());
  return detail::with_memory(move, error{error_code::out_of_memory, "moves", num_moves});
}

}  // namespace pagedkv::host
