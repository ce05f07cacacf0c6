#pragma once

#include <pagedkv/kernels/launchers.hpp>
#include <pagedkv/kernels/transfer.hpp>
#include <pagedkv/kernels/transfer/mapping.hpp>

#include <algorithm>
#include <bit>

// Rows of piecewise layouts. A workgroup takes a tile: some neighbouring tokens of a call and one KV head. Its rows lie
// in shared memory between the caller's order, in which a lane holds neighbouring dimensions, and the layout's, in
// which a lane holds a piece of 16 bytes and neighbouring lanes hold neighbouring pieces.

namespace pagedkv::kernels {

/// K or V of one layer of one block, in numbers. Offsets inside a block have 31 bits.
struct tile_half {
  std::int64_t start = 0;  // bytes from a block's start
  std::int32_t head_stride = 0;
  std::int32_t token_stride = 0;
  std::int32_t dim_stride = 0;
  std::int32_t piece_log2 = 0;
  bool holds_tokens = false;
  bool vectors = false;  // pieces are aligned and 16 bytes long

  [[nodiscard]] PAGEDKV_DEVICE std::int32_t index(std::int32_t offset, std::int32_t dim) const {
    const auto in_piece = (1 << piece_log2) - 1;
    return holds_tokens ? (offset >> piece_log2) * token_stride + dim * dim_stride + (offset & in_piece)
                        : offset * token_stride + (dim >> piece_log2) * dim_stride + (dim & in_piece);
  }
};

/// Block storage from one layer on.
struct tile_storage {
  std::byte* base = nullptr;
  std::int64_t block_stride = 0;
  std::int64_t layer_stride = 0;  // the grid's y counts layers from the first one
  std::int64_t key_scale_offset = 0;
  std::int64_t value_scale_offset = 0;
  std::int32_t scale_token_stride = 0;
  std::int32_t scale_head_stride = 0;
  std::int32_t num_blocks = 0;
  tile_half keys;
  tile_half values;
  const float* static_scales = nullptr;
  std::int32_t static_layer_stride = 0;
  std::int32_t static_value_offset = 0;

  [[nodiscard]] PAGEDKV_DEVICE std::byte* block(std::int32_t index) const {
    check(index < num_blocks, "block within the storage");
    return base + stride_over(index, block_stride) +
           stride_over(static_cast<std::int32_t>(workgroup_index().y), layer_stride);
  }

  /// The scale of one token and head's key or value. Not for unscaled elements.
  template <class Element>
  [[nodiscard]] PAGEDKV_DEVICE scale_place<Element> scale(bool of_value, std::int32_t index, std::int32_t offset,
                                                          std::int32_t head) const {
    if constexpr (has_static_scales<Element>) {
      const auto layer = static_cast<std::int32_t>(workgroup_index().y);
      const auto of_layer = layer * static_layer_stride + (of_value ? static_value_offset : 0);
      return load_static_scale(static_scales, of_layer + (Element::scale_type::per_head ? head : 0));
    } else {
      auto* const first = block(index) + (of_value ? value_scale_offset : key_scale_offset);
      return reinterpret_cast<float*>(first) + offset * scale_token_stride + head * scale_head_stride;
    }
  }
};

/// Strided rows are in pieces, too, as far as 16 bytes divide them. `start`: bytes from a block's start.
template <class Storage>
[[nodiscard]] tile_half describe_half(const block_storage_view& view, const piece_order& pieces, std::int64_t start) {
  constexpr auto most = numbers_in_vector<Storage>;
  const auto narrow = [](std::int64_t stride) { return static_cast<std::int32_t>(stride); };
  const auto order = view.strided() ? piece_order{most, false, view.head_stride, view.token_stride, most} : pieces;
  auto half = tile_half{};
  half.start = start;
  half.head_stride = narrow(order.head_stride);
  half.token_stride = narrow(order.token_stride);
  half.dim_stride = narrow(order.dim_stride);
  half.piece_log2 = std::countr_zero(static_cast<std::uint32_t>(order.piece));
  half.holds_tokens = order.holds_tokens;
  const auto axis = order.holds_tokens ? view.block_size : view.head_dim;
  half.vectors = order.piece == most && axis % most == 0 && order.head_stride % most == 0 &&
                 order.token_stride % most == 0 && order.dim_stride % most == 0 && start % vector_bytes == 0 &&
                 view.block_stride % vector_bytes == 0 && view.layer_stride % vector_bytes == 0 &&
                 reinterpret_cast<std::uintptr_t>(view.base) % vector_bytes == 0;
  return half;
}

template <class Storage>
[[nodiscard]] tile_storage describe_storage(const block_storage_view& view, std::int32_t layer) {
  auto storage = tile_storage{};
  storage.base = view.block(layer, 0);
  storage.block_stride = view.block_stride;
  storage.layer_stride = view.layer_stride;
  storage.key_scale_offset = view.key_scale_offset;
  storage.value_scale_offset = view.value_scale_offset;
  storage.scale_token_stride = static_cast<std::int32_t>(view.scale_token_stride);
  storage.scale_head_stride = static_cast<std::int32_t>(view.scale_head_stride);
  storage.num_blocks = view.num_blocks;
  storage.static_scales = view.static_key_scale(layer, 0);
  storage.static_layer_stride = view.static_layer_stride;
  storage.static_value_offset = view.static_value_offset;
  storage.keys = describe_half<Storage>(view, view.key_pieces, 0);
  storage.values = describe_half<Storage>(view, view.value_pieces, view.value_offset);
  return storage;
}

/// The sizes of a tile, and where its parts lie in shared memory: the block and the offset of each token, whether a
/// piece of tokens is whole, and rows.
struct staged_tile {
  std::int32_t tokens_log2 = 0;
  std::int32_t head_dim = 0;
  divider<std::int32_t> dims;

  [[nodiscard]] PAGEDKV_HOST_DEVICE std::int32_t tokens() const { return 1 << tokens_log2; }

  /// A conversion has two lists of places.
  [[nodiscard]] PAGEDKV_HOST_DEVICE std::size_t places_start(std::int32_t list) const {
    return static_cast<std::size_t>(list * 3 * tokens()) * sizeof(std::int32_t);
  }

  [[nodiscard]] PAGEDKV_HOST_DEVICE std::size_t rows_start() const {
    return places_start(2);
  }

  /// Numbers from a row to the next: 16 bytes more than a row, so that neighbouring tokens lie in other banks.
  template <class Storage>
  [[nodiscard]] PAGEDKV_HOST_DEVICE std::int32_t row_stride() const {
    constexpr auto most = numbers_in_vector<Storage>;
    return (head_dim + most - 1) / most * most + most;
  }

  template <class Storage>
  [[nodiscard]] PAGEDKV_HOST_DEVICE std::size_t row_bytes() const {
    return static_cast<std::size_t>(row_stride<Storage>()) * sizeof(Storage) << tokens_log2;
  }
};

/// Rows of one half of a tile, in shared memory.
template <class Storage>
struct staged_rows {
  shared_span<Storage> numbers;
  std::int32_t stride;
};

/// `bytes_before`: of other rows of the tile.
template <class Storage>
[[nodiscard]] PAGEDKV_DEVICE staged_rows<Storage> rows_from(const staged_tile& shape, std::size_t bytes_before) {
  return {dynamic_shared<Storage>(shape.rows_start() + bytes_before, shape.row_bytes<Storage>() / sizeof(Storage)),
          shape.row_stride<Storage>()};
}

/// One of them: a pointer as far as sources and `transfer` need one.
template <class Storage>
struct staged_row {
  shared_span<Storage> numbers;
  std::int32_t first;

  [[nodiscard]] PAGEDKV_DEVICE staged_row operator+(std::int32_t distance) const {
    return {numbers, first + distance};
  }
};

template <class Storage>
[[nodiscard]] PAGEDKV_DEVICE staged_row<Storage> row_at(const staged_rows<Storage>& rows, std::int32_t token) {
  return {rows.numbers, token * rows.stride};
}

template <int N, class Storage>
[[nodiscard]] PAGEDKV_DEVICE vector<Storage, N> load_vector(const staged_row<Storage>& from) {
  return load_shared_vector<N>(from.numbers, static_cast<std::size_t>(from.first));
}

template <int N, class Storage>
PAGEDKV_DEVICE void store_vector(const staged_row<Storage>& to, const vector<Storage, N>& numbers) {
  store_shared_vector<N>(to.numbers, static_cast<std::size_t>(to.first), numbers);
}

/// Stores numbers, or the words that hold them.
template <class Storage, class T, int N>
PAGEDKV_DEVICE void store_numbers(const staged_row<Storage>& to, const vector<T, N>& numbers) {
  if constexpr (sizeof(T) == sizeof(Storage)) {
    store_vector<N>(to, numbers);
  } else {
    const auto words = shared_span<T>{reinterpret_cast<T*>(to.numbers.values)};
    store_shared_vector<N>(words, static_cast<std::size_t>(to.first) / (sizeof(T) / sizeof(Storage)), numbers);
  }
}

/// The destination of two rows in shared memory, and of their scales in block storage, or their static scales.
template <class Element>
struct staged_row_pair {
  staged_row<typename Element::storage> key;
  staged_row<typename Element::storage> value;
  scale_place<Element> key_scale = {};
  scale_place<Element> value_scale = {};
};

/// Reads rows from shared memory.
template <class Element, int N>
struct staged_source {
  using key_element = Element;
  using value_element = Element;
  using storage = typename Element::storage;
  static constexpr bool takes_rows_at_once = false;

  staged_row<storage> key_row;
  staged_row<storage> value_row;
  float key_scale_of = 1;
  float value_scale_of = 1;

  [[nodiscard]] PAGEDKV_DEVICE vector<storage, N> key(std::int32_t first) const {
    return load_vector<N>(key_row + first);
  }
  [[nodiscard]] PAGEDKV_DEVICE vector<storage, N> value(std::int32_t first) const {
    return load_vector<N>(value_row + first);
  }
  [[nodiscard]] PAGEDKV_DEVICE float key_scale() const { return key_scale_of; }
  [[nodiscard]] PAGEDKV_DEVICE float value_scale() const { return value_scale_of; }

  template <class Row, class Numbers>
  PAGEDKV_DEVICE void put(const Row& row, std::int32_t first, const Numbers& numbers) const {
    store_numbers(row + first, numbers);
  }
};

/// Where the tokens of a tile lie, in shared memory. A token that is skipped, or past the end, has block -1.
struct tile_places {
  shared_span<std::int32_t> blocks;
  shared_span<std::int32_t> offsets;
  shared_span<std::int32_t> wholes;  // by piece of tokens: whether it lies in one piece of a block
};

[[nodiscard]] PAGEDKV_DEVICE inline tile_places places_of(const staged_tile& shape, std::int32_t list = 0) {
  const auto count = static_cast<std::size_t>(shape.tokens());
  const auto start = shape.places_start(list);
  const auto bytes = count * sizeof(std::int32_t);
  return {dynamic_shared<std::int32_t>(start, count), dynamic_shared<std::int32_t>(start + bytes, count),
          dynamic_shared<std::int32_t>(start + 2 * bytes, count)};
}

[[nodiscard]] PAGEDKV_DEVICE inline std::int32_t lane_of_workgroup() {
  return static_cast<std::int32_t>(local_index().x);
}
[[nodiscard]] PAGEDKV_DEVICE inline std::int32_t lanes_of_workgroup() {
  return static_cast<std::int32_t>(workgroup_extent().x);
}

/// Finds the places of a tile's tokens, of which one wave has all; `find(token)` returns the place of one as `quotient`
/// and `remainder`, with a negative quotient for none. Ends with a barrier. Every lane of the workgroup calls this.
template <int Piece, class Find>
PAGEDKV_DEVICE void find_places(const staged_tile& shape, const tile_places& places, Find find) {
  const auto lane = lane_of_workgroup();
  auto block = std::int32_t{-1};
  auto offset = std::int32_t{0};
  if (lane < shape.tokens()) {
    const auto place = find(lane);
    block = static_cast<std::int32_t>(place.quotient);
    offset = place.remainder;
    places.blocks[static_cast<std::size_t>(lane)] = block;
    places.offsets[static_cast<std::size_t>(lane)] = offset;
  }
  const auto first_block = shuffle(block, 0, Piece);
  const auto first_offset = shuffle(offset, 0, Piece);
  const auto follows = block >= 0 && block == first_block && first_offset % Piece == 0 &&
                       offset == first_offset + lane % Piece;
  const auto following = ballot(follows ? 1 : 0);
  if (lane < shape.tokens() / Piece) {
    constexpr auto all_of_piece = (1ULL << Piece) - 1;
    places.wholes[static_cast<std::size_t>(lane)] =
        (following >> (lane * Piece) & all_of_piece) == all_of_piece ? 1 : 0;
  }
  barrier();
}

/// The arguments of kernels over tiles. These take it first, so that `read_again` reads it in each phase: otherwise its
/// members are more than the scalar registers of AMD's devices.
struct tile_call {
  staged_tile shape;
  row_spread spread;
  mapped_tokens mapping;
  tile_storage storage;
  std::int32_t heads_of_run = 1;  // that a workgroup takes
  std::int32_t heads_at_once = 1;
  divider<std::int32_t> runs_of_heads;
};

/// A call with tiles, and the caller's rows.
template <class Number>
struct tile_row_call : tile_call {
  token_rows<Number> keys;
  token_rows<Number> values;
};

template <class Storage>
inline constexpr auto vector_log2 = std::countr_zero(static_cast<std::uint32_t>(numbers_in_vector<Storage>));

/// Calls `move_vector(numbers, row)` for the pieces of one half of a tile and head, a piece a lane, and
/// `move_number(number, row)` for numbers outside of whole pieces. Neighbouring lanes take neighbouring addresses.
/// `move_vector` takes numbers of one token. A piece of tokens is moved by `move_column(numbers, row)`: its numbers are
/// `rows.stride` apart in shared memory.
template <class Storage, class MoveVector, class MoveColumn, class MoveNumber>
PAGEDKV_DEVICE void for_each_piece(const staged_tile& shape, const tile_places& places, const tile_storage& storage,
                                   const tile_half& half, std::int32_t head,
                                   const staged_rows<Storage>& rows, MoveVector move_vector, MoveColumn move_column,
                                   MoveNumber move_number) {
  constexpr auto most = numbers_in_vector<Storage>;
  const auto at = [&](std::int32_t block, std::int32_t within) {
    return reinterpret_cast<Storage*>(storage.block(block) + half.start) + head * half.head_stride + within;
  };
  const auto lanes = lanes_of_workgroup();
  if (half.vectors && half.holds_tokens) {
    const auto num_pieces = shape.tokens() / most;
    const auto pieces_log2 = shape.tokens_log2 - vector_log2<Storage>;
    const auto tokens_adjoin = half.token_stride < half.dim_stride;
    PAGEDKV_KEEP_LOOP
    for (auto unit = lane_of_workgroup(); unit < num_pieces * shape.head_dim; unit += lanes) {
      const auto by_dim = shape.dims.split(unit);
      const auto piece = tokens_adjoin ? unit & (num_pieces - 1) : by_dim.quotient;
      const auto dim = tokens_adjoin ? unit >> pieces_log2 : by_dim.remainder;
      const auto first = piece * most;
      if (places.wholes[static_cast<std::size_t>(piece)] != 0) {
        const std::int32_t offset = places.offsets[static_cast<std::size_t>(first)];
        move_column(at(places.blocks[static_cast<std::size_t>(first)], half.index(offset, dim)),
                    row_at(rows, first) + dim);
      } else {
        PAGEDKV_KEEP_LOOP
        for (auto i = first; i < first + most; ++i) {
          const std::int32_t block = places.blocks[static_cast<std::size_t>(i)];
          if (block >= 0) {
            move_number(at(block, half.index(places.offsets[static_cast<std::size_t>(i)], dim)),
                        row_at(rows, i) + dim);
          }
        }
      }
    }
    return;
  }
  const auto step = half.vectors ? most : 1;
  const auto num_units = (half.vectors ? shape.head_dim / most : shape.head_dim) << shape.tokens_log2;
  PAGEDKV_KEEP_LOOP
  for (auto unit = lane_of_workgroup(); unit < num_units; unit += lanes) {
    const auto i = unit & (shape.tokens() - 1);
    const auto dim = (unit >> shape.tokens_log2) * step;
    const std::int32_t block = places.blocks[static_cast<std::size_t>(i)];
    if (block >= 0) {
      const std::int32_t offset = places.offsets[static_cast<std::size_t>(i)];
      if (half.vectors) {
        move_vector(at(block, half.index(offset, dim)), row_at(rows, i) + dim);
      } else {
        move_number(at(block, half.index(offset, dim)), row_at(rows, i) + dim);
      }
    }
  }
}

/// Whether all pieces of a tile are whole and lie in block storage as vectors: of dimensions for keys, of tokens for
/// values.
template <class Storage>
[[nodiscard]] PAGEDKV_DEVICE bool is_whole(const staged_tile& shape, const tile_places& places,
                                           const tile_storage& storage) {
  auto whole =
      storage.keys.vectors && !storage.keys.holds_tokens && storage.values.vectors && storage.values.holds_tokens;
  PAGEDKV_KEEP_LOOP
  for (auto piece = 0; piece < shape.tokens() / numbers_in_vector<Storage>; ++piece) {
    whole = whole && places.wholes[static_cast<std::size_t>(piece)] != 0;
  }
  return whole;
}

/// Calls `move(key, key_row, value, value_row)` for the vectors of keys and values of a whole tile and head, one of
/// each a lane. Places in shared memory are those of the first of `rows`.
template <class Storage, class Move>
PAGEDKV_DEVICE void for_each_whole_piece(const staged_tile& shape, const tile_places& places,
                                         const tile_storage& storage, std::int32_t head,
                                         const staged_rows<Storage>& key_rows, const staged_rows<Storage>& value_rows,
                                         Move move) {
  constexpr auto most = numbers_in_vector<Storage>;
  const auto at = [&](const tile_half& half, std::int32_t token, std::int32_t dim) {
    const std::int32_t block = places.blocks[static_cast<std::size_t>(token)];
    const std::int32_t offset = places.offsets[static_cast<std::size_t>(token)];
    return reinterpret_cast<Storage*>(storage.block(block) + half.start) + head * half.head_stride +
           half.index(offset, dim);
  };
  const auto num_pieces = shape.tokens() / most;
  const auto pieces_log2 = shape.tokens_log2 - vector_log2<Storage>;
  const auto tokens_adjoin = storage.values.token_stride < storage.values.dim_stride;
  PAGEDKV_KEEP_LOOP
  for (auto unit = lane_of_workgroup(); unit < num_pieces * shape.head_dim; unit += lanes_of_workgroup()) {
    const auto key_token = unit & (shape.tokens() - 1);
    const auto key_dim = (unit >> shape.tokens_log2) * most;
    const auto by_dim = shape.dims.split(unit);
    const auto value_token = (tokens_adjoin ? unit & (num_pieces - 1) : by_dim.quotient) * most;
    const auto value_dim = tokens_adjoin ? unit >> pieces_log2 : by_dim.remainder;
    move(at(storage.keys, key_token, key_dim), row_at(key_rows, key_token) + key_dim,
         at(storage.values, value_token, value_dim), row_at(value_rows, value_token) + value_dim);
  }
}

/// The numbers of neighbouring tokens at one dimension.
template <class Storage>
[[nodiscard]] PAGEDKV_DEVICE vector<Storage, numbers_in_vector<Storage>> load_column(const staged_row<Storage>& from,
                                                                                     std::int32_t stride) {
  auto numbers = vector<Storage, numbers_in_vector<Storage>>{};
  for (auto i = 0; i < numbers_in_vector<Storage>; ++i) {
    numbers.values[i] = from.numbers[static_cast<std::size_t>(from.first + i * stride)];
  }
  return numbers;
}

template <class Storage>
PAGEDKV_DEVICE void store_column(const staged_row<Storage>& to, std::int32_t stride,
                                 const vector<Storage, numbers_in_vector<Storage>>& numbers) {
  for (auto i = 0; i < numbers_in_vector<Storage>; ++i) {
    to.numbers[static_cast<std::size_t>(to.first + i * stride)] = numbers.values[i];
  }
}

/// Heads whose rows are in shared memory at once, where they have room.
inline constexpr auto most_heads_at_once = 2;

/// Writes rows of a whole tile and up to `most_heads_at_once` heads to block storage. In shared memory, the rows of the
/// next head follow those of one.
template <class Storage>
PAGEDKV_DEVICE void store_whole_tile(const staged_tile& shape, const tile_places& places, const tile_storage& storage,
                                     std::int32_t head, std::int32_t num_heads, const staged_rows<Storage>& key_rows,
                                     const staged_rows<Storage>& value_rows) {
  constexpr auto most = numbers_in_vector<Storage>;
  const auto next_head = key_rows.stride << shape.tokens_log2;
  for_each_whole_piece(
      shape, places, storage, head, key_rows, value_rows,
      [&](Storage* key, const staged_row<Storage>& key_row, Storage* value, const staged_row<Storage>& value_row) {
        PAGEDKV_UNROLL_LOOP
        for (auto h = 0; h < most_heads_at_once; ++h) {
          if (h < num_heads) {
            store_vector<most>(key + h * storage.keys.head_stride, load_vector<most>(key_row + h * next_head));
            store_vector<most>(value + h * storage.values.head_stride,
                               load_column(value_row + h * next_head, value_rows.stride));
          }
        }
      });
}

/// Reads them. All are read before the first is used.
template <class Storage>
PAGEDKV_DEVICE void load_whole_tile(const staged_tile& shape, const tile_places& places, const tile_storage& storage,
                                    std::int32_t head, std::int32_t num_heads, const staged_rows<Storage>& key_rows,
                                    const staged_rows<Storage>& value_rows) {
  constexpr auto most = numbers_in_vector<Storage>;
  const auto next_head = key_rows.stride << shape.tokens_log2;
  for_each_whole_piece(
      shape, places, storage, head, key_rows, value_rows,
      [&](const Storage* key, const staged_row<Storage>& key_row, const Storage* value,
          const staged_row<Storage>& value_row) {
        vector<std::uint32_t, numbers_in_vector<std::uint32_t>> keys[most_heads_at_once];
        vector<std::uint32_t, numbers_in_vector<std::uint32_t>> values[most_heads_at_once];
        const auto load_words = [](const Storage* from) {
          return load_vector<numbers_in_vector<std::uint32_t>>(reinterpret_cast<const std::uint32_t*>(from));
        };
        PAGEDKV_UNROLL_LOOP
        for (auto h = 0; h < most_heads_at_once; ++h) {
          if (h < num_heads) {
            keys[h] = load_words(key + h * storage.keys.head_stride);
            values[h] = load_words(value + h * storage.values.head_stride);
          }
        }
        PAGEDKV_UNROLL_LOOP
        for (auto h = 0; h < most_heads_at_once; ++h) {
          if (h < num_heads) {
            store_vector<most>(key_row + h * next_head, __builtin_bit_cast(vector<Storage, most>, keys[h]));
            store_column(value_row + h * next_head, value_rows.stride,
                         __builtin_bit_cast(vector<Storage, most>, values[h]));
          }
        }
      });
}

/// Writes rows of shared memory to block storage.
template <class Storage>
PAGEDKV_DEVICE void store_rows(const staged_tile& shape, const tile_places& places, const tile_storage& storage,
                               const tile_half& half, std::int32_t head, const staged_rows<Storage>& rows) {
  constexpr auto most = numbers_in_vector<Storage>;
  for_each_piece(
      shape, places, storage, half, head, rows,
      [](Storage* to, const staged_row<Storage>& from) { store_vector<most>(to, load_vector<most>(from)); },
      [&](Storage* to, const staged_row<Storage>& from) { store_vector<most>(to, load_column(from, rows.stride)); },
      [](Storage* to, const staged_row<Storage>& from) {
        store(to, from.numbers[static_cast<std::size_t>(from.first)]);
      });
}

/// Reads rows of block storage into shared memory.
template <class Storage>
PAGEDKV_DEVICE void load_rows(const staged_tile& shape, const tile_places& places, const tile_storage& storage,
                              const tile_half& half, std::int32_t head, const staged_rows<Storage>& rows) {
  constexpr auto most = numbers_in_vector<Storage>;
  for_each_piece(
      shape, places, storage, half, head, rows,
      [](const Storage* from, const staged_row<Storage>& to) { store_vector<most>(to, load_vector<most>(from)); },
      [&](const Storage* from, const staged_row<Storage>& to) {
        store_column(to, rows.stride, load_vector<most>(from));
      },
      [](const Storage* from, const staged_row<Storage>& to) {
        to.numbers[static_cast<std::size_t>(to.first)] = load(from);
      });
}

/// A tile of at least one piece of tokens, with `bytes_of(shape)` bytes of shared memory, in a launch of its own shape.
struct tile_launch {
  staged_tile shape;
  row_spread spread;
  std::int32_t lanes = 0;
  std::int32_t heads_at_once = 1;
  std::size_t shared_bytes = 0;
};

/// More shared memory than this leaves too few waves on a processor.
inline constexpr auto enough_shared_bytes = std::size_t{32} << 10;

inline constexpr auto most_tile_tokens = 32;
inline constexpr auto fewest_tile_lanes = 64;

/// `piece`: numbers in the longest piece. `numbers_per_lane`: those that a lane takes of a row.
template <class BytesOf>
[[nodiscard]] tile_launch plan_tiles(std::int32_t num_heads, std::int32_t head_dim, std::int32_t piece,
                                     std::int32_t numbers_per_lane, BytesOf bytes_of) {
  auto planned = tile_launch{};
  planned.shape.head_dim = head_dim;
  planned.shape.dims = divider<std::int32_t>(head_dim);
  planned.shape.tokens_log2 = piece > 8 ? exponent_of<most_tile_tokens> : 4;
  while (planned.shape.tokens() > piece && bytes_of(planned.shape) > enough_shared_bytes) {
    --planned.shape.tokens_log2;
  }
  planned.spread = spread_rows(0, num_heads, head_dim, numbers_per_lane);
  planned.lanes =
      std::clamp(planned.shape.tokens() << planned.spread.lanes_log2, fewest_tile_lanes, row_workgroup_size);
  planned.shared_bytes = bytes_of(planned.shape);
  return planned;
}

/// The tokens of a call that a workgroup takes, and its heads.
struct tile_range {
  std::int32_t begin;
  std::int32_t end;
  std::int32_t first_head;

  [[nodiscard]] PAGEDKV_DEVICE std::int32_t end_head(const tile_call& call) const {
    const auto after_run = first_head + call.heads_of_run;
    return after_run < call.spread.num_heads ? after_run : call.spread.num_heads;
  }
};

/// The tokens and heads of a workgroup. A tile does not begin within a piece of neighbouring tokens that began before
/// it. The slots at both of its ends are read together.
template <int Piece>
[[nodiscard]] PAGEDKV_DEVICE tile_range find_tile(const tile_call& call) {
  const auto [tile, run] = call.runs_of_heads.split(static_cast<std::int32_t>(workgroup_index().x));
  const auto num_tokens = call.spread.num_tokens;
  std::int32_t ends[2];
  std::int32_t tokens_before[2];
  std::int64_t slots[2];
  PAGEDKV_UNROLL_LOOP
  for (auto i = 0; i < 2; ++i) {
    const auto token = (tile + i) << call.shape.tokens_log2;
    ends[i] = uniform(token < num_tokens ? token : num_tokens);
    slots[i] = call.mapping.slot_of(ends[i] < num_tokens ? ends[i] : num_tokens - 1);
  }
  PAGEDKV_UNROLL_LOOP
  for (auto i = 0; i < 2; ++i) {
    const auto before = slots[i] < 0 ? 0 : static_cast<std::int32_t>(slots[i] & (Piece - 1));
    const auto begins = ends[i] < num_tokens && before <= ends[i];
    tokens_before[i] = begins ? before : 0;
  }
  PAGEDKV_UNROLL_LOOP
  for (auto i = 0; i < 2; ++i) {
    const auto token = ends[i] - tokens_before[i];
    const auto first = call.mapping.slot_of(token < num_tokens ? token : num_tokens - 1);
    ends[i] = uniform(first == slots[i] - tokens_before[i] ? token : ends[i]);
  }
  return {ends[0], ends[1], run * call.heads_of_run};
}

/// Finds the places of the tokens from `first` on; those from `end` on have none.
template <int Piece>
PAGEDKV_DEVICE void find_places(const tile_call& call, std::int32_t first, std::int32_t end) {
  find_places<Piece>(call.shape, places_of(call.shape), [&](std::int32_t i) {
    const auto slot_index = first + i < end ? call.mapping.slot_of(first + i) : -1;
    return slot_index < 0 ? divider<std::int64_t>::parts{-1, 0} : call.mapping.split(slot_index);
  });
}

/// The rows from a token on.
template <class Number>
[[nodiscard]] token_rows<Number> rows_after(const token_rows<Number>& rows, std::int64_t first) {
  return {rows.data + first * rows.token_stride, rows.token_stride, rows.head_stride, rows.num_tokens - first};
}

/// More workgroups than this leave no processor of any device idle.
inline constexpr auto enough_workgroups = std::int64_t{2048};

/// Heads that a workgroup takes: the places of its tokens serve all of them.
[[nodiscard]] inline std::int32_t heads_of_workgroup(std::int64_t num_tiles, std::int32_t num_heads) {
  const auto spare = num_tiles * num_heads / enough_workgroups;
  return static_cast<std::int32_t>(std::clamp<std::int64_t>(spare, 1, num_heads));
}

/// Calls `launch_one(first_token, launch_shape, call)` for as many tokens at once as a launch takes.
template <class Launch>
[[nodiscard]] runtime::status launch_tiles(const tile_launch& planned, const block_storage_view& view,
                                           const tile_storage& storage, const slot* slots, std::int64_t num_tokens,
                                           Launch launch_one) {
  const auto most_tiles = max_tokens_per_launch / std::max(planned.spread.num_heads, 1);
  const auto most_tokens = std::max<std::int64_t>(most_tiles, 1) << planned.shape.tokens_log2;
  auto status = runtime::success;
  for (auto first = std::int64_t{0}; first < num_tokens && status == runtime::success; first += most_tokens) {
    auto spread = planned.spread;
    spread.num_tokens = static_cast<std::int32_t>(std::min(num_tokens - first, most_tokens));
    const auto tiles = (spread.num_tokens + planned.shape.tokens() - 1) >> planned.shape.tokens_log2;
    const auto heads = heads_of_workgroup(tiles, spread.num_heads);
    const auto runs = (spread.num_heads + heads - 1) / heads;
    status = launch_one(first,
                        launch_shape{{static_cast<std::uint32_t>(tiles) * static_cast<std::uint32_t>(runs)},
                                     {static_cast<std::uint32_t>(planned.lanes)},
                                     planned.shared_bytes},
                        tile_call{planned.shape, spread, map_tokens(view, slots + first), storage, heads,
                                  planned.heads_at_once, divider<std::int32_t>(runs)});
  }
  return status;
}

}  // namespace pagedkv::kernels
