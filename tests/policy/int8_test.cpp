#include "element_suite.hpp"

#include <pagedkv/policy/element/int8.hpp>

using namespace pagedkv;
using namespace pagedkv::test;

namespace {

constexpr auto smallest_normal = std::numeric_limits<float>::min();
constexpr auto float_infinity = std::numeric_limits<float>::infinity();

struct encoded {
  std::vector<std::int8_t> stored;
  float scale;
};

encoded encode(const std::vector<float>& row) {
  auto stored = std::vector<std::int8_t>(row.size());
  const auto scale = encode_row<int8>(row, stored);
  return {stored, scale};
}

}  // namespace

TEST_CASE("the largest magnitude is stored as 127 of its sign", "[int8]") {
  for (const auto absmax : {1.0f, 0.1f, 3.7e-5f, 448.0f, 6.5e4f, 1e38f, 127 * smallest_normal}) {
    CAPTURE(absmax);
    const auto [stored, scale] = encode({absmax, -absmax, 0.0f, -0.0f});
    CHECK(scale == absmax / 127);
    CHECK(stored == std::vector<std::int8_t>{127, -127, 0, 0});
  }
}

TEST_CASE("a finite row is read as finite numbers up to the largest float32", "[int8]") {
  constexpr auto largest = std::numeric_limits<float>::max();
  const auto [stored, scale] = encode({largest, -largest, largest / 2});
  CHECK(stored == std::vector<std::int8_t>{127, -127, 64});
  CHECK(std::abs(int8::decode(127, scale) - largest) <= scale / 2);
  CHECK(int8::decode(-127, scale) == -int8::decode(127, scale));
}

TEST_CASE("halfway cases are rounded to even", "[int8]") {
  for (auto n = -127; n < 127; ++n) {
    const auto halfway = static_cast<float>(n) + 0.5f;
    const auto even = n % 2 == 0 ? n : n + 1;
    for (const auto scale : {1.0f, 0.25f, 1024.0f}) {
      CHECK(int8::encode(halfway * scale, scale) == even);
      CHECK(int8::encode(std::nextafter(halfway, -float_infinity) * scale, scale) == n);
      CHECK(int8::encode(std::nextafter(halfway, float_infinity) * scale, scale) == n + 1);
    }
  }
}

TEST_CASE("every stored number is read as its multiple of the scale and stored as itself again", "[int8]") {
  for (auto n = -127; n <= 127; ++n) {
    for (const auto scale : {1.0f, 0.3f, 1e-30f, smallest_normal, 1e36f}) {
      const auto read = int8::decode(static_cast<std::int8_t>(n), scale);
      CHECK(read == static_cast<float>(n) * scale);
      CHECK(int8::encode(read, scale) == n);
    }
  }
}

TEST_CASE("an all-zero row has a scale that divides and decodes to zeros", "[int8]") {
  const auto [stored, scale] = encode({0.0f, -0.0f, 0.0f});
  CHECK(scale == smallest_normal);
  CHECK(stored == std::vector<std::int8_t>{0, 0, 0});
  CHECK(stored_and_read<int8>({0.0f, -0.0f, 0.0f}) == std::vector<float>{0, 0, 0});
}

TEST_CASE("one outlier costs its row precision, within half a scale", "[int8]") {
  auto random = std::mt19937{7};
  for (const auto outlier : {10.0f, -1e3f, 1e6f, -3e38f}) {
    auto row = random_row(random, 128, 1.0f);
    row[77] = outlier;
    const auto [stored, scale] = encode(row);
    CHECK(stored[77] == (outlier > 0 ? 127 : -127));
    for (auto i = std::size_t{0}; i < row.size(); ++i) {
      CHECK(std::abs(int8::decode(stored[i], scale) - row[i]) <= scale / 2 * (1 + 0x1p-15f));
    }
  }
}

TEST_CASE("subnormal rows are within half of the smallest scale", "[int8]") {
  for (const auto absmax : {std::numeric_limits<float>::denorm_min(), 1e-42f, smallest_normal / 2, smallest_normal,
                            3 * smallest_normal, 126 * smallest_normal}) {
    CAPTURE(absmax);
    const auto row = std::vector{absmax, -absmax, absmax / 2, -absmax / 3, 0.0f};
    const auto [stored, scale] = encode(row);
    CHECK(scale == smallest_normal);
    for (auto i = std::size_t{0}; i < row.size(); ++i) {
      CHECK(std::abs(int8::decode(stored[i], scale) - row[i]) <= scale / 2);
    }
  }
}

TEST_CASE("a NaN or an infinity makes its whole row NaN", "[int8]") {
  for (const auto special : {float_infinity, -float_infinity, std::numeric_limits<float>::quiet_NaN(),
                             -std::numeric_limits<float>::quiet_NaN(), __builtin_bit_cast(float, 0x7f800001u)}) {
    const auto row = std::vector{1.0f, special, -2.0f, 0.0f};
    CHECK(std::isnan(encode(row).scale));
    for (const auto x : stored_and_read<int8>(row)) {
      CHECK(std::isnan(x));
    }
  }
}

TEST_CASE("int8 works in constant expressions", "[int8]") {
  static_assert(int8::scale_for(127.0f) == 1.0f && int8::encode(-3.5f, 1.0f) == -4 && int8::decode(-4, 0.5f) == -2.0f);
  SUCCEED();
}
