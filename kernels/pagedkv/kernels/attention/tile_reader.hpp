#pragma once

#include <pagedkv/kernels/attention/matrix.hpp>
#include <pagedkv/kernels/attention/scores.hpp>
#include <pagedkv/kernels/attention/walk.hpp>
#include <pagedkv/kernels/divider.hpp>

namespace pagedkv::kernels {

// Conversion of stored words to words of 16-bit numbers for the matrix unit.

/// Words of 16-bit numbers that a stored word becomes.
template <class Storage>
inline constexpr int words_of_stored = sizeof(Storage) == 1 ? 2 : 1;

/// A byte of int8 biased by 128, with 0x64 above it, is the binary16 number 1152 + x.
inline constexpr lane_word byte_bias = 0x80808080U;
inline constexpr lane_word byte_high = 0x64646464U;
inline constexpr lane_word half_bias = 0x64806480U;

/// Whether an element of 8 bits tells its numbers as binary16; else they are integers.
template <class Element>
inline constexpr bool has_halves = requires(lane_word four) { Element::template halves_of<0>(four); };

/// The numbers of one stored word, in order.
template <class Element, class Number>
PAGEDKV_DEVICE void expand(lane_word stored, registers<lane_word, words_of_stored<typename Element::storage>>& numbers) {
  if constexpr (has_halves<Element>) {
    numbers[0] = Element::template halves_of<0>(stored);
    numbers[1] = Element::template halves_of<1>(stored);
  } else if constexpr (sizeof(typename Element::storage) == 1) {
    const auto biased = stored ^ byte_bias;
    numbers[0] = subtract_pairs<Number>(permute_bytes<0x4140>(biased, byte_high), half_bias);
    numbers[1] = subtract_pairs<Number>(permute_bytes<0x4342>(biased, byte_high), half_bias);
  } else {
    numbers[0] = stored;
  }
}

/// Four bytes of int8, biased by 128, as bfloat16 of 2^-133 times the number that the bits of a byte are. The lowest
/// bit of the exponent goes on where seven bits of a subnormal number end, so that this holds for all eight.
PAGEDKV_DEVICE inline void as_tiny_brains(lane_word stored, registers<lane_word, 2>& numbers) {
  const auto biased = stored ^ byte_bias;
  numbers[0] = permute_bytes<0x4140>(biased, 0);
  numbers[1] = permute_bytes<0x4342>(biased, 0);
}

/// The divisor of numbers of 8 bits when they become bfloat16.
template <class Element>
inline constexpr float brain_divisor = has_halves<Element> ? 1.0F : 64.0F;

/// Factor and summand, twice in a word, that make such a number the integer, divided.
struct brain_factors {
  lane_word factor = 0x7f007f00U;   // 2^127
  lane_word summand = 0xc000c000U;  // -2
};

/// The numbers of a stored word of 8-bit numbers, in order, as bfloat16, which holds all of int8 and float8. Those of
/// int8 are divided by `brain_divisor`.
template <class Element, class Numbers>
PAGEDKV_DEVICE void expand_to_brain(lane_word stored, registers<lane_word, 2>& numbers,
                                    [[maybe_unused]] const brain_factors& factors = {}) {
  using brain = typename Numbers::brain;
  if constexpr (has_halves<Element>) {
    const auto convert = [](lane_word halves) {
      using half = typename Numbers::half;
      return pack<brain>(half::decode(static_cast<typename half::storage>(halves & 0xffffU), 1.0F),
                         half::decode(static_cast<typename half::storage>(halves >> 16), 1.0F));
    };
    numbers[0] = convert(Element::template halves_of<0>(stored));
    numbers[1] = convert(Element::template halves_of<1>(stored));
  } else {
    as_tiny_brains(stored, numbers);
    numbers[0] = multiply_add_pairs<brain>(numbers[0], factors.factor, factors.summand);
    numbers[1] = multiply_add_pairs<brain>(numbers[1], factors.factor, factors.summand);
  }
}

/// Numbers per stored word.
template <class Storage>
inline constexpr int numbers_per_word = 4 / static_cast<int>(sizeof(Storage));

/// Packs the numbers of each dimension of a stored word in two rows as a pair.
template <class Element, class Number>
PAGEDKV_DEVICE void pair_rows(lane_word first, lane_word second,
                              registers<lane_word, numbers_per_word<typename Element::storage>>& pairs) {
  if constexpr (has_halves<Element>) {
    const auto low = permute_bytes<0x5140>(first, second);
    const auto high = permute_bytes<0x7362>(first, second);
    pairs[0] = Element::template halves_of<0>(low);
    pairs[1] = Element::template halves_of<1>(low);
    pairs[2] = Element::template halves_of<0>(high);
    pairs[3] = Element::template halves_of<1>(high);
  } else if constexpr (sizeof(typename Element::storage) == 1) {
    const auto low = permute_bytes<0x5140>(first, second) ^ byte_bias;
    const auto high = permute_bytes<0x7362>(first, second) ^ byte_bias;
    pairs[0] = subtract_pairs<Number>(permute_bytes<0x4140>(low, byte_high), half_bias);
    pairs[1] = subtract_pairs<Number>(permute_bytes<0x4342>(low, byte_high), half_bias);
    pairs[2] = subtract_pairs<Number>(permute_bytes<0x4140>(high, byte_high), half_bias);
    pairs[3] = subtract_pairs<Number>(permute_bytes<0x4342>(high, byte_high), half_bias);
  } else {
    pairs[0] = permute_bytes<0x5410>(first, second);
    pairs[1] = permute_bytes<0x7632>(first, second);
  }
}

/// Packs the numbers of two dimensions in two rows as pairs; the word has both of a row, then both of the other.
template <class Element, class Number>
PAGEDKV_DEVICE void pair_rows(lane_word both, registers<lane_word, 2>& pairs) {
  if constexpr (has_halves<Element>) {
    const auto paired = permute_bytes<0x3120>(both, 0);
    pairs[0] = Element::template halves_of<0>(paired);
    pairs[1] = Element::template halves_of<1>(paired);
  } else {
    const auto biased = both ^ byte_bias;
    pairs[0] = subtract_pairs<Number>(permute_bytes<0x4240>(biased, byte_high), half_bias);
    pairs[1] = subtract_pairs<Number>(permute_bytes<0x4341>(biased, byte_high), half_bias);
  }
}

/// Whether waves of tasks with `Tiles` matrices of columns multiply keys and values as fragments of 16 x 32 bytes, with
/// any order of dimensions. Rows of 64 bytes come so fast that what a wave does for each tile counts; so do tiles that
/// several waves use.
template <class Element, int HeadDim, int Tiles, class Matrix>
inline constexpr bool has_fragments =
    Matrix::columns == 8 && sizeof(typename Element::storage) == 1 && (Tiles == 1 ? HeadDim == 64 : HeadDim > 128);

/// Sizes that follow from element, head dimension and matrix unit.
template <class Element, int HeadDim, class Matrix, bool Fragments = false>
struct tile_shape {
  using storage = typename Element::storage;
  static constexpr bool scaled = Element::scaled;
  static constexpr int number_bytes = static_cast<int>(sizeof(storage));
  static constexpr int row_bytes = HeadDim * number_bytes;
  static constexpr int chunk = vector_bytes / number_bytes;  // numbers of a key that a lane reads at once
  static constexpr int key_chunks = (HeadDim + Matrix::key_parts * chunk - 1) / (Matrix::key_parts * chunk);
  // Chunks of half the size where whole chunks would leave half of the lanes idle.
  static constexpr int value_chunk = HeadDim >= Matrix::value_parts * chunk ? chunk : chunk / 2;
  static constexpr int value_chunks =
      (HeadDim + Matrix::value_parts * value_chunk - 1) / (Matrix::value_parts * value_chunk);
  static constexpr int value_bytes = value_chunk * number_bytes;
  static constexpr int key_words = key_chunks * 4 * words_of_stored<storage>;  // of one query, 16-bit numbers
  static constexpr int products = value_chunk / Matrix::value_dims;            // of one chunk
  static constexpr bool in_fragments = Fragments;
};

/// Reads tiles ahead, over the borders of pieces, for the waves of a share.
template <class Element, int HeadDim, class Matrix, int Stages, int Waves, bool Fragments>
class tile_reader {
  using shape = tile_shape<Element, HeadDim, Matrix, Fragments>;
  using storage = typename Element::storage;

 public:
  using tiles_type = tiles_ahead<shape, Matrix, Stages, Waves>;

  tiles_type tiles;

  /// Looks up the first blocks. `first_byte`: of the share's shared memory; `wave`: of the workgroup.
  PAGEDKV_DEVICE tile_reader(const attention_call& call, const divider<std::int32_t>& block_size,
                             const attention_walk& walk, int first_byte, int wave, int lane)
      : tiles(first_byte, wave, lane), call_(call), block_size_(block_size), walk_(walk), lane_(lane) {
    begin_piece();
    if (!walk_.done && has_whole_tiles()) {
      look_up_batch();
    }
  }

  /// Reads the first tiles ahead.
  PAGEDKV_DEVICE void start() {
    for (auto i = 0; i < tiles.depth; ++i) {
      read_next();
    }
  }

  /// Reads one more tile ahead, if there is one.
  PAGEDKV_DEVICE void read_next() {
    while (!walk_.done && walk_.tile >= walk_.end) {
      walk_.next_piece();
      begin_piece();
    }
    if (!walk_.done) {
      read_tile();
      ++walk_.tile;
    }
    tiles.end_tile();
  }

 private:
  static constexpr int no_batch = -2 * Matrix::lanes;

  // Whether registers suffice to keep the start of a head from tile to tile.
  static constexpr bool keeps_start = Matrix::columns == 8 && HeadDim <= 128;

  PAGEDKV_DEVICE void begin_piece() {
    batch_ = no_batch;
    if (!walk_.done) {
      head_ = walk_.task / walk_.row.num_column_tiles;
      if constexpr (keeps_start) {
        head_start_ = call_.view.block(call_.layer, 0) + bytes_of_head();
      }
      if constexpr (tiles_type::reads_whole) {
        const auto& view = call_.view;
        own_key_ = head_start_ + tiles.own_key(bytes_of_token());
        own_scale_ = view.block(call_.layer, 0) + head_ * static_cast<std::int32_t>(view.scale_head_stride) * 4 +
                     tiles.own_scale(view);
        first_visible_ = first_visible(call_);
      }
    }
  }

  [[nodiscard]] PAGEDKV_DEVICE std::int32_t bytes_of_token() const {
    return static_cast<std::int32_t>(call_.view.token_stride) * static_cast<std::int32_t>(sizeof(storage));
  }

  [[nodiscard]] PAGEDKV_DEVICE std::int32_t bytes_of_head() const {
    return head_ * static_cast<std::int32_t>(call_.view.head_stride) * static_cast<std::int32_t>(sizeof(storage));
  }

  /// A token's block, and the token's offset in it.
  struct token_location {
    std::int32_t block;
    std::int32_t offset;
  };

  /// Lane i of the wave looks up the block of a tile of the list, and as offset its first token.
  PAGEDKV_DEVICE token_location look_up_listed(std::int32_t tile) const {
    const auto& call = read_again(call_);
    const auto token = first_token_of(call, walk_.row, tile);
    auto found = token_location{-1, token};
    if (token >= 0) {
      found.block = static_cast<std::int32_t>(
          load(call.indices + walk_.row.first_index + block_size_.split(token).quotient));
      check(found.block < call.view.num_blocks, "block within the storage");
    }
    return found;
  }

  /// Lane i of the wave looks up the block of token `first + i * step`.
  PAGEDKV_DEVICE token_location look_up(std::int32_t token) const {
    const auto last = walk_.row.num_tokens - 1;
    const auto [block, offset] = block_size_.split(token < last ? token : (last < 0 ? 0 : last));
    auto found = token_location{-1, offset};
    if (last >= 0) {
      const auto& call = read_again(call_);
      found.block = static_cast<std::int32_t>(load(call.indices + walk_.row.first_index + block));
      check(found.block < call.view.num_blocks, "block within the storage");
    }
    return found;
  }

  [[nodiscard]] PAGEDKV_DEVICE bool has_whole_tiles() const {
    return read_again(call_).view.block_size % attention_tile == 0;
  }

  /// Lane i of the wave looks up the block of the i-th tile from the next one on.
  PAGEDKV_DEVICE void look_up_batch() {
    batch_ = walk_.tile;
    const auto tile = walk_.row.first_tile + walk_.tile + lane_;
    batch_location_ = read_again(call_).lists.exist() ? look_up_listed(tile) : look_up(tile * attention_tile);
  }

  PAGEDKV_DEVICE void read_tile() {
    const auto tile = walk_.row.first_tile + walk_.tile;
    const auto first_token = tile * attention_tile;
    // With scales or long rows, the scalar registers of some devices do not suffice for strides and offsets, too.
    const auto& call = shape::scaled || HeadDim > 128 ? read_again(call_) : call_;
    const auto& view = call.view;
    if (has_whole_tiles()) {
      if (walk_.tile >= batch_ + Matrix::lanes || walk_.tile < batch_) {
        look_up_batch();
      }
      const auto block = shuffle(batch_location_.block, walk_.tile - batch_, Matrix::lanes);
      const auto seen_from = read_again(call_).lists.exist()
                                 ? shuffle(batch_location_.offset, walk_.tile - batch_, Matrix::lanes)
                                 : first_token;
      // Elsewhere, the comparison takes scalar registers that some kernels do not have.
      const auto one_tile = Matrix::columns == 8 && view.block_size == attention_tile;
      const auto offset = one_tile ? 0 : block_size_.split(first_token).remainder;
      if constexpr (tiles_type::reads_whole) {
        if (block >= 0 && seen_from >= first_visible_ && seen_from + attention_tile <= walk_.row.num_tokens) {
          const auto start = static_cast<std::int64_t>(static_cast<std::uint32_t>(block)) * view.block_stride;
          const auto of_scales = offset * static_cast<std::int32_t>(view.scale_token_stride) * 4;
          tiles.read_whole(view, own_key_ + (start + offset * bytes_of_token()), own_scale_ + (start + of_scales),
                           bytes_of_token());
          return;
        }
      }
      if constexpr (keeps_start) {
        read_rows_of_block(call, seen_from, block, offset);
      } else {
        const auto* const start = tile_start(call, block, offset);
        read_rows(
            call, seen_from,
            [&](int row) { return start + row * view.token_stride * static_cast<std::int64_t>(sizeof(storage)); },
            [&](int row) { return scale_start(call, block, offset + row); }, block >= 0);
      }
    } else {
      const auto location = look_up(first_token + lane_ % attention_tile);
      const auto of_row = [&](int row) {
        return token_location{shuffle(location.block, row, attention_tile),
                              shuffle(location.offset, row, attention_tile)};
      };
      read_rows(
          call, first_token,
          [&](int row) {
            const auto [block, offset] = of_row(row);
            return tile_start(call, block, offset);
          },
          [&](int row) {
            const auto [block, offset] = of_row(row);
            return scale_start(call, block, offset);
          },
          true);
    }
  }

  /// The rows of a tile from token `offset` of the block on.
  PAGEDKV_DEVICE void read_rows_of_block(const attention_call& call, std::int32_t first_token, std::int32_t block,
                                         std::int32_t offset) {
    const auto& view = call.view;
    const auto token_bytes = static_cast<std::int32_t>(view.token_stride) * static_cast<std::int32_t>(sizeof(storage));
    const auto* const head_in_block =
        head_start_ + static_cast<std::int64_t>(static_cast<std::uint32_t>(block < 0 ? 0 : block)) * view.block_stride;
    read_rows(
        call, first_token, [&](int row) { return head_in_block + (offset + row) * token_bytes; },
        [&](int row) {
          const auto scales = (offset + row) * static_cast<std::int32_t>(view.scale_token_stride) +
                              head_ * static_cast<std::int32_t>(view.scale_head_stride);
          return head_in_block + (scales * 4 - bytes_of_head());
        },
        block >= 0);
  }

  [[nodiscard]] PAGEDKV_DEVICE const std::byte* tile_start(const attention_call& call, std::int32_t block,
                                                         std::int32_t offset) const {
    const auto& view = call.view;
    const auto numbers =
        offset * static_cast<std::int32_t>(view.token_stride) + head_ * static_cast<std::int32_t>(view.head_stride);
    return view.block(call.layer, block < 0 ? 0 : block) +
           static_cast<std::int64_t>(numbers) * static_cast<std::int64_t>(sizeof(storage));
  }

  [[nodiscard]] PAGEDKV_DEVICE const std::byte* scale_start(const attention_call& call, std::int32_t block,
                                                          std::int32_t offset) const {
    const auto& view = call.view;
    const auto scales = offset * static_cast<std::int32_t>(view.scale_token_stride) +
                        head_ * static_cast<std::int32_t>(view.scale_head_stride);
    return view.block(call.layer, block < 0 ? 0 : block) + static_cast<std::int64_t>(scales) * 4;
  }

  template <class RowStart, class ScaleStart>
  PAGEDKV_DEVICE void read_rows(const attention_call& call, std::int32_t first_token, RowStart row_start,
                                ScaleStart start_of_scale, bool present) {
    const auto first = first_visible(call) - first_token;
    const auto end = present ? walk_.row.num_tokens - first_token : 0;
    tiles.read(call.view, row_start, start_of_scale, first, end);
  }

  /// The first token that the row's first query sees. Blocks before its window may have been dropped.
  [[nodiscard]] PAGEDKV_DEVICE std::int32_t first_visible(const attention_call& call) const {
    return first_seen_token(walk_.row.num_tokens - walk_.row.num_queries, call.window);
  }

  const attention_call& call_;
  const divider<std::int32_t>& block_size_;
  attention_walk walk_;
  int lane_;
  std::int32_t head_ = 0;
  const std::byte* head_start_ = nullptr;  // in block 0, if kept
  // For tiles that are read whole: what this lane copies first, in block 0, and the first token that is visible.
  const std::byte* own_key_;
  const std::byte* own_scale_;
  std::int32_t first_visible_;
  std::int32_t batch_ = no_batch;
  token_location batch_location_{};
};

}  // namespace pagedkv::kernels
