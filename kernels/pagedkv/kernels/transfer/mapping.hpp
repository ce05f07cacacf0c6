#pragma once

#include <pagedkv/core/ids.hpp>
#include <pagedkv/kernels/row.hpp>

namespace pagedkv::kernels {

/// Translates the entries of a slot mapping to blocks and offsets.
struct mapped_tokens {
  const slot* slots = nullptr;
  divider<std::int64_t> block_size;
  divider<std::int32_t> block_size_of_most;  // for slots of 31 bits: much faster, and nearly all slots fit

  /// -1 for a skipped token.
  [[nodiscard]] PAGEDKV_DEVICE std::int64_t slot_of(std::int32_t token) const {
    return token < 0 ? -1 : static_cast<std::int64_t>(load(slots + token));
  }

  /// The block and the offset in it of a slot.
  [[nodiscard]] PAGEDKV_DEVICE divider<std::int64_t>::parts split(std::int64_t slot_index) const {
    if (slot_index >> 31 == 0) {
      const auto [block, offset] = block_size_of_most.split(static_cast<std::int32_t>(slot_index));
      return {block, offset};
    }
    return block_size.split(slot_index);
  }

  template <class Element>
  [[nodiscard]] PAGEDKV_DEVICE stored_row_pair<Element> rows_in_slot(const block_storage_view& view, std::int32_t layer,
                                                                     std::int64_t slot_index, std::int32_t head) const {
    if (slot_index >> 31 == 0) {
      const auto [block, offset] = block_size_of_most.split(static_cast<std::int32_t>(slot_index));
      return rows_in_block<Element>(view, layer, block, offset, head);
    }
    const auto [block, offset] = block_size.split(slot_index);
    return rows_in_block<Element>(view, layer, block, offset, head);
  }
};

[[nodiscard]] inline mapped_tokens map_tokens(const block_storage_view& view, const slot* slots) {
  return {slots, divider<std::int64_t>(view.block_size), divider<std::int32_t>(view.block_size)};
}

/// One token and head in the caller's rows, which have no scales.
template <class Storage>
[[nodiscard]] PAGEDKV_DEVICE Storage* row_of_token(const token_rows<Storage>& rows, std::int32_t token,
                                                   std::int32_t head) {
  return rows.data + stride_over(token, rows.token_stride) + stride_over(head, rows.head_stride);
}

template <class Storage>
[[nodiscard]] PAGEDKV_DEVICE row_pair<Storage> rows_of_token(const token_rows<Storage>& keys,
                                                             const token_rows<Storage>& values, std::int32_t token,
                                                             std::int32_t head) {
  return {row_of_token(keys, token, head), row_of_token(values, token, head)};
}

}  // namespace pagedkv::kernels
