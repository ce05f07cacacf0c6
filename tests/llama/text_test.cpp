#include "../../examples/llama/serve/text.hpp"

#include <catch2/catch_test_macros.hpp>

#include <string>
#include <string_view>
#include <vector>

using namespace llama;

namespace {

/// The parts that a text gives out, byte by byte, and its rest.
std::vector<std::string> given_out(std::string_view bytes, const std::vector<std::string>& stops) {
  auto text = growing_text(stops);
  auto parts = std::vector<std::string>{};
  for (const auto byte : bytes) {
    parts.push_back(text.add(std::string_view(&byte, 1)));
    if (text.is_stopped()) {
      return parts;
    }
  }
  parts.push_back(text.finish());
  return parts;
}

using parts = std::vector<std::string>;

}  // namespace

TEST_CASE("a growing text gives out whole characters", "[llama]") {
  CHECK(given_out("a\u00e9\u6771\U0001f642", {}) ==
        parts{"a", "", "\u00e9", "", "", "\u6771", "", "", "", "\U0001f642", ""});
  CHECK(given_out("\xc3", {}) == parts{"", "\xc3"});
  CHECK(given_out("\x80\x80", {}) == parts{"\x80", "\x80", ""});
}

TEST_CASE("a growing text holds back what may become a stop", "[llama]") {
  const auto stops = parts{"end", "eel"};
  CHECK(given_out("an eend", stops) == parts{"a", "n", " ", "", "", "e", ""});
  CHECK(given_out("seen e", stops) == parts{"s", "", "", "e", "en ", "", "e"});
  CHECK(given_out("een", stops) == parts{"", "", "e", "en"});
  CHECK(given_out("end", stops) == parts{"", "", ""});
  auto text = growing_text(stops);
  CHECK(text.add("begin eel end") == "begin ");
  CHECK(text.is_stopped());
}
