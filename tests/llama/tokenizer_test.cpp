#include "../../examples/llama/tokenizer.hpp"
#include "small_models.hpp"

#include <catch2/catch_test_macros.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <filesystem>
#include <string>
#include <thread>
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

TEST_CASE("a word of a hundred thousand letters has tokens, too", "[llama]") {
  const auto words = tokenizer(test::trained_model());
  auto word = std::string(100'000, 'a');
  for (auto i = std::size_t{0}; i < word.size(); ++i) {
    word[i] = "etaoin"[i * i % 6];
  }
  CHECK(words.decode(words.encode_plain(word)) == word);
}

TEST_CASE("threads encode with one tokenizer at once", "[llama]") {
  const auto words = tokenizer(test::trained_model());
  const auto texts = std::array<std::string, 4>{"What is a hacker?", "kluge", "two  spaces, and 12345", "it's we'll"};
  auto wrong = std::atomic<int>{0};
  auto threads = std::vector<std::thread>{};
  for (const auto& text : texts) {
    threads.emplace_back([&, expected = words.encode(text)] {
      for (auto i = 0; i < 500; ++i) {
        wrong += words.encode(text) == expected ? 0 : 1;
      }
    });
  }
  std::ranges::for_each(threads, &std::thread::join);
  CHECK(wrong == 0);
}
