#pragma once

#include <pagedkv/core/packed_token.hpp>
#include <pagedkv/kernels/launchers.hpp>
#include <pagedkv/kernels/transfer.hpp>
#include <pagedkv/kernels/transfer/gather_tiles.hpp>
#include <pagedkv/kernels/transfer/mapping.hpp>

namespace pagedkv::kernels {

/// Decodes slot i of one layer into token i of `keys` and `values`, stored as `Output`.
template <class Element, class Output, int N>
PAGEDKV_KERNEL void PAGEDKV_LAUNCH_BOUNDS(row_workgroup_size)
    gather_kernel(row_spread spread, mapped_tokens mapping, block_storage_view view, std::int32_t layer,
                  token_rows<typename Output::storage> keys, token_rows<typename Output::storage> values) {
  const auto row = find_row(spread);
  const auto slot_index = mapping.slot_of(row.token);
  if (slot_index >= 0) {
    const auto from = mapping.rows_in_slot<Element>(view, layer, slot_index, row.head);
    const auto source = plain_source<Element, N>{{from.key, from.value, from.key_scale, from.value_scale}};
    transfer_as_scaled<Output, N>(spread, source, true,
                                  [&] { return rows_of_token(keys, values, row.token, row.head); });
  }
}

template <class Element, class Output>
[[nodiscard]] runtime::status gather(const block_storage_view& view, std::int32_t layer, const slot* slots,
                                     std::int64_t num_tokens, const token_rows<typename Output::storage>& keys,
                                     const token_rows<typename Output::storage>& values, runtime::stream stream) {
  static_assert(is_unscaled<Output>, "rows carry no scales");
  static_assert(!packs_tokens<Element>, "packed tokens have two elements: gather each part, as hip::gather does");
  if (!view.strided()) {
    return gather_tiles<Element, Output>(view, layer, slots, num_tokens, keys, values, stream);
  }
  constexpr auto most = numbers_per_lane<Output>;
  using output = typename Output::storage;
  const auto aligned = aligned_rows<typename Element::storage, most>(view) && aligned_rows<output, most>(keys) &&
                       aligned_rows<output, most>(values);
  const auto mapping = map_tokens(view, slots);
  return launch_rows<most>(aligned, num_tokens, view.num_kv_heads, view.head_dim,
                           [&](auto width, const row_spread& spread, const launch_shape& shape) {
                             return launch<gather_kernel<Element, Output, decltype(width)::value>>(
                                 shape, stream, spread, mapping, view, layer, keys, values);
                           });
}

}  // namespace pagedkv::kernels
