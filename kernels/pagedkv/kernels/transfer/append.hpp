#pragma once

#include <pagedkv/core/packed_token.hpp>
#include <pagedkv/kernels/launchers.hpp>
#include <pagedkv/kernels/transfer.hpp>
#include <pagedkv/kernels/transfer/append_tiles.hpp>
#include <pagedkv/kernels/transfer/mapping.hpp>

namespace pagedkv::kernels {

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
  static_assert(is_unscaled<Input>, "rows carry no scales");
  static_assert(!packs_tokens<Element>, "packed tokens have two elements: append each part, as hip::append does");
  if (!view.strided()) {
    return append_tiles<Element, Input>(view, layer, slots, num_tokens, keys, values, stream);
  }
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
