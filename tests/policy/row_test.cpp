// Vector instructions, chosen at run time, convert rows: every bit equals that of `encode` and `decode`.

#include <pagedkv/policy/element/all.hpp>
#include <pagedkv/policy/element/parts/row.hpp>

#include <catch2/catch_get_random_seed.hpp>
#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>

#include <algorithm>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

using namespace pagedkv;

namespace {

[[nodiscard]] std::uint32_t bits_of(float number) { return __builtin_bit_cast(std::uint32_t, number); }
[[nodiscard]] float from_bits(std::uint32_t bits) { return __builtin_bit_cast(float, bits); }

template <class T>
[[nodiscard]] bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  // memcmp requires non-null pointers even for zero bytes.
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

/// Converts once as a row and once number by number; returns whether all bits are equal.
template <class Element>
[[nodiscard]] bool rows_are_as_numbers(const std::vector<float>& row) {
  auto stored = std::vector<typename Element::storage>(row.size());
  const auto scale = encode_row<Element>(row, stored);
  auto expected = stored;
  std::transform(row.begin(), row.end(), expected.begin(), [&](float x) { return Element::encode(x, scale); });
  auto read = std::vector<float>(row.size());
  decode_row<Element>(stored, scale, read);
  auto expected_read = read;
  std::transform(stored.begin(), stored.end(), expected_read.begin(),
                 [&](auto x) { return Element::decode(x, scale); });
  return same_bits(stored, expected) && same_bits(read, expected_read);
}

}  // namespace

TEMPLATE_LIST_TEST_CASE("rows of every length are converted like their numbers", "[row][random]", all_elements) {
  const auto seed = Catch::getSeed();
  INFO("seed " << seed);
  auto random = std::mt19937(seed);
  auto moderate = std::normal_distribution<float>(0, 10);
  for (auto size = std::size_t{0}; size < 200; ++size) {
    auto row = std::vector<float>(size);
    std::generate(row.begin(), row.end(), [&] { return moderate(random); });
    REQUIRE(rows_are_as_numbers<TestType>(row));
  }
}

TEMPLATE_TEST_CASE("rows of any bits are converted like their numbers", "[row][random]", float32, float16, bfloat16,
                   float8_e4m3, float8_e5m2, float8_e4m3fnuz, float8_e5m2fnuz) {
  const auto seed = Catch::getSeed();
  INFO("seed " << seed);
  auto random = std::mt19937(seed);
  auto row = std::vector<float>(1000);
  for (auto repetition = 0; repetition < 1000; ++repetition) {
    std::generate(row.begin(), row.end(), [&] { return from_bits(static_cast<std::uint32_t>(random())); });
    REQUIRE(rows_are_as_numbers<TestType>(row));
  }
}

TEST_CASE("every half decodes alike in a row and alone, a signalling NaN to a quiet one", "[row][float16]") {
  auto halves = std::vector<std::uint16_t>(1 << 16);
  for (auto i = std::size_t{0}; i < halves.size(); ++i) {
    halves[i] = static_cast<std::uint16_t>(i);
  }
  auto row = std::vector<float>(halves.size());
  decode_row<float16>(halves, 1.0f, row);
  for (auto i = std::size_t{0}; i < halves.size(); ++i) {
    if (bits_of(row[i]) != bits_of(float16::decode(halves[i], 1.0f))) {
      FAIL("half " << i << " decodes to " << bits_of(row[i]));
    }
  }
  CHECK(bits_of(float16::decode(0x7c01, 1.0f)) == 0x7fc02000U);
  CHECK(bits_of(float16::decode(0xfdff, 1.0f)) == 0xffffe000U);
}

TEST_CASE("numbers around every half, and between, encode alike in a row and alone", "[row][float16]") {
  auto row = std::vector<float>();
  const auto check = [&] {
    REQUIRE(rows_are_as_numbers<float16>(row));
    row.clear();
  };
  // Each half, the ties on both sides, and the next float32 numbers.
  for (auto i = std::uint32_t{0}; i < 0x7c01U; ++i) {
    const auto at = float16::decode(static_cast<std::uint16_t>(i), 1.0f);
    const auto above = i < 0x7bffU ? float16::decode(static_cast<std::uint16_t>(i + 1), 1.0f) : 65536.0f;
    for (const auto number : {at, (at + above) / 2}) {
      for (const auto near : {bits_of(number) - (number > 0 ? 1U : 0U), bits_of(number), bits_of(number) + 1U}) {
        row.push_back(from_bits(near));
        row.push_back(-from_bits(near));
      }
    }
  }
  check();
  // A float32 number in 1,021, NaN with their payloads and subnormal ones among them.
  for (auto bits = std::uint64_t{0}; bits <= std::numeric_limits<std::uint32_t>::max(); bits += 1021) {
    row.push_back(from_bits(static_cast<std::uint32_t>(bits)));
  }
  check();
}

namespace {

/// Converts once as a row and once number by number; returns whether all bits are equal.
template <class To, class From>
[[nodiscard]] bool recoded_as_numbers(const std::vector<typename From::storage>& from, float from_scale) {
  auto decoded = std::vector<float>(from.size());
  std::transform(from.begin(), from.end(), decoded.begin(), [&](auto x) { return From::decode(x, from_scale); });
  auto to = std::vector<typename To::storage>(from.size());
  const auto scale = recode_row<To, From>(from, from_scale, to);
  auto expected = to;
  std::transform(decoded.begin(), decoded.end(), expected.begin(), [&](float x) { return To::encode(x, scale); });
  const auto expected_scale = To::scaled ? To::scale_for(absmax(decoded)) : 1.0f;
  return same_bits(to, expected) && bits_of(scale) == bits_of(expected_scale);
}

}  // namespace

TEMPLATE_TEST_CASE("rows of 16 bits are converted like their numbers, in rows of any length", "[row][random]", float16,
                   bfloat16) {
  auto all = std::vector<std::uint16_t>(65536);
  std::generate(all.begin(), all.end(), [next = std::uint16_t{0}]() mutable { return next++; });
  CHECK(recoded_as_numbers<float32, TestType>(all, 1));
  // A row that holds every number holds NaN, for which int8 has no scale: those have rows of their own.
  using other = std::conditional_t<std::is_same_v<TestType, float16>, bfloat16, float16>;
  CHECK(recoded_as_numbers<other, TestType>(all, 1));
  auto copied = std::vector<std::uint16_t>(all.size());
  CHECK(recode_row<TestType, TestType>(all, 1, copied) == 1);
  CHECK(copied == all);

  const auto seed = Catch::getSeed();
  INFO("seed " << seed);
  auto random = std::mt19937(seed);
  auto moderate = std::normal_distribution<float>(0, 10);
  for (const auto size : {0, 1, 15, 64, 255, 256, 257, 511, 512, 520, 1000}) {
    auto row = std::vector<std::uint16_t>(static_cast<std::size_t>(size));
    std::generate(row.begin(), row.end(), [&] { return TestType::encode(moderate(random), 1); });
    CHECK(recoded_as_numbers<int8, TestType>(row, 1));
    CHECK(recoded_as_numbers<other, TestType>(row, 1));
    auto bytes = std::vector<std::int8_t>(row.size());
    const auto scale = recode_row<int8, TestType>(row, 1, bytes);
    CHECK(recoded_as_numbers<TestType, int8>(bytes, scale));
  }
}
