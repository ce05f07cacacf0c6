#pragma once

#include <pagedkv/core/host_device.hpp>

#include <cstdint>

namespace pagedkv {

/// Where a number of K, or of V, lies in one layer of one block, when the numbers of one token and head are not
/// neighbours. Neighbouring numbers along one axis lie together in pieces. All members count numbers.
struct piece_order {
  std::int32_t piece = 0;         // in a piece: a power of two that divides the axis
  bool holds_tokens = false;      // a piece is one dimension of neighbouring tokens; else neighbours of one token
  std::int64_t head_stride = 0;   // from a KV head to the next
  std::int64_t token_stride = 0;  // from a token to the next; where pieces hold tokens, from a piece to the next
  std::int64_t dim_stride = 0;    // from a dimension to the next; where pieces hold dimensions, from a piece to the next

  /// `offset` is the token's, within the block.
  [[nodiscard]] PAGEDKV_HOST_DEVICE constexpr std::int64_t index(std::int32_t offset, std::int32_t head,
                                                                 std::int32_t dim) const noexcept {
    return holds_tokens ? head * head_stride + offset / piece * token_stride + dim * dim_stride + offset % piece
                        : head * head_stride + offset * token_stride + dim / piece * dim_stride + dim % piece;
  }

  friend bool operator==(const piece_order&, const piece_order&) = default;
};

}  // namespace pagedkv
