#pragma once

#include <pagedkv/kernels/transfer/tile.hpp>

namespace pagedkv::kernels {

/// Calls `move(call, i, active)` for every row of a tile that the calling lane takes part in, with the same number of
/// calls on every lane.
template <class Call, class Move>
PAGEDKV_DEVICE void for_each_row(const Call& call, std::int32_t num_tokens, Move move) {
  const auto groups = lanes_of_workgroup() >> call.spread.lanes_log2;
  const auto end = num_tokens < call.shape.tokens() ? num_tokens : call.shape.tokens();
  PAGEDKV_KEEP_LOOP
  for (auto first = 0; first < call.shape.tokens(); first += groups) {
    const auto i = first + call.spread.group();
    move(call, i, i < end);
  }
}

/// Does what `append_kernel` does, into a piecewise layout.
template <class Element, class Input, int N>
PAGEDKV_KERNEL void PAGEDKV_LAUNCH_BOUNDS(row_workgroup_size)
    append_tiles_kernel(tile_row_call<const typename Input::storage> call) {
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
    store_rows(again.shape, places, again.storage, again.storage.*half, head, rows);
  };
  PAGEDKV_KEEP_LOOP
  for (auto first = range.begin; first < end; first += call.shape.tokens()) {
    find_places<piece>(read_again(call), first, end);
    PAGEDKV_KEEP_LOOP
    for (auto head = range.first_head; head < range.end_head; ++head) {
      for_each_row(read_again(call), end - first, [&](const auto& again, std::int32_t i, bool active) {
        const auto token = active ? first + i : first;
        const std::int32_t block = active ? static_cast<std::int32_t>(places.blocks[static_cast<std::size_t>(i)]) : -1;
        auto source = plain_source<Input, N>{};
        if (points_on_every_lane || active) {
          source.rows = rows_of_token(again.keys, again.values, token, head);
        }
        transfer<Element, N>(again.spread, source, active, block >= 0, [&] {
          auto to = staged_row_pair<Element>{row_at(key_rows(), i), row_at(value_rows(), i)};
          if constexpr (!is_unscaled<Element>) {
            const std::int32_t offset = places.offsets[static_cast<std::size_t>(i)];
            to.key_scale = again.storage.template scale<Element>(false, block, offset, head);
            to.value_scale = again.storage.template scale<Element>(true, block, offset, head);
          }
          return to;
        });
      });
      barrier();
      move_half(&tile_storage::keys, head, key_rows());
      move_half(&tile_storage::values, head, value_rows());
      barrier();
    }
  }
}

template <class Element>
[[nodiscard]] inline tile_launch plan_row_tiles(const block_storage_view& view, std::int32_t numbers) {
  using stored = typename Element::storage;
  return plan_tiles(view.num_kv_heads, view.head_dim, numbers_in_vector<stored>, numbers, [](const staged_tile& shape) {
    return shape.rows_start() + 2 * shape.row_bytes<stored>();
  });
}

template <class Element, class Input>
[[nodiscard]] runtime::status append_tiles(const block_storage_view& view, std::int32_t layer, const slot* slots,
                                           std::int64_t num_tokens,
                                           const token_rows<const typename Input::storage>& keys,
                                           const token_rows<const typename Input::storage>& values,
                                           runtime::stream stream) {
  constexpr auto most = numbers_per_lane<Element>;
  using input = const typename Input::storage;
  const auto launch_width = [&](auto width) {
    const auto planned = plan_row_tiles<Element>(view, width);
    const auto storage = describe_storage<typename Element::storage>(view, layer);
    return launch_tiles(
        planned, view, storage, slots, num_tokens,
        [&](std::int64_t first, const launch_shape& shape, const tile_call& call) {
          return launch<append_tiles_kernel<Element, Input, decltype(width)::value>>(
              shape, stream,
              tile_row_call<const typename Input::storage>{call, rows_after(keys, first), rows_after(values, first)});
        });
  };
  return aligned_rows<input, most>(keys) && aligned_rows<input, most>(values) && view.head_dim % most == 0
             ? launch_width(std::integral_constant<int, most>{})
             : launch_width(std::integral_constant<int, 1>{});
}

}  // namespace pagedkv::kernels
