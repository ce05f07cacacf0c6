#pragma once

#include <pagedkv/kernels/transfer/append_tiles.hpp>

namespace pagedkv::kernels {

/// Does what `gather_kernel` does, from a piecewise layout.
template <class Element, class Output, int N>
PAGEDKV_KERNEL void PAGEDKV_LAUNCH_BOUNDS(row_workgroup_size)
    gather_tiles_kernel(tile_row_call<typename Output::storage> call) {
  using stored = typename Element::storage;
  constexpr auto piece = numbers_in_vector<stored>;
  const auto range = find_tile<piece>(call);
  const auto end = range.end;
  const auto places = places_of(call.shape);
  const auto key_rows = [&] { return rows_from<stored>(read_again(call).shape, 0); };
  const auto value_rows = [&] {
    const auto& shape = read_again(call).shape;
    return rows_from<stored>(shape, shape.template row_bytes<stored>());
  };
  const auto move_half = [&](tile_half tile_storage::*half, std::int32_t head, const staged_rows<stored>& rows) {
    const auto& again = read_again(call);
    load_rows(again.shape, places, again.storage, again.storage.*half, head, rows);
  };
  PAGEDKV_KEEP_LOOP
  for (auto first = range.begin; first < end; first += call.shape.tokens()) {
    find_places<piece>(read_again(call), first, end);
    PAGEDKV_KEEP_LOOP
    for (auto head = range.first_head; head < range.end_head; ++head) {
      move_half(&tile_storage::keys, head, key_rows());
      move_half(&tile_storage::values, head, value_rows());
      barrier();
      for_each_row(read_again(call), end - first, [&](const auto& again, std::int32_t i, bool active) {
        const std::int32_t block = active ? static_cast<std::int32_t>(places.blocks[static_cast<std::size_t>(i)]) : -1;
        if (block >= 0) {
          auto source = staged_source<Element, N>{row_at(key_rows(), i), row_at(value_rows(), i)};
          if constexpr (!is_unscaled<Element>) {
            const std::int32_t offset = places.offsets[static_cast<std::size_t>(i)];
            source.key_scale_at = again.storage.template scale<Element>(false, block, offset, head);
            source.value_scale_at = again.storage.template scale<Element>(true, block, offset, head);
          }
          transfer_as_scaled<Output, N>(again.spread, source, true,
                                        [&] { return rows_of_token(again.keys, again.values, first + i, head); });
        }
      });
      barrier();
    }
  }
}

template <class Element, class Output>
[[nodiscard]] runtime::status gather_tiles(const block_storage_view& view, std::int32_t layer, const slot* slots,
                                           std::int64_t num_tokens, const token_rows<typename Output::storage>& keys,
                                           const token_rows<typename Output::storage>& values,
                                           runtime::stream stream) {
  constexpr auto most = numbers_per_lane<Output>;
  using output = typename Output::storage;
  const auto launch_width = [&](auto width) {
    const auto planned = plan_row_tiles<Element>(view, width);
    const auto storage = describe_storage<typename Element::storage>(view, layer);
    return launch_tiles(
        planned, view, storage, slots, num_tokens,
        [&](std::int64_t first, const launch_shape& shape, const tile_call& call) {
          return launch<gather_tiles_kernel<Element, Output, decltype(width)::value>>(
              shape, stream,
              tile_row_call<typename Output::storage>{call, rows_after(keys, first), rows_after(values, first)});
        });
  };
  return aligned_rows<output, most>(keys) && aligned_rows<output, most>(values) && view.head_dim % most == 0
             ? launch_width(std::integral_constant<int, most>{})
             : launch_width(std::integral_constant<int, 1>{});
}

}  // namespace pagedkv::kernels
