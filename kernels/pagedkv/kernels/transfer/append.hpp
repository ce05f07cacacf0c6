#pragma once

#include <pagedkv/core/storage_formats.hpp>
#include <pagedkv/kernels/launchers.hpp>
#include <pagedkv/kernels/transfer.hpp>
#include <pagedkv/kernels/transfer/mapping.hpp>
#include <pagedkv/kernels/transfer/tile.hpp>

namespace pagedkv::kernels {

/// Calls `move(call, i, head, active)` for every row of some heads of a tile that the calling lane takes part in,
/// `head` counted from the first of these, with the same number of calls on every lane.
template <class Call, class Move>
PAGEDKV_DEVICE void for_each_row(const Call& call, std::int32_t num_tokens, std::int32_t num_heads, Move move) {
  const auto groups = lanes_of_workgroup() >> call.spread.lanes_log2;
  const auto end = num_tokens < call.shape.tokens() ? num_tokens : call.shape.tokens();
  PAGEDKV_KEEP_LOOP
  for (auto first = 0; first < num_heads << call.shape.tokens_log2; first += groups) {
    const auto row = first + call.spread.group();
    const auto i = row & (call.shape.tokens() - 1);
    const auto head = row >> call.shape.tokens_log2;
    move(call, i, head, i < end && head < num_heads);
  }
}

/// The rows of one head in shared memory: keys of the heads at once, then their values.
template <class Storage>
[[nodiscard]] PAGEDKV_DEVICE staged_rows<Storage> rows_of_head(const tile_call& call, std::int32_t index) {
  return rows_from<Storage>(call.shape, static_cast<std::size_t>(index) * call.shape.template row_bytes<Storage>());
}

/// The heads that a workgroup takes at once, from one on.
[[nodiscard]] PAGEDKV_DEVICE inline std::int32_t heads_from(const tile_call& call, std::int32_t head,
                                                            const tile_range& range) {
  const auto remaining = range.end_head(call) - head;
  return remaining < call.heads_at_once ? remaining : call.heads_at_once;
}

/// Workgroups that a processor is to have room for. Lanes that hold more bytes of rows than two vectors each have no
/// limit.
template <class Input, int N>
inline constexpr int workgroups_of_append = sizeof(typename Input::storage) * N <= 2 * vector_bytes
                                                ? workgroups_of_tiles
                                                : 0;

/// Does what `append_kernel` does, into a piecewise layout.
template <class Element, class Input, int N>
PAGEDKV_KERNEL void PAGEDKV_LAUNCH_BOUNDS(row_workgroup_size, (workgroups_of_append<Input, N>))
    append_tiles_kernel(tile_row_call<const typename Input::storage> call) {
  using stored = typename Element::storage;
  constexpr auto piece = numbers_in_vector<stored>;
  const auto range = find_tile<piece>(call);
  const auto end = range.end;
  const auto places = places_of(call.shape);
  const auto key_rows = [&](std::int32_t head) { return rows_of_head<stored>(read_again(call), head); };
  const auto value_rows = [&](std::int32_t head) {
    return rows_of_head<stored>(read_again(call), read_again(call).heads_at_once + head);
  };
  const auto move_half = [&](std::int32_t head, bool of_value, std::int32_t of) {
    const auto& again = read_again(call);
    store_rows(again.shape, places, again.storage, of_value ? again.storage.values : again.storage.keys, head + of,
               of_value ? value_rows(of) : key_rows(of));
  };
  PAGEDKV_KEEP_LOOP
  for (auto first = range.begin; first < end; first += call.shape.tokens()) {
    find_places<piece>(read_again(call), first, end);
    const auto whole = of_lane(is_whole<stored>(read_again(call).shape, places, read_again(call).storage) ? 1 : 0) != 0;
    PAGEDKV_KEEP_LOOP
    for (auto head = range.first_head; head < range.end_head(read_again(call));
         head += read_again(call).heads_at_once) {
      const auto num_heads = of_lane(heads_from(read_again(call), head, range));
      for_each_row(read_again(call), end - first, num_heads,
                   [&](const auto& again, std::int32_t i, std::int32_t of, bool active) {
                     const auto token = active ? first + i : first;
                     const auto row_head = active ? head + of : head;
                     const std::int32_t block =
                         active ? static_cast<std::int32_t>(places.blocks[static_cast<std::size_t>(i)]) : -1;
                     auto source = plain_source<Input, N>{};
                     if (points_on_every_lane || active) {
                       source.rows = rows_of_token(again.keys, again.values, token, row_head);
                     }
                     transfer<Element, N>(again.spread, source, active, block >= 0, [&] {
                       auto to = staged_row_pair<Element>{row_at(key_rows(of), i), row_at(value_rows(of), i)};
                       if constexpr (!is_unscaled<Element>) {
                         const std::int32_t offset = places.offsets[static_cast<std::size_t>(i)];
                         to.key_scale = again.storage.template scale<Element>(false, block, offset, row_head);
                         to.value_scale = again.storage.template scale<Element>(true, block, offset, row_head);
                       }
                       return to;
                     });
                   });
      barrier();
      if (whole) {
        const auto& again = read_again(call);
        store_whole_tile(again.shape, places, again.storage, head, num_heads, key_rows(0), value_rows(0));
      } else {
        // One loop for keys and values: a copy of its body takes registers.
        PAGEDKV_KEEP_LOOP
        for (auto i = 0; i < 2 * num_heads; ++i) {
          const auto of_value = i >= num_heads;
          move_half(head, of_value, i - (of_value ? num_heads : 0));
        }
      }
      barrier();
    }
  }
}

template <class Element>
[[nodiscard]] inline tile_launch plan_row_tiles(const block_storage_view& view, std::int32_t numbers) {
  using stored = typename Element::storage;
  const auto bytes_of = [](const staged_tile& shape, std::int32_t heads) {
    const auto scale_bytes = Element::scaled ? sizeof(float) << shape.tokens_log2 : 0;  // of a row, for the gather
    return shape.rows_start() + static_cast<std::size_t>(2 * heads) * (shape.row_bytes<stored>() + scale_bytes);
  };
  auto planned = plan_tiles(view.num_kv_heads, view.head_dim, numbers_in_vector<stored>, numbers,
                            [&](const staged_tile& shape) { return bytes_of(shape, 1); });
  const auto more_bytes = bytes_of(planned.shape, most_heads_at_once);
  if (more_bytes <= enough_shared_bytes && view.num_kv_heads > 1) {
    planned.heads_at_once = most_heads_at_once;
    planned.shared_bytes = more_bytes;
  }
  return planned;
}

/// Calls `launch_one(width, launch_shape, call)` for as many tokens at once as a launch takes; a lane then moves so
/// many numbers of a row of the caller's at once, up to `Most`.
template <class Element, int Most, class Number, class Launch>
[[nodiscard]] runtime::status launch_row_tiles(const block_storage_view& view, std::int32_t layer, const slot* slots,
                                               std::int64_t num_tokens, const token_rows<Number>& keys,
                                               const token_rows<Number>& values, Launch launch_one) {
  const auto launch_width = [&](auto width) {
    const auto planned = plan_row_tiles<Element>(view, width);
    const auto storage = describe_storage<typename Element::storage>(view, layer);
    return launch_tiles(planned, view, storage, slots, num_tokens,
                        [&](std::int64_t first, const launch_shape& shape, const tile_call& call) {
                          return launch_one(width, shape,
                                            tile_row_call<Number>{call, rows_after(keys, first),
                                                                  rows_after(values, first)});
                        });
  };
  return aligned_rows<Number, Most>(keys) && aligned_rows<Number, Most>(values) && view.head_dim % Most == 0
             ? launch_width(std::integral_constant<int, Most>{})
             : launch_width(std::integral_constant<int, 1>{});
}

template <class Element, class Input>
[[nodiscard]] runtime::status append_tiles(const block_storage_view& view, std::int32_t layer, const slot* slots,
                                           std::int64_t num_tokens,
                                           const token_rows<const typename Input::storage>& keys,
                                           const token_rows<const typename Input::storage>& values,
                                           runtime::stream stream) {
  return launch_row_tiles<Element, numbers_per_lane<Element>>(
      view, layer, slots, num_tokens, keys, values, [&](auto width, const launch_shape& shape, const auto& call) {
        return launch<append_tiles_kernel<Element, Input, decltype(width)::value>>(shape, stream, call);
      });
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
