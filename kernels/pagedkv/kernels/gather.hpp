#pragma once

#include <pagedkv/kernels/append.hpp>

namespace pagedkv::kernels {

/// Decodes slot i of one layer into token i of `keys` and `values`, stored as `Output`.
template <class Element, class Output, int N>
__global__ void __launch_bounds__(row_workgroup_size)
    gather_kernel(row_spread spread, slot_rows mapping, block_storage_view view, std::int32_t layer,
                  token_rows<typename Output::storage> keys, token_rows<typename Output::storage> values) {
  for_each_row(spread, [&](std::int64_t row) {
    const auto place = mapping.find(row);
    if (place.block >= 0) {
      const auto from = rows_in_block<Element>(view, layer, place.block, place.offset, place.head);
      const auto source = plain_source<Element, N>{{from.key, from.value, from.key_scale, from.value_scale}};
      transfer_unscaled<Output, N>(spread, source, rows_of_token(keys, values, place.token, place.head));
    }
  });
}

/// Enqueues the gather. `slots` and the rows are memory that the device can reach. A negative slot leaves its token as
/// it is; slots past the storage are the caller's error, caught in debug builds. `Output` is an unscaled element.
template <class Element, class Output>
[[nodiscard]] hipError_t gather(const block_storage_view& view, std::int32_t layer, const slot* slots,
                                std::int64_t num_tokens, const token_rows<typename Output::storage>& keys,
                                const token_rows<typename Output::storage>& values, hipStream_t stream) {
  static_assert(!Output::scaled, "rows carry no scales");
  constexpr auto most = numbers_per_lane<Element, Output>;
  using output = typename Output::storage;
  const auto aligned = aligned_rows<typename Element::storage, most>(view) && aligned_rows<output, most>(keys) &&
                       aligned_rows<output, most>(values);
  const auto mapping = make_slot_rows(view, slots);
  return launch_rows<most>(aligned, num_tokens * view.num_kv_heads, view.head_dim,
                           [&](auto width, const row_launch& plan) {
                             return launch<gather_kernel<Element, Output, decltype(width)::value>>(
                                 plan.shape, stream, plan.spread, mapping, view, layer, keys, values);
                           });
}

}  // namespace pagedkv::kernels
