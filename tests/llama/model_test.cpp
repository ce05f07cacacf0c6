#include "plain_generation.hpp"
#include "small_models.hpp"

#include <catch2/catch_test_macros.hpp>

#include <algorithm>
#include <cmath>

using namespace llama;
using namespace llama::test;

TEST_CASE("models generate the tokens of transformers", "[llama]") {
  for (const auto& each : references()) {
    CAPTURE(each.name);
    const auto folder = model_folder(each);
    auto loaded = model(folder.path());
    for (const auto& [prompt, tokens, logits] : each.cases) {
      CAPTURE(prompt.size());
      CHECK(generate_plainly(loaded, prompt, tokens.size()) == tokens);
    }
  }
}

TEST_CASE("logits are those of transformers", "[llama]") {
  for (const auto& each : references()) {
    CAPTURE(each.name);
    const auto folder = model_folder(each);
    auto loaded = model(folder.path());
    for (const auto& [prompt, tokens, expected] : each.cases) {
      auto step = step_tokens{};
      step.tokens = prompt;
      for (auto i = std::size_t{0}; i < prompt.size(); ++i) {
        step.positions.push_back(static_cast<std::int32_t>(i));
      }
      step.is_long.assign(prompt.size(), loaded.config().is_long(std::ssize(prompt)));
      step.starts.push_back(static_cast<std::int32_t>(prompt.size()));
      step.wanted = {static_cast<std::int32_t>(prompt.size()) - 1};
      auto kept = plain_memory(loaded.config());
      kept.expect(prompt.size());
      const auto logits = loaded.run(step, kept);
      auto largest = 0.0f;
      auto worst = 0.0f;
      for (auto i = std::size_t{0}; i < expected.size(); ++i) {
        largest = std::max(largest, std::abs(expected[i]));
        worst = std::max(worst, std::abs(logits[i] - expected[i]));
      }
      CAPTURE(prompt.size(), worst, largest);
      CHECK(worst <= 2e-4f * largest);
    }
  }
}
