#pragma once

// Empty for other compilers.
#if defined(__HIPCC__)

  #include <pagedkv/attention/plan_layout.hpp>
  #include <pagedkv/kernels/attention/lane_maps.hpp>
  #include <pagedkv/kernels/attention/own_tiles.hpp>
  #include <pagedkv/kernels/platform.hpp>

  #include <type_traits>
  #include <vector>

namespace pagedkv::kernels {

template <int N>
[[nodiscard]] PAGEDKV_DEVICE vector<float, N> load_fresh(const float* from) {
  return load_vector<N>(from);
}

PAGEDKV_DEVICE inline void issue_loads() {}

[[nodiscard]] PAGEDKV_DEVICE inline float power_of_two(float exponent) { return exp2f(exponent); }
[[nodiscard]] PAGEDKV_DEVICE inline float binary_logarithm(float number) { return log2f(number); }

template <unsigned Selector>
[[nodiscard]] PAGEDKV_DEVICE lane_word permute_bytes(lane_word low, lane_word high) {
  constexpr auto bytes =
      (Selector & 7U) | (Selector >> 4 & 7U) << 8 | (Selector >> 8 & 7U) << 16 | (Selector >> 12 & 7U) << 24;
  return __builtin_amdgcn_perm(high, low, bytes);
}

/// Differences of two pairs of binary16.
template <class Number>
[[nodiscard]] PAGEDKV_DEVICE lane_word subtract_pairs(lane_word a, lane_word b) {
  using halves = _Float16 __attribute__((ext_vector_type(2)));
  return __builtin_bit_cast(lane_word, __builtin_bit_cast(halves, a) - __builtin_bit_cast(halves, b));
}

template <class Number>
[[nodiscard]] PAGEDKV_DEVICE lane_word pack(float first, float second) {
  return Number::encode(first, 1.0F) | lane_word{Number::encode(second, 1.0F)} << 16;
}

/// MFMA of CDNA.
struct mfma_unit {
  #if defined(__gfx90a__) || defined(__gfx942__) || defined(__gfx950__)
  static constexpr bool available = true;

  template <class Number>
  static PAGEDKV_DEVICE void multiply_16x16(float (&into)[4], const lane_word (&a)[2], const lane_word (&b)[2]) {
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
  }
  #else
  static constexpr bool available = false;
  #endif
};

/// WMMA of RDNA 3 and 4. A lane has half of the numbers of its row or column; RDNA 3 needs all of them in both lanes
/// that share these, so there lanes exchange halves first.
struct wmma_unit {
  #if defined(__GFX11__) || defined(__GFX12__)
  static constexpr bool available = true;

    #if defined(__GFX12__)
  static constexpr int operand_words = 4;
    #else
  static constexpr int operand_words = 8;
    #endif

  [[nodiscard]] static PAGEDKV_DEVICE int sum_row(int lane, int i) {
    return operand_words == 4 ? i + lane / 16 * 8 : 2 * i + lane / 16;
  }

  template <class Number>
  static PAGEDKV_DEVICE void multiply_16x16_halves(float (&into)[8], const lane_word (&a)[4], const lane_word (&b)[4]) {
    using sums = float __attribute__((ext_vector_type(8)));
    auto sum = sums{into[0], into[1], into[2], into[3], into[4], into[5], into[6], into[7]};
    const auto of_a = make_operand(a);
    const auto of_b = make_operand(b);
    if constexpr (is_bfloat16<Number>) {
      using numbers = short __attribute__((ext_vector_type(2 * operand_words)));
    #if defined(__GFX12__)
      sum = __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32_gfx12(
    #else
      sum = __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32(
    #endif
          __builtin_bit_cast(numbers, of_a), __builtin_bit_cast(numbers, of_b), sum);
    } else {
      using numbers = _Float16 __attribute__((ext_vector_type(2 * operand_words)));
    #if defined(__GFX12__)
      sum = __builtin_amdgcn_wmma_f32_16x16x16_f16_w32_gfx12(
    #else
      sum = __builtin_amdgcn_wmma_f32_16x16x16_f16_w32(
    #endif
          __builtin_bit_cast(numbers, of_a), __builtin_bit_cast(numbers, of_b), sum);
    }
    for (auto i = 0; i < 8; ++i) {
      into[i] = sum[i];
    }
  }

 private:
  using operand = lane_word __attribute__((ext_vector_type(operand_words)));

  [[nodiscard]] static PAGEDKV_DEVICE operand make_operand(const lane_word (&own)[4]) {
    auto made = operand{};
    for (auto i = 0; i < 4; ++i) {
      if constexpr (operand_words == 4) {
        made[i] = own[i];
      } else {
        // From the lane that has the other half.
        const auto other = __builtin_amdgcn_permlanex16(own[i], own[i], 0x76543210U, 0xfedcba98U, true, false);
        const auto first_half = __builtin_amdgcn_mbcnt_lo(~0U, 0U) < 16;
        made[i] = first_half ? own[i] : other;
        made[i + 4] = first_half ? other : own[i];
      }
    }
    return made;
  }
  #else
  static constexpr bool available = false;

  [[nodiscard]] static PAGEDKV_DEVICE int sum_row(int lane, int /*i*/) { return lane; }
  #endif
};

template <class Shape, class Matrix, int Stages, int Waves>
using tiles_ahead = own_tiles<Shape, Matrix>;

[[nodiscard]] inline std::vector<int> find_wave_sizes() {
  auto count = 0;
  if (runtime::get_device_count(&count) != runtime::success) {
    return {};
  }
  auto sizes = std::vector<int>(static_cast<std::size_t>(count), 64);
  auto properties = runtime::device_properties{};
  for (auto device = 0; device < count; ++device) {
    if (runtime::get_device_properties(&properties, device) == runtime::success) {
      sizes[static_cast<std::size_t>(device)] = properties.wave_size;
    }
  }
  return sizes;
}

/// The wave size of the current device. The runtime is asked once for all devices, because it takes long to answer.
[[nodiscard]] inline int current_wave_size() {
  static const auto sizes = find_wave_sizes();
  auto device = 0;
  const auto known = runtime::get_device(&device) == runtime::success;
  const auto index = static_cast<std::size_t>(device);
  return known && index < sizes.size() ? sizes[index] : 64;
}

/// Calls `use(number of matrices side by side, matrix)` for tasks with this many columns.
template <class Use>
[[nodiscard]] runtime::status with_matrix(std::int32_t columns, Use use) {
  if (columns != 16) {
    return runtime::error_invalid_value;
  }
  return current_wave_size() == 64 ? use(std::integral_constant<int, 1>{}, matrix_wave64<mfma_unit>{})
                                   : use(std::integral_constant<int, 1>{}, matrix_wave32_wide<wmma_unit>{});
}

/// Calls `use(matrix)` for the current device.
template <class Use>
[[nodiscard]] runtime::status with_matrix_of_device(Use use) {
  return current_wave_size() == 64 ? use(matrix_wave64<mfma_unit>{}) : use(matrix_wave32_wide<wmma_unit>{});
}

}  // namespace pagedkv::kernels

#endif
