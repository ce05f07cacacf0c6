// The 8-bit floating-point elements: their numbers as the formats define them, with each kind of scale.

#include "element_suite.hpp"

#include <pagedkv/policy/element/all.hpp>

#include <catch2/catch_template_test_macros.hpp>

#include <algorithm>

using namespace pagedkv;
using namespace pagedkv::test;

namespace {

constexpr auto infinity = std::numeric_limits<float>::infinity();
constexpr auto not_a_number = std::numeric_limits<float>::quiet_NaN();

/// A format by its definition: sizes of its fields, and the codes that are no numbers.
struct definition {
  int mantissa_bits;
  int bias;
  bool fnuz;  // the sign alone is NaN; every other code is a number

  [[nodiscard]] double value_of(int code) const {
    const auto magnitude = code & 0x7f;
    const auto exponent = magnitude >> mantissa_bits;
    const auto mantissa = magnitude & ((1 << mantissa_bits) - 1);
    const auto sign = code >= 0x80 ? -1.0 : 1.0;
    if (fnuz ? code == 0x80 : mantissa_bits == 3 && magnitude == 0x7f) {
      return std::nan("");
    }
    if (!fnuz && mantissa_bits == 2 && exponent == 31) {
      return mantissa == 0 ? sign * std::numeric_limits<double>::infinity() : std::nan("");
    }
    const auto whole = mantissa + (exponent == 0 ? 0 : 1 << mantissa_bits);
    return sign * std::ldexp(whole, std::max(exponent, 1) - bias - mantissa_bits);
  }

  /// The finite numbers that are not negative, in order.
  [[nodiscard]] std::vector<double> numbers() const {
    auto all = std::vector<double>{};
    for (auto code = 0; code < 0x80 && std::isfinite(value_of(code)); ++code) {
      all.push_back(value_of(code));
    }
    return all;
  }
};

template <class Element>
constexpr auto definition_of = definition{0, 0, false};
template <>
constexpr auto definition_of<float8_e4m3> = definition{3, 7, false};
template <>
constexpr auto definition_of<float8_e5m2> = definition{2, 15, false};
template <>
constexpr auto definition_of<float8_e4m3fnuz> = definition{3, 8, true};
template <>
constexpr auto definition_of<float8_e5m2fnuz> = definition{2, 16, true};

template <class Element>
float read(int code, float scale = 1) {
  return Element::decode(static_cast<std::uint8_t>(code), scale);
}

}  // namespace

#define FORMATS float8_e4m3, float8_e5m2, float8_e4m3fnuz, float8_e5m2fnuz

TEMPLATE_TEST_CASE("every stored number is read as its format defines it, and stored as itself again", "[float8]",
                   FORMATS) {
  for (auto code = 0; code < 256; ++code) {
    CAPTURE(code);
    const auto value = definition_of<TestType>.value_of(code);
    for (const auto scale : {1.0f, 0.3f, 1e-30f, 1e10f}) {
      const auto number = read<TestType>(code, scale);
      if (std::isnan(value)) {
        CHECK(std::isnan(number));
        CHECK(std::isnan(read<TestType>(TestType::encode(number, scale))));
        continue;
      }
      CHECK(number == static_cast<float>(value) * scale);
      if (std::isfinite(value)) {
        CHECK(TestType::encode(number, scale) == code);
      }
    }
  }
}

TEMPLATE_TEST_CASE("numbers are rounded to the nearest, halves to even", "[float8]", FORMATS) {
  const auto numbers = definition_of<TestType>.numbers();
  for (auto i = std::size_t{0}; i + 1 < numbers.size(); ++i) {
    const auto halfway = static_cast<float>((numbers[i] + numbers[i + 1]) / 2);
    const auto even = static_cast<int>(i % 2 == 0 ? i : i + 1);
    for (const auto scale : {1.0f, 0.25f, 0x1p40f}) {
      CAPTURE(i, halfway, scale);
      CHECK(TestType::encode(halfway * scale, scale) == even);
      CHECK(TestType::encode(std::nextafter(halfway, 0.0f) * scale, scale) == i);
      CHECK(TestType::encode(std::nextafter(halfway, infinity) * scale, scale) == i + 1);
      CHECK(read<TestType>(TestType::encode(-halfway * scale, scale)) == -read<TestType>(even));
    }
  }
}

TEMPLATE_TEST_CASE("finite numbers beyond the largest become the largest, and no others become finite", "[float8]",
                   FORMATS) {
  const auto largest = static_cast<float>(definition_of<TestType>.numbers().back());
  for (const auto beyond : {largest, largest * 1.01f, largest * 1.2f, 1e20f, std::numeric_limits<float>::max()}) {
    CHECK(read<TestType>(TestType::encode(beyond, 1)) == largest);
    CHECK(read<TestType>(TestType::encode(-beyond, 1)) == -largest);
    CHECK(read<TestType>(TestType::encode(beyond, 0x1p-100f)) == largest);  // the quotient exceeds float32
  }
  for (const auto other : {infinity, -infinity, not_a_number, -not_a_number}) {
    CHECK(std::isnan(read<TestType>(TestType::encode(other, 1))));
    CHECK(std::isnan(read<TestType>(TestType::encode(other, 0x1p-100f))));
  }
  CHECK(std::isnan(read<TestType>(TestType::encode(1, not_a_number))));
}

TEMPLATE_TEST_CASE("a zero keeps its sign where the format has negative zeros", "[float8]", FORMATS) {
  CHECK(TestType::encode(0.0f, 1) == 0);
  CHECK(TestType::encode(-0.0f, 1) == (definition_of<TestType>.fnuz ? 0 : 0x80));
  CHECK(TestType::encode(-1e-30f, 1) == (definition_of<TestType>.fnuz ? 0 : 0x80));
}

TEMPLATE_TEST_CASE("rows and single numbers are converted to equal bits, whatever they hold", "[float8][row]",
                   float8_e4m3, float8_e5m2, float8_e4m3fnuz, float8_e5m2fnuz, basic_float8_e4m3<token_scale>) {
  auto codes = std::vector<std::uint8_t>(256 + 3);
  std::generate(codes.begin(), codes.end(), [next = std::uint8_t{0}]() mutable { return next++; });
  auto row = std::vector<float>(codes.size());
  for (const auto scale : {1.0f, 0.37f, 1e-35f, 1e30f}) {
    decode_row<TestType>(codes, scale, row);
    for (auto i = std::size_t{0}; i < codes.size(); ++i) {
      CAPTURE(i, scale);
      const auto alone = TestType::decode(codes[i], scale);
      CHECK(__builtin_bit_cast(std::uint32_t, row[i]) == __builtin_bit_cast(std::uint32_t, alone));
    }
  }
  // A float32 number in 65,521, NaN with their payloads, infinities and subnormal numbers among them.
  auto numbers = std::vector<float>{infinity, -infinity, not_a_number};
  for (auto bits = std::uint64_t{0}; bits <= 0xffffffffU; bits += 65521) {
    numbers.push_back(__builtin_bit_cast(float, static_cast<std::uint32_t>(bits)));
  }
  auto stored = std::vector<std::uint8_t>(numbers.size());
  for (const auto scale : {1.0f, 0.37f, 1e-20f, 1e20f}) {
    encode_numbers<TestType>(numbers, scale, stored);
    for (auto i = std::size_t{0}; i < numbers.size(); ++i) {
      if (stored[i] != TestType::encode(numbers[i], scale)) {
        FAIL("number " << numbers[i] << ", scale " << scale);
      }
    }
  }
}

#undef FORMATS

TEST_CASE("a format's elements keep what every element promises, whoever gives their scales", "[float8]") {
  const auto check_all = []<template <class> class Element>(std::type_identity<Element<tensor_scale>>, float step,
                                                            float smallest) {
    const auto bound = [=](float number, float scale) { return std::max(std::abs(number) * step, smallest * scale); };
    check_element<Element<tensor_scale>>(bound, static_cast<float>(Element<tensor_scale>::format::largest));
    check_element<Element<head_scale>>(bound, static_cast<float>(Element<head_scale>::format::largest));
    check_element<Element<token_scale>>(bound);
  };
  check_all(std::type_identity<basic_float8_e4m3<tensor_scale>>{}, 0x1p-4f, 0x1p-10f);
  check_all(std::type_identity<basic_float8_e5m2<tensor_scale>>{}, 0x1p-3f, 0x1p-17f);
  check_all(std::type_identity<basic_float8_e4m3fnuz<tensor_scale>>{}, 0x1p-4f, 0x1p-11f);
  check_all(std::type_identity<basic_float8_e5m2fnuz<tensor_scale>>{}, 0x1p-3f, 0x1p-18f);
}

TEST_CASE("a row's own scale makes its largest magnitude the largest number", "[float8]") {
  using element = basic_float8_e4m3<token_scale>;
  for (const auto absmax : {1.0f, 0.1f, 3.7e-5f, 448.0f, 6.5e4f, 1e38f, std::numeric_limits<float>::max()}) {
    auto stored = std::vector<std::uint8_t>(4);
    const auto scale = encode_row<element>(std::vector{absmax, -absmax, 0.0f, absmax / 2}, stored);
    CAPTURE(absmax, scale);
    CHECK(stored == std::vector<std::uint8_t>{0x7e, 0xfe, 0, 0x76});
    CHECK(std::isfinite(element::decode(0x7e, scale)));
  }
  auto stored = std::vector<std::uint8_t>(2);
  CHECK(std::isnan(encode_row<element>(std::vector{1.0f, infinity}, stored)));
  CHECK(encode_row<element>(std::vector{0.0f, 0.0f}, stored) == std::numeric_limits<float>::min());
}

TEST_CASE("a row is stored with the scale that the engine gives", "[float8]") {
  const auto row = std::vector{3.0f, -0.5f, 1000.0f};
  auto stored = std::vector<std::uint8_t>(row.size());
  auto back = row;
  CHECK(encode_row<float8_e4m3>(row, stored, 0.5f) == 0.5f);
  decode_row<float8_e4m3>(stored, 0.5f, back);
  CHECK(back == std::vector{3.0f, -0.5f, 224.0f});
  // From rows of another element, and from stored numbers.
  auto halves = std::vector<std::uint16_t>(row.size());
  encode_row<float16>(row, halves);
  auto from_halves = stored;
  CHECK(recode_row<float8_e4m3, float16>(halves, 1, from_halves, 0.5f) == 0.5f);
  CHECK(from_halves == stored);
  auto doubled = stored;
  CHECK(recode_row<float8_e4m3, float8_e4m3>(stored, 0.5f, doubled, 1.0f) == 1.0f);
  decode_row<float8_e4m3>(doubled, 1, back);
  CHECK(back == std::vector{3.0f, -0.5f, 224.0f});
}

TEST_CASE("8-bit floating point works in constant expressions", "[float8]") {
  static_assert(float8_e4m3::encode(-3.5f, 0.5f) == 0xce && float8_e4m3::decode(0xce, 0.5f) == -3.5f);
  static_assert(float8_e5m2fnuz::encode(1e9f, 1) == 0x7f);
  static_assert(!float8_e4m3::scaled && has_static_scales<float8_e4m3> && !is_unscaled<float8_e4m3>);
  static_assert(basic_float8_e5m2<token_scale>::scaled && !has_static_scales<basic_float8_e5m2<token_scale>>);
  static_assert(is_unscaled<bfloat16> && !is_unscaled<int8>);
  SUCCEED();
}
