#include "element_suite.hpp"

#include <pagedkv/policy/element/all.hpp>
#include <pagedkv/storage/layout.hpp>

#include <catch2/catch_template_test_macros.hpp>

#include <algorithm>
#include <cmath>

using namespace pagedkv;
using namespace pagedkv::test;

namespace {

/// 8-bit floating point, four exponent and three mantissa bits, no infinity: an element written outside the library.
struct fp8_e4m3 {
  using storage = std::uint8_t;
  static constexpr bool scaled = true;
  static constexpr std::string_view name = "fp8_e4m3";

  static float scale_for(float absmax) noexcept {
    return std::isfinite(absmax) ? std::max(absmax / 448, std::numeric_limits<float>::min()) : NAN;
  }
  static storage encode(float number, float scale) noexcept {
    const auto quotient = number / scale;
    if (std::isnan(quotient)) {
      return 0x7f;
    }
    const auto magnitude = std::min(std::abs(quotient), 448.0f);
    const auto exponent = magnitude < 0x1p-6f ? -6 : std::ilogb(magnitude);
    const auto eighths = static_cast<int>(std::nearbyint(std::ldexp(magnitude, 3 - exponent)));
    return static_cast<storage>((std::signbit(quotient) ? 0x80 : 0) | ((exponent + 6) * 8 + eighths));
  }
  static float decode(storage stored, float scale) noexcept {
    const auto exponent = stored >> 3 & 15;
    const auto eighths = (stored & 7) + (exponent == 0 ? 0 : 8);
    const auto magnitude =
        (stored & 0x7f) == 0x7f ? NAN : std::ldexp(static_cast<float>(eighths), std::max(exponent, 1) - 10);
    return (stored >> 7 != 0 ? -magnitude : magnitude) * scale;
  }
};

static_assert(element<fp8_e4m3>);

float relative(float number, float step, float smallest) { return std::max(std::abs(number) * step, smallest); }

}  // namespace

/// The largest number of an element whose scale is 1.
template <class Element>
constexpr float largest_of = [] {
  if constexpr (has_static_scales<Element>) {
    return static_cast<float>(Element::format::largest);
  }
  return std::numeric_limits<float>::max();
}();

TEMPLATE_LIST_TEST_CASE("every element of the library keeps what elements promise", "[element]", all_elements) {
  constexpr auto smallest = has_static_scales<TestType> ? 0x1p-10f : 0x1p-25f;
  check_element<TestType>(
      [](float number, float scale) { return relative(number, 0x1p-4f, TestType::scaled ? scale : smallest); },
      largest_of<TestType>);
}

// With the bound of each format.
TEST_CASE("float32 keeps what every element promises", "[element]") {
  check_element<float32>([](float, float) { return 0.0f; });
}

TEST_CASE("float16 keeps what every element promises", "[element]") {
  check_element<float16>([](float number, float) { return relative(number, 0x1p-11f, 0x1p-25f); });
}

TEST_CASE("bfloat16 keeps what every element promises", "[element]") {
  check_element<bfloat16>([](float number, float) { return relative(number, 0x1p-8f, 0x1p-134f); });
}

TEST_CASE("int8 keeps what every element promises", "[element]") {
  check_element<int8>([](float, float scale) { return scale / 2; });
}

TEST_CASE("an element from outside the library keeps what every element promises", "[element]") {
  check_element<fp8_e4m3>([](float number, float scale) { return relative(number, 0x1p-4f, scale * 0x1p-10f); });
}

TEST_CASE("float32 is kept bit for bit", "[element]") {
  for (const auto bits : {0x00000000u, 0x80000000u, 0x00000001u, 0x7f7fffffu, 0x7f800000u, 0xff800000u, 0x7fc12345u}) {
    const auto number = __builtin_bit_cast(float, bits);
    const auto read = stored_and_read<float32>({number});
    CHECK(__builtin_bit_cast(std::uint32_t, read[0]) == bits);
  }
}

TEST_CASE("the size of an element is its storage and its scale", "[element]") {
  CHECK(size_of_element<float32>.bytes == 4);
  CHECK(size_of_element<float16>.bytes == 2);
  CHECK(size_of_element<bfloat16>.bytes == 2);
  CHECK(size_of_element<int8>.bytes == 1);
  CHECK(size_of_element<float16>.scale_bytes == 0);
  CHECK(size_of_element<int8>.scale_bytes == 4);
  CHECK(size_of_element<fp8_e4m3>.scale_bytes == 4);
  CHECK(size_of_element<basic_float8_e4m3<token_scale>>.scale_bytes == 4);
  CHECK(size_of_element<basic_float8_e4m3<head_scale>>.scale_bytes == 0);
  CHECK(size_of_element<float8_e4m3>.scale_bytes == 0);
  CHECK(size_of_element<float8_e4m3>.bytes == 1);
}

TEST_CASE("the largest magnitude of a row tells NaN and infinity", "[element]") {
  constexpr auto infinity = std::numeric_limits<float>::infinity();
  CHECK(absmax({}) == 0.0f);
  CHECK(absmax(std::vector{-0.0f, 0.0f}) == 0.0f);
  CHECK(absmax(std::vector{1.0f, -3.0f, 2.0f}) == 3.0f);
  CHECK(absmax(std::vector{1e-45f, -1e-40f}) == 1e-40f);
  CHECK(absmax(std::vector{1.0f, -infinity, 2.0f}) == infinity);
  CHECK(std::isnan(absmax(std::vector{infinity, -NAN, 2.0f})));
}
