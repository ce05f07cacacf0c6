#pragma once

#include <pagedkv/core/ids.hpp>
#include <pagedkv/kernels/transfer.hpp>

namespace pagedkv::kernels {

/// Where the rows of a slot mapping lie: row = token * num_kv_heads + head.
struct slot_rows {
  const slot* slots = nullptr;
  divider num_kv_heads;
  divider block_size;

  struct place {
    std::int64_t token = 0;
    std::int32_t head = 0;
    std::int64_t block = -1;  // -1 for a token to skip, or for no row
    std::int32_t offset = 0;
  };

  [[nodiscard]] __device__ place find(std::int64_t row) const {
    if (row < 0) {
      return {};
    }
    const auto [token, head] = num_kv_heads.split(row);
    const auto position = static_cast<std::int64_t>(load(slots + token));
    if (position < 0) {
      return {token, head};
    }
    const auto [block, offset] = block_size.split(position);
    return {token, head, block, offset};
  }
};

[[nodiscard]] inline slot_rows make_slot_rows(const block_storage_view& view, const slot* slots) {
  return {slots, divider(view.num_kv_heads), divider(view.block_size)};
}

/// One token and head among rows that a caller holds.
template <class Storage>
[[nodiscard]] __device__ row_pair<Storage> rows_of_token(const token_rows<Storage>& keys,
                                                         const token_rows<Storage>& values, std::int64_t token,
                                                         std::int32_t head) {
  return {keys.data + token * keys.token_stride + head * keys.head_stride,
          values.data + token * values.token_stride + head * values.head_stride};
}

/// Reshape and cache: encodes token i of `keys` and `values`, stored as `Input`, into slot i of one layer.
template <class Element, class Input, int N>
__global__ void __launch_bounds__(row_workgroup_size)
    append_kernel(row_spread spread, slot_rows mapping, block_storage_view view, std::int32_t layer,
                  token_rows<const typename Input::storage> keys, token_rows<const typename Input::storage> values) {
  for_each_row(spread, [&](std::int64_t row) {
    const auto place = mapping.find(row);
    const auto active = place.block >= 0;
    auto source = plain_source<Input, N>{};
    auto to = row_pair<typename Element::storage>{};
    if (active) {
      source.rows = rows_of_token(keys, values, place.token, place.head);
      to = rows_in_block<Element>(view, layer, place.block, place.offset, place.head);
    }
    transfer<Element, N>(spread, source, to, active);
  });
}

/// Enqueues the append. `slots` and the rows are memory that the device can read. Negative slots are skipped; slots
/// past the storage are the caller's error, caught in debug builds; of equal slots either may win. `Input` is an
/// unscaled element.
template <class Element, class Input>
[[nodiscard]] hipError_t append(const block_storage_view& view, std::int32_t layer, const slot* slots,
                                std::int64_t num_tokens, const token_rows<const typename Input::storage>& keys,
                                const token_rows<const typename Input::storage>& values, hipStream_t stream) {
  static_assert(!Input::scaled, "rows carry no scales");
  constexpr auto most = numbers_per_lane<Element, Input>;
  using input = const typename Input::storage;
  const auto aligned = aligned_rows<typename Element::storage, most>(view) && aligned_rows<input, most>(keys) &&
                       aligned_rows<input, most>(values);
  const auto mapping = make_slot_rows(view, slots);
  return launch_rows<most>(aligned, num_tokens * view.num_kv_heads, view.head_dim,
                           [&](auto width, const row_launch& plan) {
                             return launch<append_kernel<Element, Input, decltype(width)::value>>(
                                 plan.shape, stream, plan.spread, mapping, view, layer, keys, values);
                           });
}

}  // namespace pagedkv::kernels
