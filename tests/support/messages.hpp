#pragma once

#include <pagedkv/core/result.hpp>

#include <catch2/catch_test_macros.hpp>

#include <string>
#include <utility>
#include <vector>

namespace pagedkv::test {

/// The message of a refusal.
template <class Result>
[[nodiscard]] std::string said(const Result& refused) {
  return refused ? "no refusal" : refused.error().message();
}

/// The same for a constructor that throws.
template <class Construct>
[[nodiscard]] std::string thrown(Construct construct) {
  try {
    construct();
  } catch (const exception& e) {
    return e.what();
  }
  return "no refusal";
}

[[nodiscard]] inline std::string invalid(const std::string& rest) { return "invalid argument: " + rest; }

/// A row for each refusal: what it says, and what it should say.
using message_table = std::vector<std::pair<std::string, std::string>>;

inline void check_messages(const message_table& table) {
  for (const auto& [found, expected] : table) {
    CHECK(found == expected);
  }
}

}  // namespace pagedkv::test
