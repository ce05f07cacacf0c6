#pragma once

// Empty for other compilers.
#if defined(__CUDACC__) && !defined(__HIPCC__)

  #include <pagedkv/attention/plan_layout.hpp>
  #include <pagedkv/kernels/attention/lane_maps.hpp>
  #include <pagedkv/kernels/platform.hpp>
  #include <pagedkv/storage/view.hpp>

  #include <type_traits>

namespace pagedkv::kernels {

/// Reads memory that another kernel may have written since this one started.
template <int N>
[[nodiscard]] PAGEDKV_DEVICE vector<float, N> load_fresh(const float* from) {
  auto numbers = vector<float, N>{};
  if constexpr (N == 4) {
    asm volatile("ld.global.cg.v4.f32 {%0,%1,%2,%3}, [%4];"
                 : "=f"(numbers.values[0]), "=f"(numbers.values[1]), "=f"(numbers.values[2]), "=f"(numbers.values[3])
                 : "l"(from));
  } else {
    asm volatile("ld.global.cg.v2.f32 {%0,%1}, [%2];" : "=f"(numbers.values[0]), "=f"(numbers.values[1]) : "l"(from));
  }
  return numbers;
}

/// Loads before this call are issued before one of them is waited for. The compiler moves none past it; without it, it
/// delays some to save registers. Every lane of the wave takes part.
PAGEDKV_DEVICE inline void issue_loads() { __syncwarp(); }

[[nodiscard]] PAGEDKV_DEVICE inline float power_of_two(float exponent) {
  auto power = 0.0F;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(exponent));
  return power;
}

/// Minus infinity for numbers below 2^-126.
[[nodiscard]] PAGEDKV_DEVICE inline float binary_logarithm(float number) {
  auto logarithm = 0.0F;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(logarithm) : "f"(number));
  return logarithm;
}

/// Bytes chosen from `low` (0 to 3) and `high` (4 to 7); each hexadecimal digit of `Selector` names one, lowest first.
template <unsigned Selector>
[[nodiscard]] PAGEDKV_DEVICE lane_word permute_bytes(lane_word low, lane_word high) {
  return __byte_perm(low, high, Selector);
}

/// The differences of two pairs of numbers. Those of bfloat16 need compute capability 9.0.
template <class Number>
[[nodiscard]] PAGEDKV_DEVICE lane_word subtract_pairs(lane_word a, lane_word b) {
  auto difference = lane_word{};
  if constexpr (is_bfloat16<Number>) {
    asm("sub.bf16x2 %0, %1, %2;" : "=r"(difference) : "r"(a), "r"(b));
  } else {
    asm("sub.f16x2 %0, %1, %2;" : "=r"(difference) : "r"(a), "r"(b));
  }
  return difference;
}

/// The products of two pairs of bfloat16. They need compute capability 9.0.
[[nodiscard]] PAGEDKV_DEVICE inline lane_word multiply_brains(lane_word a, lane_word b) {
  auto product = lane_word{};
  asm("mul.bf16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
  return product;
}

template <class Number>
[[nodiscard]] PAGEDKV_DEVICE lane_word multiply_add_pairs(lane_word a, lane_word b, lane_word c) {
  static_assert(is_bfloat16<Number>);
  auto sum = lane_word{};
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(sum) : "r"(a), "r"(b), "r"(c));
  return sum;
}

/// Two numbers rounded and packed, the first in the lower half.
template <class Number>
[[nodiscard]] PAGEDKV_DEVICE lane_word pack(float first, float second) {
  auto packed = lane_word{};
  if constexpr (is_bfloat16<Number>) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(second), "f"(first));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(second), "f"(first));
  }
  return packed;
}

struct matrix_unit {
  static constexpr bool available = true;

  template <class Number>
  static PAGEDKV_DEVICE void multiply_16x8(float (&into)[4], const lane_word (&a)[4], const lane_word (&b)[2]) {
    if constexpr (is_bfloat16<Number>) {
      asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
          : "+f"(into[0]), "+f"(into[1]), "+f"(into[2]), "+f"(into[3])
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    } else {
      asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
          : "+f"(into[0]), "+f"(into[1]), "+f"(into[2]), "+f"(into[3])
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    }
  }

  /// Products of bytes: signed ones by signed or unsigned ones.
  template <bool Signed>
  static PAGEDKV_DEVICE void multiply_bytes_16x8(std::int32_t (&into)[4], const lane_word (&a)[4],
                                                 const lane_word (&b)[2]) {
    if constexpr (Signed) {
      asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
          : "+r"(into[0]), "+r"(into[1]), "+r"(into[2]), "+r"(into[3])
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    } else {
      asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.u8.s32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
          : "+r"(into[0]), "+r"(into[1]), "+r"(into[2]), "+r"(into[3])
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    }
  }

  [[nodiscard]] static PAGEDKV_DEVICE lane_word transpose_8x8(lane_word pair) {
    auto transposed = lane_word{};
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(transposed) : "r"(pair));
    return transposed;
  }
};

/// Tiles that the waves of a share read ahead into shared memory, copied there asynchronously. Eight neighbouring lanes
/// copy 128 neighbouring bytes; later, each lane reads the rows and chunks that its matrix instructions need. Chunks of
/// 16 bytes are permuted so that lanes served in the same cycle use different banks.
template <class Shape, class Matrix, int Stages, int Waves>
class tiles_ahead {
 public:
  /// Whether `read_whole` reads tiles.
  static constexpr bool reads_whole = Shape::in_fragments && Shape::row_bytes == 64;
  static constexpr int at_once = reads_whole ? 2 : 1;          // tiles that may be processed together
  static constexpr int depth = Stages - at_once;               // tiles in flight while these are processed
  static constexpr int tile_bytes =
      2 * attention_tile * Shape::row_bytes + (Shape::scaled ? 2 * attention_tile * 4 : 0);
  static_assert(!reads_whole || Waves == 1);

  /// `first_byte`: of the share's shared memory, `Stages` times `tile_bytes`; `wave`: of the workgroup.
  PAGEDKV_DEVICE tiles_ahead(int first_byte, int wave, int lane)
      : lane_(lane), copying_lane_(wave % Waves * 32 + lane), barrier_(1 + wave / Waves) {
    base_ = static_cast<unsigned>(__cvta_generic_to_shared(dynamic_shared<lane_word>(0, 0).values)) +
            static_cast<unsigned>(first_byte);
    if constexpr (Shape::in_fragments) {
      find_places();
    }
  }

  /// Bytes from a tile's first key to the first that this lane copies.
  [[nodiscard]] PAGEDKV_DEVICE std::int32_t own_key(std::int32_t token_bytes) const {
    return lane_ / chunks * token_bytes + lane_ % chunks * 16;
  }

  /// Bytes from where the key scales of a tile would be at the start of a block's layer to the scale that this lane
  /// copies.
  [[nodiscard]] PAGEDKV_DEVICE std::int64_t own_scale(const block_storage_view& view) const {
    const auto offset = lane_ < attention_tile ? view.key_scale_offset : view.value_scale_offset;
    return offset + lane_ % attention_tile * static_cast<std::int32_t>(view.scale_token_stride) * 4;
  }

  /// Starts to read a tile all of whose rows are visible. `key` and `scale`: what this lane copies first.
  PAGEDKV_DEVICE void read_whole(const block_storage_view& view, const std::byte* key, const std::byte* scale,
                                 std::int32_t token_bytes) {
    const auto bytes = lane_ % chunks * 16 < view.head_dim * Shape::number_bytes ? 16 : 0;
    const auto* const value = key + view.value_offset;
    const auto to = places_.put_row + fill_;
    PAGEDKV_UNROLL
    for (auto i = 0; i < attention_tile / rows_at_once; ++i) {
      const auto later = static_cast<unsigned>(i * rows_at_once * Shape::row_bytes);
      copy(to + later, key + i * rows_at_once * token_bytes, bytes);
      copy(to + values_after_keys + later, value + i * rows_at_once * token_bytes, bytes);
    }
    if constexpr (Shape::scaled) {
      asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(places_.put_scale + fill_), "l"(scale));
    }
  }

  /// Starts to read a tile; rows `first_row` to `end` are visible, and zeros replace the others. `row_start(row)` is
  /// the address of a row's keys, `scale_start(row)` that of its key scale.
  template <class RowStart, class ScaleStart>
  PAGEDKV_DEVICE void read(const block_storage_view& view, RowStart row_start, ScaleStart scale_start, int first_row,
                           int end) {
    const auto valid = [=](int row) { return row >= first_row && row < end; };
    const auto chunk = copying_lane_ % chunks;
    const auto within = chunk * 16 < view.head_dim * Shape::number_bytes;
    const auto first = copying_lane_ / chunks;
    PAGEDKV_UNROLL
    for (auto i = 0; i < attention_tile / rows_at_once; ++i) {
      const auto row = first + i * rows_at_once;
      const auto* const from = row_start(row) + chunk * 16;
      const auto bytes = within && valid(row) ? 16 : 0;
      copy(keys(fill_, row, chunk), from, bytes);
      copy(values(fill_, row, chunk), from + view.value_offset, bytes);
    }
    if constexpr (Shape::scaled) {
      const auto row = lane_ % attention_tile;
      const auto* const from =
          scale_start(row) + (lane_ < attention_tile ? view.key_scale_offset : view.value_scale_offset);
      if (Waves == 1 || copying_lane_ < 32) {
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(scales(fill_, lane_)), "l"(from),
                     "r"(valid(row) ? 4 : 0));
      }
    }
  }

  /// Closes a tile's group of reads, also when it is empty.
  PAGEDKV_DEVICE void end_tile() {
    asm volatile("cp.async.commit_group;" ::: "memory");
    fill_ = next(fill_);
  }

  /// Waits for the oldest tile in flight, which becomes the current one.
  PAGEDKV_DEVICE void begin_tile() {
    asm volatile("cp.async.wait_group %0;" ::"n"(depth - 1) : "memory");
    meet();
    current_ = following_;
    following_ = next(following_);
  }

  /// The same for one tile or `at_once`, of which the first is the current one.
  PAGEDKV_DEVICE void begin_tiles(int count) {
    asm volatile("cp.async.wait_group %0;" ::"n"(depth - at_once) : "memory");
    meet();
    current_ = following_;
    second_ = next(following_);
    following_ = count > 1 ? next(second_) : second_;
  }

  /// Offset of the stage that the next tile will be read into.
  [[nodiscard]] PAGEDKV_DEVICE std::size_t unused() const { return fill_; }

  /// Waits until all waves of the share have used the current tile; then its shared memory is free.
  PAGEDKV_DEVICE void release() const { meet(); }

  /// Chunk `j` of the `i`-th key that this lane reads.
  PAGEDKV_DEVICE void take_key(int i, int j, lane_word (&words)[4]) const {
    take(keys(current_, Matrix::key_row(lane_, i), j * Matrix::key_parts + Matrix::key_part(lane_)), words);
  }

  /// Fragment `j` of the keys of tile `n`: bytes of 32 dimensions, as a product takes them. Word i: four numbers of the
  /// lane's row i % 2 of keys, from dimension (2 * j + i / 2) * 16 + 4 * part on.
  PAGEDKV_DEVICE void take_key_fragment(int n, int j, lane_word (&words)[4]) const {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(place_of_fragment(n, j)));
  }

  /// The same of values: bytes of 32 dimensions. Word i: two numbers of two tokens, of rows i % 2 * 2 and on
  /// of those whose values a lane takes, from dimension (2 * j + i / 2) * 16 + 2 * part on.
  PAGEDKV_DEVICE void take_value_fragment(int n, int j, lane_word (&words)[4]) const {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(place_of_fragment(n, j) + values_after_keys));
  }

  PAGEDKV_DEVICE void take_value(int i, int j, lane_word (&words)[4]) const {
    const auto first = (j * Matrix::value_parts + Matrix::value_part(lane_)) * Shape::value_bytes;
    const auto at = values(current_, Matrix::value_row(lane_, i), first / 16) + static_cast<unsigned>(first % 16);
    if constexpr (Shape::value_bytes == 16) {
      take(at, words);
    } else {
      asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];" : "=r"(words[0]), "=r"(words[1]) : "r"(at));
    }
  }

  /// Scales of key and value of the `i`-th token whose scores this lane holds.
  [[nodiscard]] PAGEDKV_DEVICE vector<float, 2> scales_of(int n, int i) const {
    auto scale = vector<float, 2>{};
    if constexpr (Shape::in_fragments) {
      asm volatile("ld.shared.v2.f32 {%0,%1}, [%2];"
                   : "=f"(scale.values[0]), "=f"(scale.values[1])
                   : "r"(places_.take_scales + stage_of(n) + static_cast<unsigned>(i * 64)));
    } else {
      const auto key = scales(current_, Matrix::score_row(lane_, i));
      asm volatile("ld.shared.f32 %0, [%1];" : "=f"(scale.values[0]) : "r"(key));
      asm volatile("ld.shared.f32 %0, [%1];" : "=f"(scale.values[1]) : "r"(key + attention_tile * 4));
    }
    return scale;
  }

 private:
  static constexpr int chunks = Shape::row_bytes / 16;
  static constexpr int rows_at_once = Waves * 32 / chunks;
  static constexpr unsigned stage_bytes = tile_bytes;

  static constexpr unsigned values_after_keys = attention_tile * Shape::row_bytes;

  static constexpr int fragments_of_line = Shape::row_bytes < 128 ? 2 : 4;  // of 128 bytes, or of a shorter row

  /// Where this lane puts and takes what is in the first stage.
  struct places {
    unsigned put_row;
    unsigned put_scale;
    registers<unsigned, fragments_of_line> fragment;
    unsigned take_scales;
  };

  PAGEDKV_DEVICE void find_places() {
    places_.put_row = kept(keys(0, lane_ / chunks, lane_ % chunks));
    places_.put_scale = kept(scales(0, lane_));
    // Lane i says where row i % 8 of matrix i / 8 is.
    const auto row = lane_ % 16;
    PAGEDKV_UNROLL
    for (auto j = 0; j < fragments_of_line; ++j) {
      places_.fragment[j] = kept(keys(0, row, j * 2 + lane_ / 16));
    }
    places_.take_scales = kept(scales(0, Matrix::score_row(lane_, 0)));
  }

  /// Returns the number, which the compiler then keeps in a register and does not compute again.
  [[nodiscard]] static PAGEDKV_DEVICE unsigned kept(unsigned number) {
    asm volatile("" : "+r"(number));
    return number;
  }

  PAGEDKV_DEVICE void meet() const {
    if constexpr (Waves == 1) {
      __syncwarp();
    } else {
      asm volatile("bar.sync %0, %1;" ::"r"(barrier_), "n"(Waves * 32) : "memory");
    }
  }

  [[nodiscard]] PAGEDKV_DEVICE unsigned stage_of(int n) const { return n == 0 ? current_ : second_; }

  [[nodiscard]] PAGEDKV_DEVICE unsigned place_of_fragment(int n, int j) const {
    const auto line = static_cast<unsigned>(j / fragments_of_line * 128);
    return places_.fragment[j % fragments_of_line] + stage_of(n) + line;
  }

  [[nodiscard]] static PAGEDKV_DEVICE unsigned next(unsigned stage) {
    return stage == (Stages - 1) * stage_bytes ? 0 : stage + stage_bytes;
  }
  [[nodiscard]] PAGEDKV_DEVICE unsigned keys(unsigned stage, int row, int chunk) const {
    const auto in_rows = chunks >= 8 ? row % 2 * 4 : 0;
    const auto of_fragments = chunks >= 8 ? row % 8 : row / 2 % 4;
    const auto spread = chunk ^ (Shape::in_fragments ? of_fragments : in_rows);
    return base_ + stage + static_cast<unsigned>(row * Shape::row_bytes + spread * 16);
  }
  [[nodiscard]] PAGEDKV_DEVICE unsigned values(unsigned stage, int row, int chunk) const {
    if constexpr (Shape::in_fragments) {
      return keys(stage, row, chunk) + values_after_keys;
    } else {
      // Two rows of 64 bytes share a line of all banks.
      constexpr auto rows_of_line = chunks >= 8 ? 1 : 8 / chunks;
      const auto spread = (row % rows_of_line * chunks + chunk) ^ row / 2 % 4 * 2;
      const auto line = attention_tile + row - row % rows_of_line;
      return base_ + stage + static_cast<unsigned>(line * Shape::row_bytes + spread * 16);
    }
  }
  [[nodiscard]] PAGEDKV_DEVICE unsigned scales(unsigned stage, int i) const {
    // In fragments, those of a token's key and value are neighbours.
    const auto place = Shape::in_fragments ? i % attention_tile * 2 + i / attention_tile : i;
    return base_ + stage + static_cast<unsigned>(2 * attention_tile * Shape::row_bytes + place * 4);
  }

  static PAGEDKV_DEVICE void copy(unsigned to, const std::byte* from, int bytes) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes));
  }
  static PAGEDKV_DEVICE void take(unsigned from, lane_word (&words)[4]) {
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(from));
  }

  int lane_;
  int copying_lane_;  // among those of the share
  int barrier_;       // of the share's waves
  unsigned base_;
  unsigned fill_ = 0;
  unsigned following_ = 0;
  unsigned current_ = 0;
  unsigned second_ = 0;
  places places_;
};

[[nodiscard]] inline int current_wave_size() { return 32; }

/// Calls `use(number of matrices side by side, matrix)` for tasks with this many columns.
template <class Use>
[[nodiscard]] runtime::status with_matrix(std::int32_t columns, Use use) {
  if (columns == 8) {
    return use(std::integral_constant<int, 1>{}, matrix_wave32<matrix_unit>{});
  }
  return columns == 16 ? use(std::integral_constant<int, 2>{}, matrix_wave32<matrix_unit>{})
                       : runtime::error_invalid_value;
}

/// Calls `use(matrix)` for the current device.
template <class Use>
[[nodiscard]] runtime::status with_matrix_of_device(Use use) {
  return use(matrix_wave32<matrix_unit>{});
}

}  // namespace pagedkv::kernels

#endif
