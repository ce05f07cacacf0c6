// Every one of the 65,536 patterns of both 16-bit elements, both ways, against values computed in double arithmetic.

#include <pagedkv/policy/element/bfloat16.hpp>
#include <pagedkv/policy/element/float16.hpp>

#include <catch2/catch_get_random_seed.hpp>
#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

using namespace pagedkv;

namespace {

template <class Element>
struct format;

template <>
struct format<float16> {
  static constexpr int mantissa_bits = 10;
  static constexpr int bias = 15;
};

template <>
struct format<bfloat16> {
  static constexpr int mantissa_bits = 7;
  static constexpr int bias = 127;
};

template <class Element>
constexpr int infinity_bits = (0x7fff >> format<Element>::mantissa_bits) << format<Element>::mantissa_bits;

/// The value of a finite magnitude, by the format's definition; infinity's pattern gives the next power of two.
template <class Element>
double magnitude_of(int bits) {
  constexpr auto mantissa_bits = format<Element>::mantissa_bits;
  const auto exponent = bits >> mantissa_bits;
  const auto mantissa = bits & ((1 << mantissa_bits) - 1);
  const auto significand = exponent == 0 ? mantissa : mantissa + (1 << mantissa_bits);
  return std::ldexp(significand, std::max(exponent, 1) - format<Element>::bias - mantissa_bits);
}

/// The nearest pattern; in a tie the even one. Infinity counts as the next power of two, as in IEEE 754.
template <class Element>
class reference_encoder {
 public:
  reference_encoder() {
    for (auto bits = 0; bits <= infinity_bits<Element>; ++bits) {
      magnitudes_.push_back(magnitude_of<Element>(bits));
    }
  }

  [[nodiscard]] int operator()(float number) const {
    const auto sign = std::signbit(number) ? 0x8000 : 0;
    const auto magnitude = std::abs(double{number});
    const auto above = std::lower_bound(magnitudes_.begin(), magnitudes_.end(), magnitude) - magnitudes_.begin();
    const auto upper = std::min(static_cast<int>(above), infinity_bits<Element>);
    if (upper == 0 || magnitude >= magnitudes_.back()) {
      return sign | upper;
    }
    const auto to_upper = magnitudes_[static_cast<std::size_t>(upper)] - magnitude;
    const auto to_lower = magnitude - magnitudes_[static_cast<std::size_t>(upper - 1)];
    const bool take_upper = to_upper < to_lower || (to_upper == to_lower && upper % 2 == 0);
    return sign | (take_upper ? upper : upper - 1);
  }

 private:
  std::vector<double> magnitudes_;
};

bool same_bits(float a, float b) {
  return __builtin_bit_cast(std::uint32_t, a) == __builtin_bit_cast(std::uint32_t, b);
}

}  // namespace

TEMPLATE_TEST_CASE("every 16-bit pattern decodes to its value and encodes to itself", "[element]", float16, bfloat16) {
  constexpr auto quiet_bit = 1 << (format<TestType>::mantissa_bits - 1);
  auto wrong = std::vector<int>{};
  for (auto bits = 0; bits < 0x10000; ++bits) {
    const auto read = TestType::decode(static_cast<std::uint16_t>(bits), 1.0f);
    const auto stored = TestType::encode(read, 1.0f);
    const auto magnitude_bits = bits & 0x7fff;
    auto right = std::signbit(read) == (bits >= 0x8000);
    if (magnitude_bits > infinity_bits<TestType>) {
      right = right && std::isnan(read) && stored == (bits | quiet_bit);
    } else if (magnitude_bits == infinity_bits<TestType>) {
      right = right && std::isinf(read) && stored == bits;
    } else {
      right = right && std::abs(double{read}) == magnitude_of<TestType>(magnitude_bits) && stored == bits;
    }
    if (!right) {
      wrong.push_back(bits);
    }
  }
  CHECK(wrong.empty());
}

TEMPLATE_TEST_CASE("halfway between neighbours the even one is stored, next to it the nearer", "[element]", float16,
                   bfloat16) {
  constexpr auto infinity = std::numeric_limits<float>::infinity();
  auto wrong = std::vector<int>{};
  for (auto lower = 0; lower < infinity_bits<TestType>; ++lower) {
    const auto exact = (magnitude_of<TestType>(lower) + magnitude_of<TestType>(lower + 1)) / 2;
    const auto halfway = static_cast<float>(exact);
    REQUIRE(double{halfway} == exact);
    const auto even = lower + lower % 2;
    for (const auto sign : {1.0f, -1.0f}) {
      const auto sign_bit = sign < 0 ? 0x8000 : 0;
      const bool right = TestType::encode(sign * halfway, 1.0f) == (sign_bit | even) &&
                         TestType::encode(sign * std::nextafter(halfway, 0.0f), 1.0f) == (sign_bit | lower) &&
                         TestType::encode(sign * std::nextafter(halfway, infinity), 1.0f) == (sign_bit | (lower + 1));
      if (!right) {
        wrong.push_back(lower);
      }
    }
  }
  CHECK(wrong.empty());
}

TEMPLATE_TEST_CASE("random float32 patterns are stored as the reference stores them", "[element][random]", float16,
                   bfloat16) {
  const auto reference = reference_encoder<TestType>{};
  const auto seed = Catch::getSeed();
  CAPTURE(seed);
  auto random = std::mt19937{seed};
  for (auto i = 0; i < 1'000'000; ++i) {
    // Half of them in the range of float16, where nearly all patterns would otherwise be infinite or zero.
    auto bits = static_cast<std::uint32_t>(random());
    if (i % 2 == 0) {
      bits = (bits & 0x87ffffffu) + 0x32000000u + (bits & 0x08000000u);
    }
    const auto number = __builtin_bit_cast(float, bits);
    const auto stored = TestType::encode(number, 1.0f);
    if (std::isnan(number)) {
      if (!std::isnan(TestType::decode(stored, 1.0f))) {
        FAIL("a NaN was lost: " << bits);
      }
    } else if (stored != reference(number)) {
      FAIL("pattern " << bits << " was stored as " << stored << " instead of " << reference(number));
    }
  }
  SUCCEED();
}

TEMPLATE_TEST_CASE("no NaN becomes an infinity, whatever its payload", "[element]", float16, bfloat16) {
  for (auto payload = 1u; payload < 0x800000u; payload += payload < 0x2000u ? 1u : 0x0fffu) {
    for (const auto sign : {0u, 0x80000000u}) {
      const auto number = __builtin_bit_cast(float, sign | 0x7f800000u | payload);
      const auto stored = TestType::encode(number, 1.0f);
      if ((stored & 0x7fff) <= infinity_bits<TestType> || stored >> 15 != sign >> 31) {
        FAIL("payload " << payload << " was stored as " << stored);
      }
    }
  }
  SUCCEED();
}

TEST_CASE("16-bit elements work in constant expressions", "[element]") {
  static_assert(float16::encode(1.0f, 1) == 0x3c00 && float16::encode(65519.9f, 1) == 0x7bff);
  static_assert(float16::encode(65520.0f, 1) == 0x7c00 && float16::decode(0x0001, 1) == 0x1p-24f);
  static_assert(bfloat16::encode(1.0f, 1) == 0x3f80 && bfloat16::decode(0x0001, 1) == 0x1p-133f);
  CHECK(same_bits(float16::decode(0x8000, 1), -0.0f));
  CHECK(same_bits(bfloat16::decode(0x8000, 1), -0.0f));
}

#if defined(__FLT16_MANT_DIG__) && defined(__F16C__)
TEST_CASE("float16 agrees with the processor's conversions", "[element]") {
  auto random = std::mt19937{1};
  for (auto i = 0; i < 1'000'000; ++i) {
    const auto number = __builtin_bit_cast(float, static_cast<std::uint32_t>(random()));
    const auto native = static_cast<_Float16>(number);
    if (!std::isnan(number) && float16::encode(number, 1.0f) != __builtin_bit_cast(std::uint16_t, native)) {
      FAIL("stored otherwise: " << number);
    }
  }
  SUCCEED();
}
#endif
