// Attention on the host over 8-bit floating point in every format, with scales of a tensor, a head, or a token and
// head.

#include "../support/printing.hpp"
#include "attention_under_test.hpp"
#include "instruction_sets.hpp"

#include <catch2/catch_get_random_seed.hpp>
#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>

#include <limits>
#include <random>

using namespace pagedkv;
using namespace pagedkv::test;

// float8_e4m3 with a scale a tensor is among the elements of the other tests.
TEMPLATE_TEST_CASE("attention over 8-bit floating point agrees with its definition", "[attention][float8][random]",
                   in_hnd_block_major<basic_float8_e5m2<head_scale>>,
                   in_nhd_layer_major<basic_float8_e4m3fnuz<token_scale>>, in_nhd_layer_major<float8_e5m2fnuz>) {
  const auto seed = Catch::getSeed();
  CAPTURE(seed);
  auto random = std::mt19937{seed};
  auto shape = batch_shape{{0, 1, 15, 17, 97, 700}};
  shape.num_kv_heads = 3;
  for (const auto group_size : {1, 3, 20}) {
    for (const auto head_dim : {64, 20}) {
      CAPTURE(group_size, head_dim);
      shape.group_size = group_size;
      shape.head_dim = head_dim;
      auto attention = attention_under_test<TestType>{shape, random};
      check_against_reference(attention);
    }
  }
  shape.num_kv_heads = 1;
  shape.head_dim = 96;
  shape.value_dim = 64;
  shape.latent = true;
  auto latent = attention_under_test<TestType>{shape, random};
  check_against_reference(latent);
  shape.latent = false;
  auto longer_keys = attention_under_test<TestType>{shape, random};
  auto options = attention_options{};
  options.soft_cap = 5;
  check_against_reference(longer_keys, options);
}

TEMPLATE_TEST_CASE("a NaN in 8-bit floating point reaches the queries that see it and no others", "[attention][float8]",
                   in_hnd_block_major<basic_float8_e5m2<head_scale>>,
                   in_nhd_layer_major<basic_float8_e4m3fnuz<token_scale>>) {
  for (const auto group_size : {1, 8, 20}) {
    auto random = std::mt19937{19};
    auto shape = batch_shape{{100}};
    shape.group_size = group_size;
    shape.queries = std::vector<std::int32_t>{30};
    auto attention = attention_under_test<TestType>{shape, random};
    auto poisoned = std::vector<float>(2 * 64, 0.5f);
    poisoned[3] = std::numeric_limits<float>::quiet_NaN();  // of KV head 0
    attention.write(0, 85, std::vector<float>(2 * 64, 0.5f), poisoned);
    for (const auto set : instruction_sets<typename TestType::element_type>()) {
      CAPTURE(group_size, static_cast<int>(set));
      REQUIRE(attention.attend({}, {}, set));
      CHECK(std::isfinite(attention.output_at(14, 0, 3)));  // at position 84
      CHECK(std::isnan(attention.output_at(15, 0, 3)));
      CHECK(std::isfinite(attention.output_at(29, group_size, 3)));  // another KV head
    }
  }
}

TEST_CASE("attention over stored numbers is as near to attention over the given ones as the element permits",
          "[attention][float8][random]") {
  const auto seed = Catch::getSeed();
  CAPTURE(seed);
  auto random = std::mt19937{seed};
  auto number = std::uniform_real_distribution<float>{-1, 1};
  constexpr auto num_tokens = std::int64_t{500};
  auto problem = attention_problem{};
  problem.num_tokens = num_tokens;
  problem.num_heads = problem.num_kv_heads = 2;
  problem.key_dim = problem.value_dim = 64;
  auto shape = batch_shape{{num_tokens}};
  auto attention = attention_under_test<in_nhd_layer_major<float8_e4m3>>{shape, random};
  for (auto token = std::int64_t{0}; token < num_tokens; ++token) {
    auto rows = std::array<std::vector<float>, 2>{std::vector<float>(128), std::vector<float>(128)};
    for (auto& row : rows) {
      std::ranges::generate(row, [&] { return number(random) + 1; });
    }
    problem.keys.insert(problem.keys.end(), rows[0].begin(), rows[0].end());
    problem.values.insert(problem.values.end(), rows[1].begin(), rows[1].end());
    attention.write(0, token, rows[0], rows[1]);
  }
  std::ranges::generate(attention.queries(), [&] { return number(random); });
  for (auto head = std::size_t{0}; head < 2; ++head) {
    const auto row = attention.queries().begin() + static_cast<std::ptrdiff_t>(head * 67);  // apart, see head_stride()
    problem.queries.insert(problem.queries.end(), row, row + 64);
  }
  const auto answer = reference_attention(problem, {});
  REQUIRE(attention.attend());
  const auto error = relative_error(answer.output, [&](std::size_t i) {
    return attention.output_at(0, static_cast<std::int64_t>(i / 64), static_cast<std::int64_t>(i % 64));
  });
  CHECK(error <= 3e-2);
}
