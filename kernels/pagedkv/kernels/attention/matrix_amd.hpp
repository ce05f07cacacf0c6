#pragma once

// Empty for other compilers.
#if defined(__HIPCC__)

  #include <pagedkv/attention/plan.hpp>
  #include <pagedkv/kernels/attention/lane_maps.hpp>
  #include <pagedkv/kernels/attention/lane_word.hpp>
  #include <pagedkv/kernels/attention/own_tiles.hpp>
  #include <pagedkv/kernels/platform.hpp>

  #include <type_traits>

namespace pagedkv::kernels {

// Kernels of a stream run one after the other.
PAGEDKV_DEVICE inline void wait_for_previous_kernel() {}
PAGEDKV_DEVICE inline void let_next_kernel_start() {}

template <int N>
[[nodiscard]] PAGEDKV_DEVICE vector<float, N> load_fresh(const float* from) {
  return load_vector<N>(from);
}

[[nodiscard]] PAGEDKV_DEVICE inline float power_of_two(float exponent) { return exp2f(exponent); }

template <unsigned Selector>
[[nodiscard]] PAGEDKV_DEVICE lane_word permute_bytes(lane_word low, lane_word high) {
  constexpr auto bytes =
      (Selector & 7U) | (Selector >> 4 & 7U) << 8 | (Selector >> 8 & 7U) << 16 | (Selector >> 12 & 7U) << 24;
  return __builtin_amdgcn_perm(high, low, bytes);
}

template <class Half>
[[nodiscard]] PAGEDKV_DEVICE lane_word subtract_halves(lane_word a, lane_word b) {
  using halves = _Float16 __attribute__((ext_vector_type(2)));
  return __builtin_bit_cast(lane_word, __builtin_bit_cast(halves, a) - __builtin_bit_cast(halves, b));
}

template <class Number>
[[nodiscard]] PAGEDKV_DEVICE lane_word pack(float first, float second) {
  return Number::encode(first, 1.0F) | lane_word{Number::encode(second, 1.0F)} << 16;
}

/// MFMA of CDNA. Waves of 32 lanes use plain arithmetic.
struct matrix_unit {
  template <class Number>
  static PAGEDKV_DEVICE void multiply_16x16(float (&into)[4], const lane_word (&a)[2], const lane_word (&b)[2]) {
  #if defined(__gfx90a__) || defined(__gfx942__) || defined(__gfx950__)
    using sums = float __attribute__((ext_vector_type(4)));
    auto sum = sums{into[0], into[1], into[2], into[3]};
    if constexpr (is_bfloat16<Number>) {
      using numbers = short __attribute__((ext_vector_type(4)));
      sum = __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(__builtin_bit_cast(numbers, a), __builtin_bit_cast(numbers, b),
                                                      sum, 0, 0, 0);
    } else {
      using numbers = _Float16 __attribute__((ext_vector_type(4)));
      sum = __builtin_amdgcn_mfma_f32_16x16x16f16(__builtin_bit_cast(numbers, a), __builtin_bit_cast(numbers, b), sum,
                                                  0, 0, 0);
    }
    for (auto i = 0; i < 4; ++i) {
      into[i] = sum[i];
    }
  #endif
  }
};

template <class Shape, class Matrix, int Stages>
using tiles_ahead = own_tiles<Shape, Matrix>;

/// The wave size of the current device.
[[nodiscard]] inline int current_wave_size() {
  auto device = 0;
  auto properties = runtime::device_properties{};
  const auto known = runtime::get_device(&device) == runtime::success &&
                     runtime::get_device_properties(&properties, device) == runtime::success;
  return known ? properties.wave_size : 64;
}

/// Calls `use(number of matrices side by side, matrix)` for tasks with this many columns.
template <class Use>
[[nodiscard]] runtime::status with_matrix(std::int32_t columns, Use use) {
  return columns == 16 ? use(std::integral_constant<int, 1>{}, matrix_wave64<matrix_unit>{})
                       : runtime::error_invalid_value;
}

}  // namespace pagedkv::kernels

#endif
