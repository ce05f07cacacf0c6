#include <pagedkv/core/result.hpp>

#include <catch2/catch_test_macros.hpp>

#include <string>

using pagedkv::error;
using pagedkv::error_code;

TEST_CASE("a message names the kind, the subject, the value and the limit", "[error]") {
  const auto e = error{error_code::capacity_exhausted, "blocks needed", 9, 4};
  CHECK(e.message() == "capacity exhausted: blocks needed is 9, limit 4");
}

TEST_CASE("a limit of nothing is a limit", "[error]") {
  CHECK(error{error_code::capacity_exhausted, "blocks needed", 9, 0}.message() ==
        "capacity exhausted: blocks needed is 9, limit 0");
}

TEST_CASE("a message without a limit names none", "[error]") {
  const auto e = error{error_code::invalid_argument, "cache_config.block_size", -3};
  CHECK(e.message() == "invalid argument: cache_config.block_size is -3");
}

TEST_CASE("a message ends with a device runtime's own words", "[error]") {
  const auto e = error{error_code::backend_failure, "hipMalloc", 2, error::no_limit, "out of memory"};
  CHECK(e.message() == "backend failure: hipMalloc answered 2 (out of memory)");
}

TEST_CASE("a message ends with what else is known", "[error]") {
  const auto e = error{error_code::invalid_argument, "size of a file", 7, 8, "/disk0/kv"};
  CHECK(e.message() == "invalid argument: size of a file is 7, limit 8 (/disk0/kv)");
}

TEST_CASE("every error code is described, each differently", "[error]") {
  constexpr auto last = static_cast<int>(error_code::backend_failure);
  const auto describe = [](int code) { return std::string(pagedkv::describe(static_cast<error_code>(code))); };
  const auto unknown = describe(last + 1);
  CHECK(unknown == "unknown error");
  for (auto code = 0; code <= last; ++code) {
    CHECK(describe(code) != unknown);
    for (auto other = 0; other < code; ++other) {
      CHECK(describe(code) != describe(other));
    }
  }
}
