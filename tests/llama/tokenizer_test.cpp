#include "../../examples/llama/tokenizer.hpp"
#include "small_models.hpp"

#include <catch2/catch_test_macros.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <map>
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

TEST_CASE("long texts have tokens, too", "[llama]") {  // and soon: no match reads the rest of the text
  const auto words = tokenizer(test::trained_model());
  auto text = std::string{};
  for (auto i = 0; i < 100'000; ++i) {
    text += "word ";
  }
  CHECK(words.decode(words.encode_plain(text)) == text);
  auto names = std::string{};
  for (auto i = 0; i < 100'000; ++i) {
    names += "<|end|>";
  }
  CHECK(words.encode(names) == std::vector<pagedkv::token>(100'000, *words.find_special("<|end|>")));
}

TEST_CASE("the longest of special names that begin together is meant", "[llama]") {
  const auto changed = test::changed_tokenizer([](nlohmann::json& whole) {
    for (const auto& [id, name] : std::map<int, std::string>{{2048, "<|us"}, {2049, "er|>"}, {2050, "<|user|>s"}}) {
      whole["added_tokens"].push_back({{"id", id}, {"content", name}, {"special", true}});
    }
  });
  const auto words = tokenizer(changed.path());
  CHECK(words.encode("<|user|><|user|>s<|user|><|us<|user|>er|>") ==
        std::vector<pagedkv::token>{1, 2050, 1, 2048, 1, 2049});
}

TEST_CASE("spaces become the tokenizer's own mark and come back", "[llama]") {
  const auto changed = test::changed_tokenizer([](nlohmann::json& whole) {
    whole["normalizer"] = {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "\u2581"}};
    whole["pre_tokenizer"] = nullptr;
    whole["model"] = {{"type", "BPE"},
                      {"vocab", {{"a", 5}, {"\u2581", 6}, {"\u2581a", 7}, {"<0xZZ>", 8}, {"<0x0A>", 9}}},
                      {"merges", {"\u2581 a"}}};
  });
  const auto words = tokenizer(changed.path());
  CHECK(words.encode_plain("a  a\n") == std::vector<pagedkv::token>{5, 6, 7, 9});
  CHECK(words.decode({5, 6, 7, 9}) == "a  a\n");
  CHECK(words.bytes_of(8) == "<0xZZ>");  // which is no byte
}

TEST_CASE("a tokenizer with NFC takes text as composed, and leaves it as it is", "[llama]") {
  const auto changed = test::changed_tokenizer([](nlohmann::json& whole) { whole["normalizer"] = {{"type", "NFC"}}; });
  const auto words = tokenizer(changed.path());
  for (const auto* const text : {"na\u00efve", "nai\u0308ve", "\u212b"}) {
    CHECK(words.encode(text) == tokenizer(test::trained_model()).encode(text));
    CHECK(words.decode(words.encode(text)) == text);
  }
}

TEST_CASE("only learnt pairs of ends of lines are joined", "[llama]") {
  const auto changed = test::changed_tokenizer([](nlohmann::json& whole) {
    whole["normalizer"] = whole["pre_tokenizer"] = nullptr;
    whole["model"] = {{"type", "BPE"},
                      {"vocab", {{"\n", 5}, {"\n\n", 6}, {"\n\n\n", 7}}},
                      {"merges", nlohmann::json::parse(R"([["\n", "\n"], ["\n", "\n\n"]])")}};
  });
  const auto words = tokenizer(changed.path());
  CHECK(words.encode_plain("\n\n\n") == std::vector<pagedkv::token>{6, 5});
}

TEST_CASE("an added token that is no special one is its own text", "[llama]") {
  const auto names = std::array<std::string, 3>{"<\uff5cUser\uff5c>", "two words", "<think>"};
  const auto changed = test::changed_tokenizer([&](nlohmann::json& whole) {
    for (auto i = std::size_t{0}; i < names.size(); ++i) {
      whole["added_tokens"].push_back({{"id", 2048 + i}, {"content", names[i]}, {"special", false}});
    }
  });
  const auto words = tokenizer(changed.path());
  for (auto i = std::size_t{0}; i < names.size(); ++i) {
    CHECK(words.bytes_of(static_cast<pagedkv::token>(2048 + i)) == names[i]);
    CHECK(words.decode(words.encode("a " + names[i])) == "a " + names[i]);
  }
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
