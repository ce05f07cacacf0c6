#pragma once

#include <pagedkv/attention/plan_layout.hpp>
#include <pagedkv/kernels/attention/lane_maps.hpp>
#include <pagedkv/kernels/attention/lane_word.hpp>
#include <pagedkv/kernels/attention/own_tiles.hpp>
#include <pagedkv/kernels/platform.hpp>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace pagedkv::kernels {

template <int N>
[[nodiscard]] vector<float, N> load_fresh(const float* from) {
  return load_vector<N>(from);
}

inline void issue_loads() {}

[[nodiscard]] inline float power_of_two(float exponent) { return std::exp2(exponent); }
[[nodiscard]] inline float binary_logarithm(float number) { return std::log2(number); }

template <unsigned Selector>
[[nodiscard]] lane_word permute_bytes(lane_word low, lane_word high) {
  const auto both = std::uint64_t{high} << 32 | low;
  auto chosen = lane_word{0};
  for (auto i = 0U; i < 4; ++i) {
    chosen |= static_cast<lane_word>(both >> (Selector >> 4 * i & 7U) * 8 & 0xffU) << 8 * i;
  }
  return chosen;
}

/// One of the two numbers of a word.
template <class Number>
[[nodiscard]] float number_of(lane_word packed, int i) {
  return Number::decode(static_cast<typename Number::storage>(packed >> 16 * i & 0xffffU), 1.0F);
}

template <class Number>
[[nodiscard]] lane_word pack(float first, float second) {
  return Number::encode(first, 1.0F) | lane_word{Number::encode(second, 1.0F)} << 16;
}

template <class Number>
[[nodiscard]] lane_word subtract_pairs(lane_word a, lane_word b) {
  return pack<Number>(number_of<Number>(a, 0) - number_of<Number>(b, 0),
                      number_of<Number>(a, 1) - number_of<Number>(b, 1));
}

/// float64 holds the sum of the numbers that kernels add.
template <class Number>
[[nodiscard]] lane_word multiply_add_pairs(lane_word a, lane_word b, lane_word c) {
  static_assert(is_bfloat16<Number>);
  const auto numbers = [](lane_word pair, int i) {
    return double{__builtin_bit_cast(float, i == 0 ? pair << 16 : pair & 0xffff0000U)};
  };
  auto sums = lane_word{0};
  for (auto i = 0; i < 2; ++i) {
    const auto sum = static_cast<float>(numbers(a, i) * numbers(b, i) + numbers(c, i));
    const auto bits = __builtin_bit_cast(lane_word, sum);
    sums |= (bits + 0x7fffU + (bits >> 16 & 1U)) >> 16 << 16 * i;
  }
  return sums;
}

/// Emulates the matrix instructions of every kind, wmma as RDNA 4 has it: lanes exchange their operands through the
/// executor.
struct matrix_unit {
  static constexpr bool available = true;

  template <class Number>
  static void multiply_16x8(float (&into)[4], const lane_word (&a)[4], const lane_word (&b)[2],
                            const executor::call_site& where = executor::call_site::current()) {
    multiply<Number>(
        into, a, b, [](int lane, int i) { return lane / 4 + i / 2 * 8; },
        [](int lane, int i) { return lane % 4 * 2 + i % 2; },
        [](int row, int k) {
          return position{row % 8 * 4 + k % 8 / 2, row / 8 + k / 8 * 2};
        },
        [](int k, int column) {
          return position{column * 4 + k % 8 / 2, k / 8};
        },
        where);
  }

  template <bool Signed>
  static void multiply_bytes_16x8(std::int32_t (&into)[4], const lane_word (&a)[4], const lane_word (&b)[2],
                                  const executor::call_site& where = executor::call_site::current()) {
    struct words {
      const lane_word* a;
      const lane_word* b;
    };
    const auto own = words{a, b};
    auto& group = executor::here();
    const auto lane = static_cast<int>(executor::lane_in_wave());
    group.meet_wave(reinterpret_cast<std::uintptr_t>(&own), group.work().wave_size, where);
    const auto of_lane = [&](int other) {
      return *reinterpret_cast<const words*>(group.exchanged(static_cast<std::uint32_t>(other)));
    };
    for (auto i = 0; i < 4; ++i) {
      for (auto k = 0; k < 32; ++k) {
        const auto key = of_lane(lane / 4 * 4 + k % 16 / 4).a[i / 2 + k / 16 * 2] >> k % 4 * 8 & 0xffU;
        const auto query = of_lane((lane % 4 * 2 + i % 2) * 4 + k % 16 / 4).b[k / 16] >> k % 4 * 8 & 0xffU;
        into[i] += std::int32_t{static_cast<std::int8_t>(key)} *
                   (Signed ? std::int32_t{static_cast<std::int8_t>(query)} : static_cast<std::int32_t>(query));
      }
    }
    // No lane may write its next operands before all lanes have read these.
    group.meet_wave(0, group.work().wave_size, where);
  }

  template <class Number>
  static void multiply_16x16(float (&into)[4], const lane_word (&a)[2], const lane_word (&b)[2],
                             const executor::call_site& where = executor::call_site::current()) {
    multiply<Number>(
        into, a, b, [](int lane, int i) { return lane / 16 * 4 + i; }, [](int lane, int /*i*/) { return lane % 16; },
        [](int row, int k) {
          return position{row + k / 4 * 16, k % 4 / 2};
        },
        [](int k, int column) {
          return position{column + k / 4 * 16, k % 4 / 2};
        },
        where);
  }

  [[nodiscard]] static int sum_row(int lane, int i) { return i + lane / 16 * 8; }

  template <class Number>
  static void multiply_16x16_halves(float (&into)[8], const lane_word (&a)[4], const lane_word (&b)[4],
                                    const executor::call_site& where = executor::call_site::current()) {
    multiply<Number>(
        into, a, b, sum_row, [](int lane, int /*i*/) { return lane % 16; },
        [](int row, int k) {
          return position{row + k / 8 * 16, k % 8 / 2};
        },
        [](int k, int column) {
          return position{column + k / 8 * 16, k % 8 / 2};
        },
        where);
  }

  /// Transposes 8 x 8 numbers; four lanes hold a row.
  [[nodiscard]] static lane_word transpose_8x8(lane_word pair,
                                               const executor::call_site& where = executor::call_site::current()) {
    auto& group = executor::here();
    group.meet_wave(pair, group.work().wave_size, where);
    const auto lane = static_cast<int>(executor::lane_in_wave());
    const auto number = [&](int row, int column) {
      const auto of_row = static_cast<lane_word>(group.exchanged(static_cast<std::uint32_t>(row * 4 + column / 2)));
      return of_row >> column % 2 * 16 & 0xffffU;
    };
    return number(lane % 4 * 2, lane / 4) | number(lane % 4 * 2 + 1, lane / 4) << 16;
  }

 private:
  struct position {
    int lane;
    int register_index;
  };

  /// The numbers that a lane holds, two of each of its words.
  struct operands {
    const float* a;
    const float* b;
  };

  template <class Number, std::size_t Words>
  [[nodiscard]] static std::array<float, 2 * Words> unpack(const lane_word (&words)[Words]) {
    auto numbers = std::array<float, 2 * Words>{};
    for (auto i = std::size_t{0}; i < 2 * Words; ++i) {
      numbers[i] = number_of<Number>(words[i / 2], static_cast<int>(i % 2));
    }
    return numbers;
  }

  /// Computes the sum over k of a[row][k] * b[k][column]. The functions map a lane's sums to rows and columns, and
  /// operands to lanes.
  template <class Number, std::size_t Sums, std::size_t WordsOfA, std::size_t WordsOfB, class RowOf, class ColumnOf,
            class PositionOfA, class PositionOfB>
  static void multiply(float (&into)[Sums], const lane_word (&a)[WordsOfA], const lane_word (&b)[WordsOfB],
                       RowOf row_of, ColumnOf column_of, PositionOfA position_of_a, PositionOfB position_of_b,
                       const executor::call_site& where) {
    const auto own_a = unpack<Number>(a);
    const auto own_b = unpack<Number>(b);
    const auto own = operands{own_a.data(), own_b.data()};
    auto& group = executor::here();
    const auto lane = static_cast<int>(executor::lane_in_wave());
    const auto wave_size = group.work().wave_size;
    group.meet_wave(reinterpret_cast<std::uintptr_t>(&own), wave_size, where);
    const auto* const brought = group.exchanged_up_to(wave_size - 1);
    const auto of_lane = [&](int other) { return reinterpret_cast<const operands*>(brought[other]); };
    for (auto i = 0; i < static_cast<int>(Sums); ++i) {
      const auto row = row_of(lane, i);
      const auto column = column_of(lane, i);
      for (auto k = 0; k < 16; ++k) {
        const auto in_a = position_of_a(row, k);
        const auto in_b = position_of_b(k, column);
        into[i] += of_lane(in_a.lane)->a[in_a.register_index * 2 + k % 2] *
                   of_lane(in_b.lane)->b[in_b.register_index * 2 + k % 2];
      }
    }
    // No lane may write its next operands before all lanes have read these.
    group.meet_wave(0, wave_size, where);
  }
};

template <class Shape, class Matrix, int Stages, int Waves>
using tiles_ahead = own_tiles<Shape, Matrix>;

/// The wave size of the current device.
[[nodiscard]] inline int current_wave_size() {
  return static_cast<int>(executor::wave_sizes[static_cast<std::size_t>(executor::current_device())]);
}

/// Calls `use(number of matrices side by side, matrix)` for tasks with this many columns.
template <class Use>
[[nodiscard]] runtime::status with_matrix(std::int32_t columns, Use use) {
  using enum runtime::matrix_instructions;
  const auto kind = executor::matrices[static_cast<std::size_t>(executor::current_device())];
  if (kind == mma && columns == 8) {
    return use(std::integral_constant<int, 1>{}, matrix_wave32<matrix_unit>{});
  }
  if (kind == mma && columns == 16) {
    return use(std::integral_constant<int, 2>{}, matrix_wave32<matrix_unit>{});
  }
  if (columns != 16) {
    return runtime::error_invalid_value;
  }
  return kind == mfma ? use(std::integral_constant<int, 1>{}, matrix_wave64<matrix_unit>{})
                      : use(std::integral_constant<int, 1>{}, matrix_wave32_wide<matrix_unit>{});
}

/// Calls `use(matrix)` for the current device.
template <class Use>
[[nodiscard]] runtime::status with_matrix_of_device(Use use) {
  using enum runtime::matrix_instructions;
  const auto kind = executor::matrices[static_cast<std::size_t>(executor::current_device())];
  if (kind == mma) {
    return use(matrix_wave32<matrix_unit>{});
  }
  return kind == mfma ? use(matrix_wave64<matrix_unit>{}) : use(matrix_wave32_wide<matrix_unit>{});
}

}  // namespace pagedkv::kernels
