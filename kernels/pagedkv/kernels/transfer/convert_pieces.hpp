#pragma once

#include <pagedkv/core/ids.hpp>
#include <pagedkv/kernels/attention/lane_word.hpp>
#include <pagedkv/kernels/attention/matrix.hpp>
#include <pagedkv/kernels/transfer/block_batch.hpp>
#include <pagedkv/kernels/transfer/tile.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

// Blocks of one element in another layout. A number keeps its bits, so vectors of 16 bytes pass through registers: as
// they are if both layouts have numbers of one token in them, or both numbers of one dimension; else a lane transposes
// a square of them.

namespace pagedkv::kernels {

inline constexpr auto words_of_vector = vector_bytes / static_cast<int>(sizeof(lane_word));

/// Transposes a square of numbers of `NumberBytes` bytes, a vector a row.
template <std::size_t NumberBytes>
PAGEDKV_DEVICE void transpose(vector<lane_word, words_of_vector> (&rows)[std::size_t{vector_bytes} / NumberBytes]) {
  constexpr auto size = std::size_t{vector_bytes} / NumberBytes;
  vector<lane_word, words_of_vector> columns[size];
  PAGEDKV_UNROLL
  for (auto i = 0; i < words_of_vector; ++i) {
    PAGEDKV_UNROLL
    for (auto j = 0; j < words_of_vector; ++j) {
      if constexpr (NumberBytes == 4) {
        columns[i].values[j] = rows[j].values[i];
      } else if constexpr (NumberBytes == 2) {
        const auto first = rows[2 * j].values[i];
        const auto second = rows[2 * j + 1].values[i];
        columns[2 * i].values[j] = permute_bytes<0x5410>(first, second);
        columns[2 * i + 1].values[j] = permute_bytes<0x7632>(first, second);
      } else {
        const auto low = permute_bytes<0x5140>(rows[4 * j].values[i], rows[4 * j + 1].values[i]);
        const auto high = permute_bytes<0x7362>(rows[4 * j].values[i], rows[4 * j + 1].values[i]);
        const auto next_low = permute_bytes<0x5140>(rows[4 * j + 2].values[i], rows[4 * j + 3].values[i]);
        const auto next_high = permute_bytes<0x7362>(rows[4 * j + 2].values[i], rows[4 * j + 3].values[i]);
        columns[4 * i].values[j] = permute_bytes<0x5410>(low, next_low);
        columns[4 * i + 1].values[j] = permute_bytes<0x7632>(low, next_low);
        columns[4 * i + 2].values[j] = permute_bytes<0x5410>(high, next_high);
        columns[4 * i + 3].values[j] = permute_bytes<0x7632>(high, next_high);
      }
    }
  }
  PAGEDKV_UNROLL
  for (auto i = std::size_t{0}; i < size; ++i) {
    rows[i] = columns[i];
  }
}

/// How the lanes of a launch share the keys, or the values, of blocks. Neighbouring lanes write neighbouring vectors,
/// of neighbouring tokens or dimensions, because half a sector of memory takes as long as a whole one.
struct piece_spread {
  std::int32_t neighbours_log2 = 0;
  bool in_turns = false;         // neighbouring lanes have neighbouring chunks, and exchange every other dimension
  divider<std::int32_t> chunks;  // of a row
  divider<std::int32_t> tiles;   // of a block
  std::int32_t lanes_of_block = 0;
};

struct piece_conversion {
  static constexpr std::int32_t workgroup_size = 128;

  tile_storage from;
  tile_storage to;
  std::int32_t block_size = 0;
  std::int32_t num_chunks = 0;
  divider<std::int32_t> heads;
  piece_spread keys;
  piece_spread values;
  block_batch batch;
};

/// Rows of one token that a lane moves at once, if both layouts have these.
inline constexpr auto rows_of_lane = 8;

/// The numbers of one head's keys, or values, in a block.
template <class Storage>
struct numbers_of_head {
  Storage* first;
  const tile_half& order;

  [[nodiscard]] PAGEDKV_DEVICE lane_word* at(std::int32_t offset, std::int32_t dim) const {
    return reinterpret_cast<lane_word*>(first + order.index(offset, dim));
  }
};

template <class Storage>
[[nodiscard]] PAGEDKV_DEVICE numbers_of_head<Storage> find_head(const tile_storage& storage, bool values,
                                                              std::int32_t block, std::int32_t head) {
  const auto& order = values ? storage.values : storage.keys;
  return {reinterpret_cast<Storage*>(storage.block(block) + order.start) + head * order.head_stride, order};
}

/// The vectors that a lane stores: the first one's address, and the distance from each to the next, in words.
struct stored_vectors {
  lane_word* first;
  std::int32_t distance;
};

/// Stores vectors of 32 lanes, `Size` of each, in the order of their addresses, by way of shared memory: a store
/// instruction then writes whole lines. Lanes are ordered by their neighbours first. `adjoin`: whether vectors of
/// neighbours do, else the vectors of a lane and of lanes at equal places among neighbours. All lanes of the workgroup
/// call this; one whose vectors do not exist gives no address.
template <std::size_t Size>
PAGEDKV_DEVICE void store_in_order(const vector<lane_word, words_of_vector> (&vectors)[Size], const stored_vectors& to,
                                   std::int32_t neighbours_log2, bool adjoin) {
  constexpr auto size = static_cast<std::int32_t>(Size);
  constexpr auto lanes = 32;
  const auto lane = static_cast<std::int32_t>(local_index().x) % lanes;
  const auto first_of_group = static_cast<std::size_t>(local_index().x / lanes) * lanes * Size * words_of_vector;
  const auto shared = dynamic_shared<lane_word>(first_of_group * sizeof(lane_word), lanes * Size * words_of_vector);
  // Eight lanes that write vectors of their own, or read those of one or two lanes, use all banks.
  const auto place = [](std::int32_t of, std::int32_t i) {
    const auto key = (of & 1) << 2 | (of >> 1 & 3);
    return static_cast<std::size_t>((of * size + (i ^ key)) * words_of_vector);
  };
  PAGEDKV_UNROLL
  for (auto i = 0; i < size; ++i) {
    store_shared_vector<words_of_vector>(shared, place(lane, i), vectors[i]);
  }
  order_wave();
  const auto first = reinterpret_cast<unsigned long long>(to.first);
  PAGEDKV_UNROLL
  for (auto j = 0; j < size; ++j) {
    const auto at = j * lanes + lane;
    const auto per_neighbour_log2 = exponent_of<lanes * size> - neighbours_log2;
    const auto neighbour = adjoin ? at & ((1 << neighbours_log2) - 1) : at >> per_neighbour_log2;
    const auto rest = adjoin ? at >> neighbours_log2 : at & ((1 << per_neighbour_log2) - 1);
    const auto of = rest / size << neighbours_log2 | neighbour;
    const auto i = rest % size;
    auto* const destination = reinterpret_cast<lane_word*>(shuffle(first, of, lanes));
    if (destination != nullptr) {
      store_vector<words_of_vector>(destination + i * to.distance,
                                    load_shared_vector<words_of_vector>(shared, place(of, i)));
    }
  }
}

/// Moves some tokens' chunk of a row, up to token `end`; tokens are `step` apart. Every lane of the workgroup calls
/// this.
template <class Storage>
PAGEDKV_DEVICE void move_chunks(const numbers_of_head<Storage>& from, const numbers_of_head<Storage>& to,
                                std::int32_t first_token, std::int32_t step, std::int32_t end, std::int32_t dim,
                                std::int32_t neighbours_log2) {
  vector<lane_word, words_of_vector> chunks[rows_of_lane];
  PAGEDKV_UNROLL
  for (auto i = 0; i < rows_of_lane; ++i) {
    if (const auto token = first_token + i * step; token < end) {
      chunks[i] = load_vector<words_of_vector>(from.at(token, dim));
    }
  }
  const auto whole = first_token + (rows_of_lane - 1) * step < end;
  const auto in_order = joins_stores && to.order.token_stride < to.order.dim_stride;
  if (in_order) {
    const auto distance = step * to.order.token_stride / static_cast<std::int32_t>(sizeof(lane_word) / sizeof(Storage));
    store_in_order(chunks, {whole ? to.at(first_token, dim) : nullptr, distance}, neighbours_log2, true);
  }
  if (in_order && whole) {
    return;
  }
  PAGEDKV_UNROLL
  for (auto i = 0; i < rows_of_lane; ++i) {
    if (const auto token = first_token + i * step; token < end) {
      store_vector<words_of_vector>(to.at(token, dim), chunks[i]);
    }
  }
}

/// Exchanges vectors of dimensions with the lane that has the next chunk: of both chunks one lane gets the even
/// dimensions, in order, the other one the odd ones.
template <std::size_t Size>
PAGEDKV_DEVICE void take_turns(vector<lane_word, words_of_vector> (&dims)[Size], bool odd) {
  PAGEDKV_UNROLL
  for (auto i = std::size_t{0}; i < Size; i += 2) {
    PAGEDKV_UNROLL
    for (auto word = 0; word < words_of_vector; ++word) {
      auto& even_word = dims[i].values[word];
      auto& odd_word = dims[i + 1].values[word];
      const auto received = shuffle_xor(odd ? even_word : odd_word, 1, 2);
      const auto kept = odd ? odd_word : even_word;
      even_word = odd ? received : kept;
      odd_word = odd ? kept : received;
    }
  }
}

/// Moves a square of tokens and dimensions, of which one layout at least has vectors of tokens. Every lane of the
/// workgroup calls this; one that is not active stores nothing.
template <class Storage>
PAGEDKV_DEVICE void move_square(const numbers_of_head<Storage>& from, const numbers_of_head<Storage>& to,
                                std::int32_t first_token, std::int32_t chunk, const piece_spread& spread, bool active) {
  constexpr auto size = numbers_in_vector<Storage>;
  const auto first_dim = chunk * size;
  vector<lane_word, words_of_vector> rows[size];
  PAGEDKV_UNROLL
  for (auto i = 0; i < size; ++i) {
    rows[i] = load_vector<words_of_vector>(from.order.holds_tokens ? from.at(first_token, first_dim + i)
                                                                   : from.at(first_token + i, first_dim));
  }
  if (from.order.holds_tokens != to.order.holds_tokens) {
    transpose<sizeof(Storage)>(rows);
  }
  if (joins_stores && to.order.holds_tokens) {
    const auto distance = to.order.dim_stride / static_cast<std::int32_t>(sizeof(lane_word) / sizeof(Storage));
    store_in_order(rows, {active ? to.at(first_token, first_dim) : nullptr, distance}, spread.neighbours_log2,
                   to.order.token_stride < to.order.dim_stride);
    return;
  }
  if (spread.in_turns) {
    take_turns(rows, chunk % 2 != 0);
  }
  if (!active) {
    return;
  }
  const auto first_of_turns = (chunk & ~1) * size + chunk % 2;
  PAGEDKV_UNROLL
  for (auto i = 0; i < size; ++i) {
    const auto of_turns = first_of_turns + i % 2 * size + i / 2 * 2;
    store_vector<words_of_vector>(to.order.holds_tokens ? to.at(first_token, spread.in_turns ? of_turns : first_dim + i)
                                                        : to.at(first_token + i, first_dim),
                                  rows[i]);
  }
}

/// Stores blocks in another layout. The grid's x counts pairs, heads, tiles and chunks; its y is the layer; its z is 0
/// for keys, 1 for values.
template <class Element>
PAGEDKV_KERNEL void PAGEDKV_LAUNCH_BOUNDS(piece_conversion::workgroup_size) convert_pieces_kernel(piece_conversion call) {
  using storage = typename Element::storage;
  const auto& again = read_again(call);
  const auto of_values = workgroup_index().z != 0;
  const auto& spread = of_values ? again.values : again.keys;
  const auto first_unit = static_cast<std::int32_t>(workgroup_index().x) * piece_conversion::workgroup_size;
  if (first_unit >= again.batch.num_pairs * spread.lanes_of_block) {
    return;
  }
  const auto unit = first_unit + static_cast<std::int32_t>(local_index().x);
  const auto neighbour = unit & ((1 << spread.neighbours_log2) - 1);
  const auto by_chunk = spread.chunks.split(unit >> spread.neighbours_log2);
  const auto by_tile = spread.tiles.split(by_chunk.quotient);
  const auto by_head = again.heads.split(by_tile.quotient);
  const auto active = by_head.quotient < again.batch.num_pairs;
  const auto head = by_head.remainder;
  const auto chunk = by_chunk.remainder;
  const auto [source, destination] = again.batch.pairs[active ? by_head.quotient : 0];
  const auto from = find_head<storage>(again.from, of_values, source, head);
  const auto to = find_head<storage>(again.to, of_values, destination, head);
  const auto in_squares = from.order.holds_tokens || to.order.holds_tokens;
  const auto num_tokens = in_squares ? numbers_in_vector<storage> : rows_of_lane;
  const auto step = in_squares ? 1 : 1 << spread.neighbours_log2;
  const auto first_token = (by_tile.remainder << spread.neighbours_log2) * num_tokens +
                           neighbour * (in_squares ? num_tokens : 1);
  const auto end = active ? again.block_size : 0;
  if (in_squares) {
    move_square(from, to, first_token, chunk, spread, active);
  } else {
    move_chunks(from, to, first_token, step, end, chunk * numbers_in_vector<storage>, spread.neighbours_log2);
  }
  if constexpr (Element::scaled) {
    PAGEDKV_KEEP_LOOP
    for (auto i = chunk; i < num_tokens; i += again.num_chunks) {
      if (const auto token = first_token + i * step; token < end) {
        store(again.to.template scale<Element>(of_values, destination, token, head),
              load(again.from.template scale<Element>(of_values, source, token, head)));
      }
    }
  }
}

/// Whether all vectors of both layouts are aligned and whole, so that the kernel above suffices.
template <class Storage>
[[nodiscard]] bool in_vectors(const tile_storage& from, const tile_storage& to, std::int32_t head_dim) {
  return from.keys.vectors && from.values.vectors && to.keys.vectors && to.values.vectors &&
         head_dim % numbers_in_vector<Storage> == 0;
}

/// How lanes share the keys, or the values, of blocks whose layouts have these orders.
template <class Storage>
[[nodiscard]] piece_spread spread_pieces(const tile_half& from, const tile_half& to, std::int32_t block_size,
                                         std::int32_t num_chunks, std::int32_t num_heads) {
  const auto in_squares = from.holds_tokens || to.holds_tokens;
  const auto num_tokens = in_squares ? numbers_in_vector<Storage> : rows_of_lane;
  const auto neighbours_log2 = in_squares && block_size % (2 * num_tokens) != 0 ? 0 : 1;
  const auto tokens_of_tile = num_tokens << neighbours_log2;
  const auto tiles = (block_size + tokens_of_tile - 1) / tokens_of_tile;
  return {neighbours_log2, to.holds_tokens && neighbours_log2 == 0 && num_chunks % 2 == 0,
          divider<std::int32_t>(num_chunks), divider<std::int32_t>(tiles),
          (tiles << neighbours_log2) * num_chunks * num_heads};
}

/// Does what `convert_tiles` does, for equal elements where `in_vectors` is true.
template <class Element>
[[nodiscard]] runtime::status convert_pieces(const block_storage_view& from, const tile_storage& from_tiles,
                                             const tile_storage& to_tiles, std::span<const block_pair> pairs,
                                             runtime::stream stream) {
  using storage = typename Element::storage;
  auto call = piece_conversion{};
  call.from = from_tiles;
  call.to = to_tiles;
  call.block_size = from.block_size;
  call.num_chunks = from.head_dim / numbers_in_vector<storage>;
  call.heads = divider<std::int32_t>(from.num_kv_heads);
  const auto spread = [&](const tile_half& from_half, const tile_half& to_half) {
    return spread_pieces<storage>(from_half, to_half, from.block_size, call.num_chunks, from.num_kv_heads);
  };
  call.keys = spread(from_tiles.keys, to_tiles.keys);
  call.values = spread(from_tiles.values, to_tiles.values);
  const auto lanes_of_block = std::max(call.keys.lanes_of_block, call.values.lanes_of_block);
  constexpr auto vectors_of_lane = std::max(numbers_in_vector<storage>, rows_of_lane);
  const auto shared_bytes =
      joins_stores ? static_cast<std::size_t>(call.workgroup_size) * vectors_of_lane * vector_bytes : std::size_t{0};
  const auto launch_batch = [&](const block_batch& batch) {
    call.batch = batch;
    const auto lanes = std::int64_t{batch.num_pairs} * lanes_of_block;
    const auto workgroups = (lanes + call.workgroup_size - 1) / call.workgroup_size;
    return launch<convert_pieces_kernel<Element>>(
        launch_shape{{static_cast<std::uint32_t>(workgroups), static_cast<std::uint32_t>(from.num_layers),
                      from.value_offset == 0 ? 1U : 2U},
                     {static_cast<std::uint32_t>(call.workgroup_size)},
                     shared_bytes},
        stream, call);
  };
  constexpr auto most_lanes = std::numeric_limits<std::int32_t>::max() - piece_conversion::workgroup_size;
  return launch_batches(pairs, launch_batch, pairs_of_launch(most_lanes, lanes_of_block));
}

}  // namespace pagedkv::kernels
