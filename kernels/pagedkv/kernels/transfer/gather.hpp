#pragma once

#include <pagedkv/core/storage_formats.hpp>
#include <pagedkv/kernels/launchers.hpp>
#include <pagedkv/kernels/transfer.hpp>
#include <pagedkv/kernels/transfer/append.hpp>
#include <pagedkv/kernels/transfer/mapping.hpp>

namespace pagedkv::kernels {

/// The scales of the rows that are in shared memory, which lie behind these. A lane reads a few and puts them there
/// later.
template <class Element>
class staged_scales {
  using stored = typename Element::storage;
  static constexpr auto most_of_lane = 2;
  static_assert(most_of_lane * fewest_tile_lanes >= 2 * most_heads_at_once * most_tile_tokens);

 public:
  PAGEDKV_DEVICE void read(const tile_call& call, const tile_places& places, std::int32_t head,
                           std::int32_t num_heads) {
    if constexpr (Element::scaled) {
      PAGEDKV_UNROLL_LOOP
      for (auto i = 0; i < most_of_lane; ++i) {
        const auto at = lane_of_workgroup() + i * lanes_of_workgroup();
        const auto token = at & (call.shape.tokens() - 1);
        const auto of = at >> call.shape.tokens_log2;
        const auto of_value = of >= call.heads_at_once;
        const auto from_head = of - (of_value ? call.heads_at_once : 0);
        places_[i] = -1;
        if (of < 2 * call.heads_at_once && from_head < num_heads) {
          const std::int32_t block = places.blocks[static_cast<std::size_t>(token)];
          if (block >= 0) {
            const std::int32_t offset = places.offsets[static_cast<std::size_t>(token)];
            places_[i] = at;
            read_[i] = load(call.storage.template scale<Element>(of_value, block, offset, head + from_head));
          }
        }
      }
    }
  }

  PAGEDKV_DEVICE void put(const tile_call& call) const {
    if constexpr (Element::scaled) {
      const auto scales = span(call);
      PAGEDKV_UNROLL_LOOP
      for (auto i = 0; i < most_of_lane; ++i) {
        if (places_[i] >= 0) {
          scales[static_cast<std::size_t>(places_[i])] = read_[i];
        }
      }
    }
  }

  /// The scale of a token's key or value; `head` counts from the first of those at once.
  [[nodiscard]] static PAGEDKV_DEVICE float of(const tile_call& call, bool of_value, std::int32_t head,
                                               std::int32_t token) {
    const auto of = (of_value ? call.heads_at_once : 0) + head;
    return span(call)[static_cast<std::size_t>((of << call.shape.tokens_log2) + token)];
  }

 private:
  [[nodiscard]] static PAGEDKV_DEVICE shared_span<float> span(const tile_call& call) {
    const auto rows = 2 * call.heads_at_once;
    return dynamic_shared<float>(
        call.shape.rows_start() + static_cast<std::size_t>(rows) * call.shape.template row_bytes<stored>(),
        static_cast<std::size_t>(rows << call.shape.tokens_log2));
  }

  std::int32_t places_[most_of_lane];
  float read_[most_of_lane];
};

/// Does what `gather_kernel` does, from a piecewise layout.
template <class Element, class Output, int N>
PAGEDKV_KERNEL void PAGEDKV_LAUNCH_BOUNDS(row_workgroup_size, workgroups_of_tiles)
    gather_tiles_kernel(tile_row_call<typename Output::storage> call) {
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
    load_rows(again.shape, places, again.storage, of_value ? again.storage.values : again.storage.keys, head + of,
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
      // Read with the numbers: after the barrier, each row would wait for its own.
      auto scales = staged_scales<Element>();
      scales.read(read_again(call), places, head, num_heads);
      if (whole) {
        const auto& again = read_again(call);
        load_whole_tile(again.shape, places, again.storage, head, num_heads, key_rows(0), value_rows(0));
      } else {
        // One loop for keys and values: a copy of its body takes registers.
        PAGEDKV_KEEP_LOOP
        for (auto i = 0; i < 2 * num_heads; ++i) {
          const auto of_value = i >= num_heads;
          move_half(head, of_value, i - (of_value ? num_heads : 0));
        }
      }
      scales.put(read_again(call));
      barrier();
      for_each_row(read_again(call), end - first, num_heads,
                   [&](const auto& again, std::int32_t i, std::int32_t of, bool active) {
                     const std::int32_t block =
                         active ? static_cast<std::int32_t>(places.blocks[static_cast<std::size_t>(i)]) : -1;
                     if (block >= 0) {
                       auto source = staged_source<Element, N>{row_at(key_rows(of), i), row_at(value_rows(of), i)};
                       if constexpr (Element::scaled) {
                         source.key_scale_of = staged_scales<Element>::of(again, false, of, i);
                         source.value_scale_of = staged_scales<Element>::of(again, true, of, i);
                       } else if constexpr (has_static_scales<Element>) {
                         const std::int32_t offset = places.offsets[static_cast<std::size_t>(i)];
                         source.key_scale_of = again.storage.template scale<Element>(false, block, offset, head + of);
                         source.value_scale_of = again.storage.template scale<Element>(true, block, offset, head + of);
                       }
                       transfer_as_scaled<Output, N>(again.spread, source, true, [&] {
                         return rows_of_token(again.keys, again.values, first + i, head + of);
                       });
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
  return launch_row_tiles<Element, numbers_per_lane<Output>>(
      view, layer, slots, num_tokens, keys, values, [&](auto width, const launch_shape& shape, const auto& call) {
        return launch<gather_tiles_kernel<Element, Output, decltype(width)::value>>(shape, stream, call);
      });
}

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
