#include "../../examples/llama/tokenizer.hpp"
#include "small_models.hpp"

#include <catch2/catch_test_macros.hpp>

#include <filesystem>
#include <string>
#include <vector>

using namespace llama;

TEST_CASE("texts have the tokens that the tokenizers library gives", "[llama]") {
  const auto words = tokenizer(test::trained_model());
  for (const auto& each : test::trained_reference().at("texts")) {
    const auto text = each.at("text").get<std::string>();
    CAPTURE(text);
    CHECK(words.encode(text) == each.at("tokens").get<std::vector<pagedkv::token>>());
  }
}

TEST_CASE("tokens give their text back", "[llama]") {
  const auto words = tokenizer(test::trained_model());
  for (const auto& each : test::trained_reference().at("texts")) {
    const auto text = each.at("text").get<std::string>();
    CHECK(words.decode(words.encode_plain(text)) == text);
  }
  const auto broken = std::string("a\xff\xc3 b\xe6\x9d");  // no UTF-8
  CHECK(words.decode(words.encode(broken)) == broken);
  CHECK(words.bytes_of(-1).empty());
  CHECK(words.bytes_of(1'000'000).empty());
}
