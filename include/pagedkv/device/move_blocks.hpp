#pragma once

#include <pagedkv/core/block_pair.hpp>
#include <pagedkv/detail/with_memory.hpp>
#include <pagedkv/device/status.hpp>
#include <pagedkv/kernels/transfer/move_blocks.hpp>
#include <pagedkv/storage/block_pairs.hpp>


namespace pagedkv::hip {

/// Enqueues the copy of blocks in every layer as if all sources were read first; chains and cycles are allowed and need
/// no second buffer. The pairs are not used after the call returns. Errors, before anything is enqueued:
/// `invalid_argument` for a block outside the storage or the destination of two moves; `out_of_memory` for the working
/// memory, which is proportional to the moves.
[[nodiscard]] inline result<void> move_blocks(const block_storage_view& view, std::span<const block_pair> pairs,
                                              runtime::stream stream) noexcept {
  if (const auto checked = check_pairs(view, pairs); !checked) {
    return checked;
  }
  const auto move = [&]() -> result<void> {
    auto order = move_order{pairs};
    if (const auto twice = order.ambiguous_destination()) {
      return error{error_code::invalid_argument, "destination block of two moves", *twice};
    }
    return to_result(kernels::move_blocks(view, order, stream), "launch of move_blocks");
  };
  const auto num_moves = static_cast<std::int64_t>(pairs.size());
  return detail::with_memory(move, error{error_code::out_of_memory, "moves", num_moves});
}

}  // namespace pagedkv::hip
