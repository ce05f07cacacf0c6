#include <pagedkv/core/checked.hpp>

#include <catch2/catch_test_macros.hpp>

#include <limits>

using pagedkv::checked_size;

namespace {
constexpr auto largest_size = std::numeric_limits<std::int64_t>::max();
}

TEST_CASE("sizes that fit are computed exactly", "[core]") {
  auto size = checked_size{};
  CHECK(size.multiply(1'000'000'007, 9'000'000'011) == 9'000'000'074'000'000'077);
  CHECK(size.multiply(largest_size, 1) == largest_size);
  CHECK(size.multiply(largest_size, 0) == 0);
  CHECK(size.add(largest_size - 1, 1) == largest_size);
  CHECK(size.round_up(0, 256) == 0);
  CHECK(size.round_up(1, 256) == 256);
  CHECK(size.round_up(256, 256) == 256);
  CHECK(size.round_up(257, 256) == 512);
  CHECK(size.round_up(largest_size - 255, 256) == largest_size - 255);
  CHECK_FALSE(size.overflowed());
}

TEST_CASE("every operation that overflows is remembered", "[core]") {
  auto size = checked_size{};
  SECTION("multiply") { (void)size.multiply(std::int64_t{1} << 32, std::int64_t{1} << 31); }
  SECTION("add") { (void)size.add(largest_size, 1); }
  SECTION("round_up") { (void)size.round_up(largest_size - 254, 256); }
  REQUIRE(size.overflowed());
  CHECK(size.multiply(2, 3) == 6);
  CHECK(size.overflowed());
}

TEST_CASE("checked sizes are usable in constant expressions", "[core]") {
  static_assert([] {
    auto size = checked_size{};
    return size.round_up(size.multiply(3, 100), 256) == 512 && !size.overflowed();
  }());
  SUCCEED();
}
