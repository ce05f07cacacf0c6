#include <pagedkv/kernels/divider.hpp>

#include <catch2/catch_get_random_seed.hpp>
#include <catch2/catch_test_macros.hpp>

#include <algorithm>
#include <limits>
#include <random>

namespace {

using pagedkv::kernels::divider;

template <class Dividend>
void check_as(Dividend dividend, std::int32_t divisor) {
  const auto [quotient, remainder] = divider<Dividend>(divisor).split(dividend);
  if (quotient != dividend / divisor || remainder != dividend % divisor) {
    CAPTURE(sizeof(Dividend), dividend, divisor, quotient, remainder);
    FAIL("divided wrongly");
  }
}

void check(std::int64_t dividend, std::int32_t divisor) {
  check_as(dividend, divisor);
  check_as(static_cast<std::int32_t>(dividend & std::numeric_limits<std::int32_t>::max()), divisor);
}

TEST_CASE("A divider divides like the processor, at every edge") {
  constexpr auto largest = std::numeric_limits<std::int64_t>::max();
  for (const auto divisor : {1, 2, 3, 5, 7, 16, 80, 255, 256, 257, 65535, 65536, 1 << 30, 2147483646, 2147483647}) {
    for (auto multiple = std::int64_t{0}; multiple < 40; ++multiple) {
      for (auto around = std::int64_t{-1}; around <= 1; ++around) {
        const auto small = std::max(multiple * divisor + around, std::int64_t{0});
        check(small, divisor);
        check(largest / divisor * divisor - small, divisor);
        check((std::int64_t{1} << (multiple + 23)) + around, divisor);
      }
    }
    check(largest, divisor);
  }
  CHECK(divider<std::int64_t>().split(12).quotient == 12);
  CHECK(divider<std::int32_t>().split(12).quotient == 12);
}

TEST_CASE("A divider divides like the processor, at random", "[random]") {
  const auto seed = Catch::getSeed();
  CAPTURE(seed);
  auto random = std::mt19937_64(seed);
  for (auto i = 0; i < 200'000; ++i) {
    const auto divisor = static_cast<std::int32_t>((random() >> (33 + random() % 31)) | 1U);
    check(static_cast<std::int64_t>(random() >> (1 + random() % 63)), divisor);
  }
}

}  // namespace
