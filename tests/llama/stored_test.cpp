#include "../../bench/engine/divergence.hpp"
#include "../../examples/llama/engine.hpp"
#include "../../examples/llama/logits.hpp"
#include "../../examples/llama/model.hpp"
#include "small_models.hpp"

#include <catch2/catch_test_macros.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

using namespace llama;
using namespace llama::test;
using bench::compare;

namespace {

struct bound {
  stored_as stored;
  double largest;           // difference of a logit, in shares of the largest one
  double relative_entropy;  // nats
};
using bounds = std::array<bound, 4>;

constexpr auto of_trained = bounds{{
    {stored_as::float16, 2e-3, 1e-6},
    {stored_as::bfloat16, 2e-2, 1e-4},
    {stored_as::int8, 5e-2, 1e-3},
    {stored_as::float8, 2e-1, 1e-2},
}};
/// Random weights amplify, those of Gemma's kind the most.
constexpr auto of_random = bounds{{
    {stored_as::float16, 5e-2, 2e-5},
    {stored_as::bfloat16, 2.5e-1, 1e-3},
    {stored_as::int8, 7.5e-1, 1e-2},
    {stored_as::float8, 1.3, 6e-2},
}};

void check_divergence(const std::filesystem::path& folder, const std::vector<pagedkv::token>& text,
                      const bounds& most) {
  auto loaded = model(folder);
  const auto width = static_cast<std::size_t>(loaded.config().vocabulary);
  const auto exact = logits_of(loaded, text, stored_as::float32);
  for (const auto& [stored, largest, relative_entropy] : most) {
    const auto found = compare(exact, logits_of(loaded, text, stored), width);
    CAPTURE(static_cast<int>(stored), found.largest, found.relative_entropy);
    CHECK(found.largest > 0);
    CHECK(found.largest <= largest);
    CHECK(found.relative_entropy <= relative_entropy);
  }
}

}  // namespace

TEST_CASE("logits with K and V in float32 are those of transformers", "[llama]") {
  for (const auto& each : references()) {
    const auto folder = model_folder(each);
    auto loaded = model(folder.path());
    const auto& [prompt, tokens, expected] = each.cases.back();
    const auto logits = logits_of(loaded, prompt, stored_as::float32);
    const auto* const last = logits.data() + logits.size() - static_cast<std::size_t>(loaded.config().vocabulary);
    auto largest = 0.0F;
    auto worst = 0.0F;
    for (auto i = std::size_t{0}; i < expected.size(); ++i) {
      largest = std::max(largest, std::abs(expected[i]));
      worst = std::max(worst, std::abs(last[i] - expected[i]));
    }
    CAPTURE(each.name, worst, largest);
    CHECK(worst <= 2e-4F * largest);
  }
}

TEST_CASE("logits with K and V in fewer bits are near those in float32", "[llama]") {
  for (const auto& each : references()) {
    CAPTURE(each.name);
    check_divergence(model_folder(each).path(), each.cases.back().prompt, of_random);
  }
  auto text = std::vector<pagedkv::token>{};
  for (const auto& each : trained_reference().at("cases")) {
    for (const auto* const part : {"prompt", "tokens"}) {
      const auto more = each.at(part).get<std::vector<pagedkv::token>>();
      text.insert(text.end(), more.begin(), more.end());
    }
  }
  check_divergence(trained_model(), text, of_trained);
}

TEST_CASE("engines store K and V in fewer bits", "[llama]") {
  auto trained = model(trained_model());
  const auto text = trained_reference().at("cases").at(0).at("prompt").get<std::vector<pagedkv::token>>();
  for (const auto& each : of_trained) {
    const auto engine = make_engine(trained, {.num_blocks = 64}, each.stored);
    auto options = generation_options{};
    options.max_tokens = 20;
    options.num_samples = 2;
    options.ignores_end = true;
    const auto* const made = engine->submit(text, options).value();
    engine->run();
    auto behind = std::vector(made->tokens.begin(), made->tokens.end() - 1);
    const auto logits = logits_of(trained, std::move(behind), each.stored);
    const auto* const last = logits.data() + logits.size() - static_cast<std::size_t>(trained.config().vocabulary);
    CHECK(std::max_element(last, logits.data() + logits.size()) - last == made->tokens.back());
    CHECK(engine->cache_statistics().blocks.in_use == 0);
    CHECK(engine->check_invariants() == std::vector<std::string>{});
  }
}

TEST_CASE("divergence of logits", "[llama]") {
  const auto exact = std::vector<float>{0, 1, 2, 3};
  const auto none = compare(exact, exact, 2);
  CHECK(none.largest == 0);
  CHECK(none.relative_entropy == 0);
  CHECK(none.same_best == 1);
  // Behind the first token the other one is the likelier: log((1 + e) / e) - log((1 + e) / 1), weighted.
  const auto some = compare(exact, std::vector<float>{1, 0, 2, 3}, 2);
  CHECK(some.largest == 1.0 / 3);
  CHECK(std::abs(some.relative_entropy - (std::exp(1.0) - 1) / (std::exp(1.0) + 1) / 2) < 1e-12);
  CHECK(some.same_best == 0.5);
}
