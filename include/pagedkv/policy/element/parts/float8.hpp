#pragma once

#include <pagedkv/core/host_device.hpp>
#include <pagedkv/policy/element/float16.hpp>
#include <pagedkv/policy/element/parts/device.hpp>
#include <pagedkv/policy/element/parts/float8_format.hpp>
#include <pagedkv/policy/element/parts/numbers.hpp>

#include <cstdint>
#include <cstring>
#include <type_traits>

namespace pagedkv {

/// Numbers of 8 bits in a floating-point format, times a scale. A number is divided by its scale and rounded to nearest
/// even; a finite one beyond the largest becomes the largest. An infinity becomes NaN, and a NaN stays one. Integer
/// arithmetic but for the scale, one exact sum and one exact difference, so that loops vectorise; devices use their own
/// conversion where they have one of this format, with equal results except for the sign of a NaN.
template <class Format, class Scale>
struct float8 {
  using storage = std::uint8_t;
  using format = Format;
  using scale_type = Scale;
  static constexpr bool scaled = Scale::in_block;

  [[nodiscard]] PAGEDKV_HOST_DEVICE static constexpr float scale_for([[maybe_unused]] float absmax) noexcept {
    if constexpr (scaled) {
      return row_scale<Format::largest>(absmax);
    } else {
      return 1;
    }
  }

  [[nodiscard]] PAGEDKV_HOST_DEVICE static constexpr storage encode(float number, float scale) noexcept {
#if defined(PAGEDKV_DEVICE_FLOAT8)
    if constexpr (device_converts_float8<Format>) {
      if (!__builtin_is_constant_evaluated()) {
        return static_cast<storage>(device_float8_bits<Format>(quotient_of(number, scale), 0.0f) & 0xffu);
      }
    }
#endif
    // Minima and maxima instead of choices: on some devices, a choice takes a register that all lanes share.
    const auto bits = __builtin_bit_cast(std::int32_t, rounded_product(number, 1 / scale));
    const auto quotient = bits & 0x7fffffff;
    const auto magnitude = smaller(quotient, largest_magnitude);
    const auto normal = (magnitude + rounding + (magnitude >> dropped_bits & 1)) >> dropped_bits;
    const float aligned = __builtin_bit_cast(float, magnitude) + spaced;
    const auto subnormal = smaller(__builtin_bit_cast(std::int32_t, aligned) - spaced_bits, num_subnormals);
    // Below the smallest normal number, the first is the smaller one; from there on, the second.
    const auto result = normal > subnormal ? normal : subnormal;
    // A zero has no sign where the sign alone is NaN.
    const auto sign = bits >> 24 & (Format::signed_zero ? 0x80 : (result + 0x7f) & 0x80);
    const auto given = __builtin_bit_cast(std::int32_t, number) & 0x7fffffff;
    const auto is_nan = ((infinity - 1 - given) | (infinity - quotient)) >> 31;  // all bits, or none
    return static_cast<storage>(((result | sign) & ~is_nan) | (Format::nan_bits & is_nan));
  }

  [[nodiscard]] PAGEDKV_HOST_DEVICE static constexpr float decode(storage stored, float scale) noexcept {
#if defined(PAGEDKV_DEVICE_FLOAT8)
    if constexpr (device_converts_float8<Format>) {
      if (!__builtin_is_constant_evaluated()) {
        return device_float8_values<Format>(stored).low * scale;
      }
    }
#endif
    const auto sign = std::uint32_t{stored & 0x80u} << 24;
    const auto magnitude = stored & 0x7f;
    const auto normal = (magnitude << dropped_bits) + exponent_shift;
    // Adding and removing an implicit leading one keeps operands normal: subnormal ones are slow or flushed to zero.
    const auto with_one = __builtin_bit_cast(float, (magnitude << dropped_bits) + smallest_normal);
    const auto subnormal = __builtin_bit_cast(std::uint32_t, with_one - smallest_normal_number);
    auto result = select_bits(magnitude < num_subnormals, subnormal, static_cast<std::uint32_t>(normal)) | sign;
    if constexpr (Format::has_infinity) {
      result = select_bits(magnitude == Format::largest_bits + 1, 0x7f800000u | sign, result);
    }
    const auto is_nan = Format::signed_zero ? magnitude > Format::largest_bits + (Format::has_infinity ? 1 : 0)
                                            : stored == Format::nan_bits;
    result = select_bits(is_nan, 0x7fc00000u, result);
    return __builtin_bit_cast(float, result) * scale;
  }

#if defined(PAGEDKV_DEVICE_FLOAT8)
  /// Two numbers, which devices convert together.
  PAGEDKV_HOST_DEVICE static constexpr void encode_two(const float* numbers, float scale, storage* stored) noexcept {
    if constexpr (device_converts_float8<Format>) {
      const auto bits = device_float8_bits<Format>(quotient_of(numbers[0], scale), quotient_of(numbers[1], scale));
      stored[0] = static_cast<storage>(bits & 0xffu);
      stored[1] = static_cast<storage>(bits >> 8 & 0xffu);
    } else {
      stored[0] = encode(numbers[0], scale);
      stored[1] = encode(numbers[1], scale);
    }
  }

  PAGEDKV_HOST_DEVICE static constexpr void decode_two(const storage* stored, float scale, float* numbers) noexcept {
    if constexpr (device_converts_float8<Format>) {
      const auto values = device_float8_values<Format>(stored[0] | std::uint32_t{stored[1]} << 8);
      numbers[0] = values.low * scale;
      numbers[1] = values.high * scale;
    } else {
      numbers[0] = decode(stored[0], scale);
      numbers[1] = decode(stored[1], scale);
    }
  }
#endif

  /// Numbers 2 * Pair and 2 * Pair + 1 of four, divided by their scale, as binary16, which holds all of them.
  template <int Pair>
  [[nodiscard]] PAGEDKV_HOST_DEVICE static std::uint32_t halves_of(std::uint32_t four) noexcept {
#if defined(PAGEDKV_DEVICE_HALF)
    if constexpr (Format::has_infinity) {
      return upper_bytes<Pair>(four);
    }
  #if defined(PAGEDKV_DEVICE_FLOAT8)
    if constexpr (device_converts_float8<Format>) {
      return device_float8_halves<Format>(four >> (16 * Pair) & 0xffffu);
    }
  #endif
    return adjusted_halves(upper_bytes<Pair>(four));
#else
    const auto bits_of = [](std::uint32_t stored) {
      return std::uint32_t{float16::encode(decode(static_cast<storage>(stored & 0xffu), 1.0f), 1.0f)};
    };
    return bits_of(four >> (16 * Pair)) | bits_of(four >> (16 * Pair + 8)) << 16;
#endif
  }

#if defined(PAGEDKV_WIDE_VECTORS) && !defined(__CUDACC__)
  PAGEDKV_WIDE static void encode_eight(const float* numbers, float scale, storage* stored) noexcept {
    auto given = eight_numbers{};
    std::memcpy(&given, numbers, sizeof(given));
    const auto bits = reinterpret_cast<eight_words>(given * (1 / scale));
    const auto quotient = bits & 0x7fffffff;
    const auto magnitude = quotient > largest_magnitude ? eight_words{} + largest_magnitude : quotient;
    const auto normal = (magnitude + rounding + (magnitude >> dropped_bits & 1)) >> dropped_bits;
    const auto aligned = reinterpret_cast<eight_words>(reinterpret_cast<eight_numbers>(magnitude) + spaced);
    const auto subnormal = aligned - spaced_bits;
    auto result = magnitude < smallest_normal ? subnormal : normal;
    const auto sign = bits >> 24 & 0x80;
    if constexpr (Format::signed_zero) {
      result |= sign;
    } else {
      result |= result != 0 ? sign : eight_words{};
    }
    const auto given_magnitude = reinterpret_cast<eight_words>(given) & 0x7fffffff;
    const auto is_nan = (given_magnitude >= infinity) | (quotient > infinity);
    result = is_nan ? eight_words{} + std::int32_t{Format::nan_bits} : result;
    // The low bytes: no word is negative or exceeds 255.
    const auto low = __builtin_shufflevector(result, result, 0, 1, 2, 3);
    const auto high = __builtin_shufflevector(result, result, 4, 5, 6, 7);
    const auto shorts = reinterpret_cast<eight_shorts>(__builtin_ia32_packusdw128(low, high));
    const auto bytes = __builtin_ia32_packuswb128(shorts, shorts);
    std::memcpy(stored, &bytes, 8);
  }

  /// By way of binary16.
  PAGEDKV_WIDE static void decode_eight(const storage* stored, float scale, float* numbers) noexcept {
    auto eight = 0LL;
    std::memcpy(&eight, stored, sizeof(eight));
    const auto bytes = reinterpret_cast<sixteen_bytes>(two_longs{eight, 0});
    const auto zeros = sixteen_bytes{};
    const auto upper = reinterpret_cast<eight_shorts>(
        __builtin_shufflevector(zeros, bytes, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23));
    const auto magnitude = upper & 0x7f00;
    const auto sign = upper & short{-0x8000};
    auto halves = upper;
    auto adjustment = 1.0f;  // of the exponent
    if constexpr (Format::mantissa_bits == 3) {
      halves = magnitude >> 1 | sign;
      adjustment = static_cast<float>(1 << (15 - Format::bias));
    } else if constexpr (!Format::has_infinity) {
      // The largest exponent would be an infinity, so it is adjusted here. Two of them are subnormal numbers then.
      halves = (magnitude < 0x0800 ? magnitude >> 1 : magnitude - 0x0400) | sign;
    }
    const auto is_nan =
        Format::signed_zero ? magnitude > short{Format::has_infinity ? 0x7c00 : 0x7e00} : upper == short{-0x8000};
    halves = is_nan ? eight_shorts{} + short{0x7e00} : halves;
    const auto wide = __builtin_ia32_vcvtph2ps256(halves) * adjustment * scale;
    std::memcpy(numbers, &wide, sizeof(wide));
  }
#endif

 private:
#if defined(PAGEDKV_DEVICE_FLOAT8)
  /// The number divided by its scale, which may overflow; NaN for an infinite number.
  [[nodiscard]] PAGEDKV_HOST_DEVICE static constexpr float quotient_of(float number, float scale) noexcept {
    return nan_for_infinity(number) * (1 / scale);
  }
#endif

#if defined(PAGEDKV_DEVICE_HALF)
  /// Numbers without infinities, each in the upper half of 16 bits, as binary16, whose exponent has another bias.
  [[nodiscard]] PAGEDKV_HOST_DEVICE static std::uint32_t adjusted_halves(std::uint32_t upper) noexcept {
    const std::uint32_t magnitude = upper & 0x7f007f00u;
    const std::uint32_t sign = upper & 0x80008000u;
    auto adjusted = std::uint32_t{0};
    if constexpr (Format::mantissa_bits == 3) {
      constexpr auto factor = static_cast<std::uint32_t>(30 - Format::bias) << 10;  // 2^(15 - bias)
      adjusted = device_half_products(magnitude >> 1 | sign, factor | factor << 16);
    } else {
      adjusted = device_half_halves(magnitude) | sign;
    }
    // The sign bits of the numbers that are NaN, of which the next six bits of binary16 are made.
    const auto nan = Format::signed_zero ? (magnitude + 0x01000100u) & 0x80008000u : sign & ~(magnitude + 0x7f007f00u);
    return adjusted | (nan - (nan >> 6));
  }
#endif

#if defined(PAGEDKV_WIDE_VECTORS) && !defined(__CUDACC__)
  using eight_numbers [[gnu::vector_size(32)]] = float;
  using eight_words [[gnu::vector_size(32)]] = std::int32_t;
  using eight_shorts [[gnu::vector_size(16)]] = short;
  using two_longs [[gnu::vector_size(16)]] = long long;
  using sixteen_bytes [[gnu::vector_size(16)]] = char;
#endif

  [[nodiscard]] PAGEDKV_HOST_DEVICE static constexpr std::int32_t smaller(std::int32_t a, std::int32_t b) noexcept {
    return a < b ? a : b;
  }

  static constexpr std::int32_t num_subnormals = 1 << Format::mantissa_bits;  // zero among them
  // Bit patterns of float32 magnitudes.
  static constexpr std::int32_t dropped_bits = 23 - Format::mantissa_bits;
  static constexpr std::int32_t exponent_shift = (127 - Format::bias) << 23;
  static constexpr std::int32_t smallest_normal = (128 - Format::bias) << 23;
  static constexpr std::int32_t largest_magnitude = (Format::largest_bits << dropped_bits) + exponent_shift;
  static constexpr std::int32_t infinity = 0x7f800000;
  // Makes up for the exponent, and rounds up from half of the last bit that stays if that is 1, else from more.
  static constexpr std::int32_t rounding = (1 << (dropped_bits - 1)) - 1 - exponent_shift;
  // Near this number, float32 numbers are as far apart as the format's subnormals, so an addition rounds to those.
  static constexpr float spaced = Format::smallest * 0x1p23f;
  static constexpr std::int32_t spaced_bits = (151 - Format::bias - Format::mantissa_bits) << 23;
  static constexpr float smallest_normal_number = Format::smallest * num_subnormals;
};

template <class Format, class Scale>
std::true_type derives_from_float8(const float8<Format, Scale>*);
std::false_type derives_from_float8(const void*);

template <class Element>
inline constexpr bool is_float8 = decltype(derives_from_float8(static_cast<const Element*>(nullptr)))::value;

}  // namespace pagedkv
