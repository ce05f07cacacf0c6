#pragma once

#include <pagedkv/kernels/attention/launcher.hpp>
#include <pagedkv/kernels/attention/matrix.hpp>
#include <pagedkv/kernels/attention/tile_reader.hpp>

namespace pagedkv::kernels {

/// Tokens that a workgroup holds in shared memory at a time: as many whole tiles as fit 32 KiB.
constexpr int stage_tokens(int key_bytes, int value_bytes) noexcept {
  const auto fitting = (32 << 10) / (key_bytes + value_bytes);
  return fitting >= 64 ? 64 : (fitting >= 32 ? 32 : 16);
}

/// Rows in shared memory, in chunks of 16 bytes. Chunks are permuted so that lanes which are served together use
/// different banks: those that read neighbouring chunks of neighbouring rows, and of every second row.
template <int RowBytes, int Rows>
struct shared_rows {
  static constexpr int chunks = RowBytes / vector_bytes;
  static constexpr int count = Rows * chunks;

  shared_array<vector<lane_word, 4>, static_cast<std::size_t>(count)> data;

  [[nodiscard]] static PAGEDKV_DEVICE std::size_t at(int row, int chunk) {
    const auto spread = chunks % 8 != 0 ? chunk : chunk ^ (row / 2 % 4 * 2 ^ row % 2 * 4);
    return static_cast<std::size_t>(row * chunks + spread);
  }

  PAGEDKV_DEVICE void take(int row, int chunk, registers<lane_word, 4>& words) {
    const vector<lane_word, 4> from = data[at(row, chunk)];
    PAGEDKV_UNROLL
    for (auto n = 0; n < 4; ++n) {
      words[n] = from.values[n];
    }
  }
};

/// Scales of the tokens of a stage. Without scales, no byte more than the rows: then two workgroups fit a processor.
template <int Tokens, bool Scaled>
struct shared_scales {};
template <int Tokens>
struct shared_scales<Tokens, true> {
  shared_array<float, static_cast<std::size_t>(Tokens)> keys;
  shared_array<float, static_cast<std::size_t>(Tokens)> values;
};

/// The tokens of a stage. A token that no query of the row sees is replaced by the nearest one that is seen, so no
/// stale NaN enters. `ReadAgain`: where scalar registers do not suffice to keep the call's members.
template <bool ReadAgain>
class stage_location {
 public:
  /// `tile`: of the row, the stage's first.
  PAGEDKV_DEVICE stage_location(const attention_call& call, const divider<std::int32_t>& block_size,
                                const attention_walk& walk, std::int32_t tile)
      : call_(call),
        block_size_(block_size),
        first_index_(walk.row.first_index),
        first_token_((walk.row.first_tile + tile) * attention_tile),
        first_(first_seen_token(walk.row.num_tokens - walk.row.num_queries, call.window)),
        last_(walk.row.num_tokens - 1) {}

  [[nodiscard]] PAGEDKV_DEVICE bool empty() const { return last_ < 0; }

  struct token {
    static constexpr bool exists = true;
    const std::byte* block;
    std::int32_t offset;
  };

  [[nodiscard]] PAGEDKV_DEVICE token find(int row) const {
    const auto wanted = first_token_ + row;
    const auto seen = wanted < first_ ? first_ : wanted;
    const auto nearest = seen > last_ ? last_ : seen;
    const auto [index, offset] = block_size_.split(nearest);
    const auto& call = ReadAgain ? read_again(call_) : call_;
    const auto block = static_cast<std::int32_t>(load(call.indices + first_index_ + index));
    check(block >= 0 && block < call.view.num_blocks, "block within the storage");
    return {call.view.block(call.layer, block), offset};
  }

 private:
  const attention_call& call_;
  const divider<std::int32_t>& block_size_;
  std::int32_t first_index_;
  std::int32_t first_token_;
  std::int32_t first_;
  std::int32_t last_;
};

/// The places of a stage of rows that have lists. A tile that is skipped has no tokens.
class listed_stage_location {
 public:
  PAGEDKV_DEVICE listed_stage_location(const attention_call& call, const divider<std::int32_t>& block_size,
                                       const attention_walk& walk, std::int32_t tile)
      : call_(call), block_size_(block_size), row_(walk.row), first_tile_(walk.row.first_tile + tile) {}

  [[nodiscard]] PAGEDKV_DEVICE bool empty() const { return row_.num_tokens <= 0; }

  struct token {
    bool exists;
    const std::byte* block;
    std::int32_t offset;
  };

  [[nodiscard]] PAGEDKV_DEVICE token find(int row) const {
    const auto& call = read_again(call_);
    const auto last = row_.num_tokens - 1;
    const auto first = first_seen_token(row_.num_tokens - row_.num_queries, call.window);
    const auto place = first_tile_ * attention_tile + row;
    const auto nearest = token_to_read(call, row_, place, first, last);
    const auto exists = nearest >= 0;
    const auto [index, offset] = block_size_.split(exists ? nearest : 0);
    const auto block = static_cast<std::int32_t>(load(call.indices + row_.first_index + index));
    check(!exists || (block >= 0 && block < call.view.num_blocks), "block within the storage");
    return {exists, call.view.block(call.layer, exists ? block : 0), offset};
  }

 private:
  const attention_call& call_;
  const divider<std::int32_t>& block_size_;
  const attention_row& row_;
  std::int32_t first_tile_;
};

/// Calls `use` with the location of the stage at a tile. `TakesLists`: rows may have lists.
template <bool ReadAgain, bool TakesLists, class Use>
PAGEDKV_INLINED_DEVICE void with_stage(const attention_call& call, const divider<std::int32_t>& block_size,
                                       const attention_walk& walk, std::int32_t tile, Use use) {
  if constexpr (TakesLists) {
    if (read_again(call).lists.exist()) {
      use(listed_stage_location(call, block_size, walk, tile));
      return;
    }
  }
  use(stage_location<ReadAgain>(call, block_size, walk, tile));
}

/// The rows of a stage on their way to shared memory, in the registers of a workgroup's lanes. `Whole`: rows have no
/// fewer numbers than their shape.
template <class Shape, int Tokens, int Lanes, bool Whole>
class row_copies {
  static constexpr int chunks = Shape::row_bytes / vector_bytes;
  static constexpr int count = (Tokens * chunks + Lanes - 1) / Lanes;

 public:
  /// Rows start `offset` bytes after their block, plus strides in numbers. Bytes past the end of a row are zeros.
  template <class Location>
  PAGEDKV_DEVICE void read(const Location& where, int lane, std::int64_t offset, std::int32_t dim,
                           std::int64_t token_stride, std::int32_t of_head) {
    PAGEDKV_UNROLL
    for (auto i = 0; i < count; ++i) {
      const auto at = i * Lanes + lane;
      const auto chunk = at % chunks;
      words_[i] = {};
      if (exists(i, at) && !where.empty() && (Whole || chunk * vector_bytes < dim * Shape::number_bytes)) {
        const auto token = where.find(at / chunks);
        const auto number = token.offset * static_cast<std::int32_t>(token_stride) + of_head;
        const auto* const row = token.block + offset + static_cast<std::int64_t>(number) * Shape::number_bytes;
        if (token.exists) {
          words_[i] = load_vector<4>(reinterpret_cast<const lane_word*>(row) + chunk * 4);
        }
      }
    }
  }

  template <class Rows>
  PAGEDKV_DEVICE void put(Rows& rows, int lane) const {
    PAGEDKV_UNROLL
    for (auto i = 0; i < count; ++i) {
      const auto at = i * Lanes + lane;
      if (exists(i, at)) {
        rows.data[Rows::at(at / chunks, at % chunks)] = words_[i];
      }
    }
  }

 private:
  [[nodiscard]] static PAGEDKV_DEVICE bool exists(int i, int at) {
    return (i + 1) * Lanes <= Tokens * chunks || at < Tokens * chunks;
  }

  registers<vector<lane_word, 4>, count> words_;
};

/// Stages of tokens that the lanes of a workgroup copy to shared memory together: the next stage is in their registers
/// while the current one is used. Values may have rows of their own.
template <class Element, int KeyDim, int ValueDim, class Matrix, int Waves>
class group_tiles {
  using keys = tile_shape<Element, KeyDim, Matrix>;
  using values = tile_shape<Element, ValueDim, Matrix>;
  static constexpr int lanes = Waves * Matrix::lanes;

 public:
  static constexpr int tokens = stage_tokens(keys::row_bytes, values::row_bytes);
  static constexpr int tiles = tokens / attention_tile;
  static constexpr bool takes_lists = group_takes_lists(Matrix::lanes == 64);

  struct memory : shared_scales<tokens, Element::scaled> {
    shared_rows<keys::row_bytes, tokens> key_rows;
    shared_rows<values::row_bytes, tokens> value_rows;
  };

  PAGEDKV_DEVICE group_tiles(const attention_call& call, const divider<std::int32_t>& block_size, memory& shared,
                             int lane_of_group)
      : call_(call),
        block_size_(block_size),
        shared_(shared),
        index_(lane_of_group),
        lane_(lane_of_group % Matrix::lanes) {}

  /// Starts to read the stage at a tile of the walk's row. Inlined, because a call would move the tiles to memory.
  PAGEDKV_INLINED_DEVICE void read(const attention_walk& walk, std::int32_t tile) {
    with_stage<Element::scaled, takes_lists>(call_, block_size_, walk, tile,
                                             [&](const auto& where) { read_at(where, walk); });
  }

  /// Puts the stage that was read into shared memory. Between barriers of the workgroup.
  PAGEDKV_DEVICE void put() {
    next_keys_.put(shared_.key_rows, index_);
    next_values_.put(shared_.value_rows, index_);
    if constexpr (Element::scaled) {
      if (index_ < tokens) {
        shared_.keys[static_cast<std::size_t>(index_)] = next_key_scale_;
        shared_.values[static_cast<std::size_t>(index_)] = next_value_scale_;
      }
    }
  }

  /// Selects a tile of the stage for the functions below.
  PAGEDKV_DEVICE void select(int tile) { first_row_ = tile * attention_tile; }

  /// Chunk `j` of the `i`-th key that this lane uses.
  PAGEDKV_DEVICE void take_key(int i, int j, registers<lane_word, 4>& words) const {
    const auto chunk = j * Matrix::key_parts + Matrix::key_part(lane_);
    shared_.key_rows.take(first_row_ + Matrix::key_row(lane_, i), chunk, words);
  }

  PAGEDKV_DEVICE void take_value(int i, int j, registers<lane_word, 4>& words) const {
    const auto first = (j * Matrix::value_parts + Matrix::value_part(lane_)) * values::value_bytes;
    registers<lane_word, 4> chunk;
    shared_.value_rows.take(first_row_ + Matrix::value_row(lane_, i), first / vector_bytes, chunk);
    const auto upper = values::value_bytes < vector_bytes && first % vector_bytes != 0;
    PAGEDKV_UNROLL
    for (auto n = 0; n < values::value_bytes / 4; ++n) {
      words[n] = upper ? chunk[(n + values::value_bytes / 4) % 4] : chunk[n];
    }
  }

  [[nodiscard]] PAGEDKV_DEVICE vector<float, 2> scales_of(int /*n*/, int i) const {
    const auto row = static_cast<std::size_t>(first_row_ + Matrix::score_row(lane_, i));
    return {{shared_.keys[row], shared_.values[row]}};
  }

 private:
  template <class Location>
  PAGEDKV_INLINED_DEVICE void read_at(const Location& where, const attention_walk& walk) {
    const auto& call = read_again(call_);
    const auto& view = call.view;
    const auto head = walk.task / walk.row.num_column_tiles;
    next_keys_.read(where, index_, 0, view.head_dim, view.token_stride,
                    head * static_cast<std::int32_t>(view.head_stride));
    const auto own = view.has_own_values();
    next_values_.read(where, index_, view.value_offset, call.output.dim,
                      own ? view.value_token_stride : view.token_stride,
                      head * static_cast<std::int32_t>(own ? view.value_head_stride : view.head_stride));
    if constexpr (Element::scaled) {
      next_key_scale_ = next_value_scale_ = 0.0F;
      if (index_ < tokens && !where.empty()) {
        const auto token = where.find(index_);
        const auto& scales = read_again(call_).view;
        const auto at = token.offset * static_cast<std::int32_t>(scales.scale_token_stride) +
                        head * static_cast<std::int32_t>(scales.scale_head_stride);
        // Those of a token that does not exist may hold any bits.
        next_key_scale_ = load(reinterpret_cast<const float*>(token.block + scales.key_scale_offset) + at);
        next_value_scale_ = load(reinterpret_cast<const float*>(token.block + scales.value_scale_offset) + at);
      }
    }
  }

  const attention_call& call_;
  const divider<std::int32_t>& block_size_;
  memory& shared_;
  int index_;
  int lane_;
  int first_row_ = 0;
  row_copies<keys, tokens, lanes, false> next_keys_;
  row_copies<values, tokens, lanes, false> next_values_;
  float next_key_scale_ = 0.0F;
  float next_value_scale_ = 0.0F;
};

}  // namespace pagedkv::kernels
