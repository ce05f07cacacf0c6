#include "../support/asserts.hpp"

#include <pagedkv/core/result.hpp>

#include <catch2/catch_test_macros.hpp>

#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

using pagedkv::error;
using pagedkv::error_code;
using pagedkv::result;

static_assert(std::is_trivially_copyable_v<result<void>> && std::is_trivially_copyable_v<result<std::int64_t>>);
static_assert(!std::is_convertible_v<result<void>, bool> && !std::is_default_constructible_v<result<int>>);

TEST_CASE("value() of a failed result throws an exception that carries the error", "[result]") {
  const auto failed = result<int>(error{error_code::unknown_sequence, "sequence_id", 7});
  REQUIRE(failed.has_error());
  try {
    static_cast<void>(failed.value());
    FAIL("value() returned");
  } catch (const pagedkv::exception& e) {
    CHECK(e.reason().code == error_code::unknown_sequence);
    CHECK(e.reason().value == 7);
    CHECK(std::string(e.what()) == failed.error().message());
  }
}

TEST_CASE("a result holds a value or an error, also without a value type", "[result]") {
  const auto good = result<int>(5);
  CHECK(good.value() == 5);
  CHECK(result<void>().has_value());
  const auto refused = result<void>(error{error_code::in_use, "blocks", 2});
  CHECK(refused.error().code == error_code::in_use);
  CHECK_THROWS_AS(refused.value(), pagedkv::exception);
}

TEST_CASE("a result returns its value by reference, and moves it out of a temporary", "[result]") {
  auto text = result<std::string>("a text that is too long to be stored in place");
  text.value() += "!";
  CHECK(text->back() == '!');
  CHECK(std::as_const(text)->size() == std::as_const(text).value().size());
  CHECK(std::move(text).value() == "a text that is too long to be stored in place!");

  auto moved = result<std::unique_ptr<int>>(std::make_unique<int>(3));
  auto to = std::move(moved);
  CHECK(**to == 3);
  CHECK(*std::move(to).value() == 3);
}

TEST_CASE("a result is assigned and copied whole, value over error and back", "[result]") {
  auto one = result<std::string>(error{error_code::in_use, "blocks", 2});
  const auto other = result<std::string>("fine");
  one = other;
  CHECK(one.value() == "fine");
  one = error{error_code::out_of_memory, "blocks", 3};
  CHECK_FALSE(one);
  CHECK(one.error().value == 3);
  CHECK(other.value() == "fine");
}

#ifndef NDEBUG

TEST_CASE("a debug build says which error a result holds whose value is used", "[result]") {
  const auto refused = result<std::string>(error{error_code::never_fits, "number of blocks", 3, 2});
  const auto holds = [](const std::string& words) {
    return words.starts_with("pagedkv: never fits: number of blocks is 3, limit 2\n") &&
           words.find("a result that holds an error has no value") != std::string::npos;
  };
  CHECK(holds(pagedkv::testing::words_of_assertion([&] { static_cast<void>(refused->size()); })));
  CHECK(holds(pagedkv::testing::words_of_assertion([&] { static_cast<void>(*refused); })));
}

#endif
