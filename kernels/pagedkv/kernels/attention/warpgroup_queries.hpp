#pragma once

// Queries in shared memory for products of warpgroups, for code compiled for sm_90a. Empty for other compilers.

#include <pagedkv/kernels/attention/warpgroup_nvidia.hpp>

#if defined(PAGEDKV_HAS_WARPGROUP_PRODUCTS)

  #include <pagedkv/kernels/attention/result.hpp>
  #include <pagedkv/kernels/attention/walk.hpp>
  #include <pagedkv/kernels/attention/warpgroup_buffers.hpp>

namespace pagedkv::kernels {

/// Puts the queries of pieces into shared memory, and what there is to know of the column of each. `Columns` of a task;
/// `Lanes` work together.
template <class Numbers, class Number, int KeyDim, int Columns, int Lanes>
class warpgroup_queries {
 public:
  using rows = warpgroup_rows<Columns>;

  PAGEDKV_DEVICE warpgroup_queries(const attention_call& call, int index) : call_(call), index_(index) {}

  /// `queries` and `of_columns`: addresses in shared memory. `key_scale`: of all keys. Copies asynchronously where the
  /// queries' numbers are those of products.
  PAGEDKV_DEVICE void put(const attention_piece& piece, unsigned queries, unsigned of_columns, float key_scale) const {
    const auto& call = read_again(call_);
    constexpr auto type = is_bfloat16<Number> ? number_type::bfloat16 : number_type::float16;
    if (call.queries.aligned && call.queries.type == type) {
      copy(call, piece, queries, of_columns, key_scale);
    } else {
      for (auto column = index_ / 32; column < Columns; column += Lanes / 32) {
        convert(call, find_shared_column(call, piece.row, piece.task, column, Columns), column, queries, of_columns,
                key_scale);
      }
    }
  }

 private:
  static constexpr int chunks = KeyDim / 8;

  [[nodiscard]] static PAGEDKV_DEVICE float scale_of(const attention_call& call) {
    return call.soft_cap > 0.0F ? call.scale : call.scale * log2_e;
  }

  /// Eight neighbouring lanes copy 128 neighbouring bytes of a query.
  PAGEDKV_DEVICE void copy(const attention_call& call, const attention_piece& piece, unsigned queries,
                           unsigned of_columns, float key_scale) const {
    for (auto column = index_ / 8; column < Columns; column += Lanes / 8) {
      const auto query = find_shared_column(call, piece.row, piece.task, column, Columns);
      const auto& numbers = call.queries;
      const auto at = query.exists() ? query.token * numbers.token_stride + query.head * numbers.head_stride : 0;
      const auto* const from = static_cast<const std::uint16_t*>(numbers.data) + at;
      PAGEDKV_UNROLL
      for (auto chunk = 0; chunk < chunks; chunk += 8) {
        const auto of_lane = chunk + index_ % 8;
        copy_chunk(queries + rows::at(column, of_lane), from + of_lane * 8,
                   query.exists() && of_lane * 8 < call.view.head_dim);
      }
      if (index_ % 8 == 0) {
        put_column(of_columns, column, {query, scale_of(call) * key_scale});
      }
    }
  }

  /// Divides a query by the largest power of two in it, which keeps it within binary16.
  PAGEDKV_DEVICE void convert(const attention_call& call, const query_column& query, std::int32_t column,
                              unsigned queries, unsigned of_columns, float key_scale) const {
    constexpr auto chunks_of_lane = (chunks + 31) / 32;
    const auto lane = index_ % 32;
    registers<float, chunks_of_lane, 8> numbers;
    read_query<Numbers>(call, query, lane * 8, 32 * 8, numbers);
    auto largest = 0.0F;
    PAGEDKV_UNROLL
    for (auto j = 0; j < chunks_of_lane; ++j) {
      PAGEDKV_UNROLL
      for (auto i = 0; i < 8; ++i) {
        largest = fmaxf(largest, fabsf(numbers[j][i]));
      }
    }
    for (auto distance = 1; distance < 32; distance *= 2) {
      largest = fmaxf(largest, shuffle_xor(largest, distance, 32));
    }
    const auto exponent =
        static_cast<std::int32_t>(static_cast<lane_word>(__builtin_bit_cast(std::int32_t, largest)) >> 23) - 127;
    const auto usual = exponent >= -100 && exponent <= 100 ? exponent : 0;
    const auto down = __builtin_bit_cast(float, (127 - usual) << 23);
    PAGEDKV_UNROLL
    for (auto j = 0; j < chunks_of_lane; ++j) {
      const auto chunk = j * 32 + lane;
      registers<lane_word, 4> words;
      PAGEDKV_UNROLL
      for (auto i = 0; i < 4; ++i) {
        words[i] = pack<Number>(numbers[j][2 * i] * down, numbers[j][2 * i + 1] * down);
      }
      if (chunk < chunks) {
        put_chunk(queries + rows::at(column, chunk), words);
      }
    }
    if (lane == 0) {
      const auto up = __builtin_bit_cast(float, (127 + usual) << 23);
      put_column(of_columns, column, {query, up * scale_of(call) * key_scale});
    }
  }

  const attention_call& call_;
  int index_;
};

}  // namespace pagedkv::kernels

#endif
