#pragma once

#include <pagedkv/core/ids.hpp>
#include <pagedkv/kernels/launchers.hpp>
#include <pagedkv/kernels/transfer.hpp>
#include <pagedkv/kernels/transfer/block_batch.hpp>
#include <pagedkv/kernels/transfer/convert_pieces.hpp>
#include <pagedkv/kernels/transfer/tile.hpp>

namespace pagedkv::kernels {

/// The first argument, as `tile_call` is. A tile is tokens of one block.
struct tile_conversion {
  staged_tile shape;
  row_spread spread;
  tile_storage from;
  tile_storage to;
  std::int32_t block_size = 0;
  divider<std::int32_t> tiles_per_block;
  block_batch batch;
};

/// The keys, or the values, of a tile.
struct half_of_tile {
  bool values;

  [[nodiscard]] PAGEDKV_DEVICE const tile_half& order(const tile_storage& storage) const {
    return values ? storage.values : storage.keys;
  }
  template <class Element>
  [[nodiscard]] PAGEDKV_DEVICE scale_place<Element> scale(const tile_storage& storage, const tile_places& places,
                                                          std::int32_t i, std::int32_t head) const {
    const auto at = static_cast<std::size_t>(i);
    return storage.template scale<Element>(values, places.blocks[at], places.offsets[at], head);
  }
};

/// Does what `convert_blocks_kernel` does, from or to a piecewise layout, or with equal elements in different layouts.
/// The grid's x counts pairs, tiles and heads; its y is the layer; its z is 0 for keys, 1 for values.
template <class To, class From, int N>
PAGEDKV_KERNEL void PAGEDKV_LAUNCH_BOUNDS(row_workgroup_size) convert_tiles_kernel(tile_conversion call) {
  using from_storage = typename From::storage;
  using to_storage = typename To::storage;
  const auto unit = call.spread.heads.split(static_cast<std::int32_t>(workgroup_index().x));
  const auto head = unit.remainder;
  const auto tile = call.tiles_per_block.split(unit.quotient);
  const auto half = half_of_tile{workgroup_index().z != 0};
  const auto first = tile.remainder << call.shape.tokens_log2;
  const auto in_block = call.block_size - first;
  const auto num_tokens = in_block < call.shape.tokens() ? in_block : call.shape.tokens();
  const auto from_places = places_of(call.shape, 0);
  const auto to_places = places_of(call.shape, 1);
  const auto from_rows = rows_from<from_storage>(call.shape, 0);
  const auto blocks = call.batch.pairs[tile.quotient];
  const auto place_in = [&](std::int32_t block) {
    return [=](std::int32_t i) {
      return i < num_tokens ? divider<std::int32_t>::parts{block, first + i} : divider<std::int32_t>::parts{-1, 0};
    };
  };
  find_places<numbers_in_vector<from_storage>>(call.shape, from_places, place_in(blocks.source));
  find_places<numbers_in_vector<to_storage>>(call.shape, to_places, place_in(blocks.destination));
  {
    const auto& again = read_again(call);
    load_rows(again.shape, from_places, again.from, half.order(again.from), head, from_rows);
  }
  barrier();
  const auto store_all = [&](const auto& rows) {
    const auto& again = read_again(call);
    store_rows(again.shape, to_places, again.to, half.order(again.to), head, rows);
  };
  if constexpr (std::is_same_v<To, From>) {
    store_all(from_rows);
    if constexpr (To::scaled) {
      const auto& again = read_again(call);
      if (const auto i = lane_of_workgroup(); i < num_tokens) {
        store(half.template scale<To>(again.to, to_places, i, head),
              load(half.template scale<From>(again.from, from_places, i, head)));
      }
    }
  } else {
    const auto to_rows = rows_from<to_storage>(call.shape, call.shape.row_bytes<from_storage>());
    const auto& again = read_again(call);
    const auto groups = lanes_of_workgroup() >> again.spread.lanes_log2;
    // A lane takes two tokens, as elsewhere a key and a value; of an odd number, one token twice.
    const auto rows_of_lanes = (num_tokens + 1) / 2;
    auto given = scale_place<To>{};
    if constexpr (has_static_scales<To>) {
      given = half.template scale<To>(again.to, to_places, 0, head);
    }
    PAGEDKV_KEEP_LOOP
    for (auto start = 0; start < rows_of_lanes; start += groups) {
      const auto active = start + again.spread.group() < rows_of_lanes;
      const auto i = active ? start + again.spread.group() : 0;
      const auto j = i + rows_of_lanes < num_tokens ? i + rows_of_lanes : i;
      auto source = staged_source<From, N>{row_at(from_rows, i), row_at(from_rows, j)};
      if constexpr (!is_unscaled<From>) {
        source.key_scale_of = load_scale<From>(half.template scale<From>(again.from, from_places, i, head));
        source.value_scale_of = load_scale<From>(half.template scale<From>(again.from, from_places, j, head));
      }
      auto to = staged_row_pair<To>{row_at(to_rows, i), row_at(to_rows, j)};
      if constexpr (To::scaled) {
        to.key_scale = half.template scale<To>(again.to, to_places, i, head);
        to.value_scale = half.template scale<To>(again.to, to_places, j, head);
      } else {
        to.key_scale = to.value_scale = given;
      }
      transfer<To, N>(again.spread, source, active, active, [&] { return to; });
    }
    barrier();
    store_all(to_rows);
  }
}

template <class To, class From>
[[nodiscard]] runtime::status convert_tiles(const block_storage_view& from, const block_storage_view& to,
                                            std::span<const block_pair> pairs, runtime::stream stream) {
  using from_storage = typename From::storage;
  using to_storage = typename To::storage;
  const auto from_tiles = describe_storage<from_storage>(from, 0);
  const auto to_tiles = describe_storage<to_storage>(to, 0);
  if constexpr (std::is_same_v<To, From>) {
    if (in_vectors<from_storage>(from_tiles, to_tiles, from.head_dim)) {
      return convert_pieces<To>(from, from_tiles, to_tiles, pairs, stream);
    }
  }
  constexpr auto most = numbers_per_lane<To>;
  constexpr auto piece = std::max(numbers_in_vector<from_storage>, numbers_in_vector<to_storage>);
  const auto launch_width = [&](auto width) {
    const auto planned = plan_tiles(from.num_kv_heads, from.head_dim, piece, width, [](const staged_tile& shape) {
      return shape.rows_start() + shape.row_bytes<from_storage>() +
             (std::is_same_v<To, From> ? 0 : shape.row_bytes<to_storage>());
    });
    const auto tiles = (from.block_size + planned.shape.tokens() - 1) >> planned.shape.tokens_log2;
    const auto launch_batch = [&](const block_batch& batch) {
      const auto workgroups = static_cast<std::uint32_t>(batch.num_pairs) * static_cast<std::uint32_t>(tiles) *
                              static_cast<std::uint32_t>(from.num_kv_heads);
      const auto call = tile_conversion{planned.shape,   planned.spread,
                                        from_tiles,      to_tiles,
                                        from.block_size, divider<std::int32_t>(tiles),
                                        batch};
      const auto halves = from.value_offset == 0 ? 1U : 2U;
      return launch<convert_tiles_kernel<To, From, decltype(width)::value>>(
          launch_shape{{workgroups, static_cast<std::uint32_t>(from.num_layers), halves},
                       {static_cast<std::uint32_t>(planned.lanes)},
                       planned.shared_bytes},
          stream, call);
    };
    return launch_batches(pairs, launch_batch,
                          pairs_of_launch(max_tokens_per_launch, std::int64_t{tiles} * from.num_kv_heads));
  };
  return from.head_dim % most == 0 ? launch_width(std::integral_constant<int, most>{})
                                   : launch_width(std::integral_constant<int, 1>{});
}

/// Stores the numbers of blocks as another element. The grid's x counts the tokens of all pairs; its y is the layer.
template <class To, class From, int N>
PAGEDKV_KERNEL void PAGEDKV_LAUNCH_BOUNDS(row_workgroup_size)
    convert_blocks_kernel(row_spread spread, divider<std::int32_t> block_size, block_storage_view from,
                          block_storage_view to, block_batch batch) {
  const auto row = find_row(spread);
  const auto active = row.token >= 0;
  const auto [pair, offset] = block_size.split(row.token_or_first());
  const auto layer = static_cast<std::int32_t>(workgroup_index().y);
  const auto blocks = batch.pairs[pair];
  const auto read = rows_in_block<From>(from, layer, blocks.source, offset, row.head);
  const auto source = plain_source<From, N>{{read.key, read.value, read.key_scale, read.value_scale}};
  const auto destination = rows_in_block<To>(to, layer, blocks.destination, offset, row.head);
  transfer<To, N>(spread, source, active, active, [&] { return destination; });
}

template <class To, class From>
[[nodiscard]] runtime::status convert_rows(const block_storage_view& from, const block_storage_view& to,
                                             std::span<const block_pair> pairs, runtime::stream stream) {
  constexpr auto most = numbers_per_lane<To>;
  const auto aligned = aligned_rows<typename From::storage, most>(from) && aligned_rows<typename To::storage, most>(to);
  const auto block_size = divider<std::int32_t>(from.block_size);
  const auto launch_batch = [&](const block_batch& batch) {
    return launch_rows<most>(aligned, std::int64_t{batch.num_pairs} * from.block_size, from.num_kv_heads, from.head_dim,
                             [&](auto width, const row_spread& spread, launch_shape shape) {
                               shape.grid.y = static_cast<std::uint32_t>(from.num_layers);
                               return launch<convert_blocks_kernel<To, From, decltype(width)::value>>(
                                   shape, stream, spread, block_size, from, to, batch);
                             });
  };
  return launch_batches(pairs, launch_batch, pairs_of_launch(max_tokens_per_launch, from.block_size));
}

template <class To, class From>
[[nodiscard]] runtime::status convert_blocks(const block_storage_view& from, const block_storage_view& to,
                                             std::span<const block_pair> pairs, runtime::stream stream) {
  if constexpr (std::is_same_v<To, From>) {
    return convert_tiles<To, From>(from, to, pairs, stream);
  } else {
    return from.strided() && to.strided() ? convert_rows<To, From>(from, to, pairs, stream)
                                          : convert_tiles<To, From>(from, to, pairs, stream);
  }
}

}  // namespace pagedkv::kernels
