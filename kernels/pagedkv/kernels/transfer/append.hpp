#pragma once

#include <pagedkv/kernels/launchers.hpp>
#include <pagedkv/kernels/transfer.hpp>

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

  template <class Element>
  [[nodiscard]] PAGEDKV_DEVICE row_pair<typename Element::storage> rows_in_slot(const block_storage_view& view,
                                                                                std::int32_t layer,
                                                                                std::int64_t slot_index,
                                                                                std::int32_t head) const {
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

/// One token and head in the caller's rows.
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

/// Encodes token i of `keys` and `values`, stored as `Input`, into slot i of one layer.
template <class Element, class Input, int N>
PAGEDKV_KERNEL void PAGEDKV_LAUNCH_BOUNDS(row_workgroup_size)
    append_kernel(row_spread spread, mapped_tokens mapping, block_storage_view view, std::int32_t layer,
                  token_rows<const typename Input::storage> keys, token_rows<const typename Input::storage> values) {
  const auto row = find_row(spread);
  const auto slot_index = mapping.slot_of(row.token);
  auto source = plain_source<Input, N>{};
  if (points_on_every_lane || row.token >= 0) {
    source.rows = rows_of_token(keys, values, row.token_or_first(), row.head);
  }
  transfer<Element, N>(spread, source, row.token >= 0, slot_index >= 0,
                       [&] { return mapping.rows_in_slot<Element>(view, layer, slot_index, row.head); });
}

template <class Element, class Input>
[[nodiscard]] runtime::status append(const block_storage_view& view, std::int32_t layer, const slot* slots,
                                     std::int64_t num_tokens, const token_rows<const typename Input::storage>& keys,
                                     const token_rows<const typename Input::storage>& values, runtime::stream stream) {
  static_assert(!Input::scaled, "rows carry no scales");
  constexpr auto most = numbers_per_lane<Element>;
  using input = const typename Input::storage;
  const auto aligned = aligned_rows<typename Element::storage, most>(view) && aligned_rows<input, most>(keys) &&
                       aligned_rows<input, most>(values);
  const auto mapping = map_tokens(view, slots);
  return launch_rows<most>(aligned, num_tokens, view.num_kv_heads, view.head_dim,
                           [&](auto width, const row_spread& spread, const launch_shape& shape) {
                             return launch<append_kernel<Element, Input, decltype(width)::value>>(
                                 shape, stream, spread, mapping, view, layer, keys, values);
                           });
}

}  // namespace pagedkv::kernels
