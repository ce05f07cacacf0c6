// Latent vectors in packed tokens on the host: their bytes, attention over them, and what refuses them.

#include "../support/first_difference.hpp"
#include "../support/printing.hpp"
#include "attention_under_test.hpp"
#include "instruction_sets.hpp"

#include <pagedkv/policy/element/float8.hpp>
#include <pagedkv/storage/memory_plan.hpp>
#include <pagedkv/storage/sizing.hpp>

#include <catch2/catch_get_random_seed.hpp>
#include <catch2/catch_test_macros.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

using namespace pagedkv;
using namespace pagedkv::test;

namespace {

constexpr auto latent = group_config{.kind = group_kind::latent, .num_layers = 2, .key_dim = 576, .value_dim = 512};

batch_shape latent_batch(std::vector<std::int64_t> lengths) {
  auto shape = batch_shape{std::move(lengths)};
  shape.num_kv_heads = 1;
  shape.head_dim = 576;
  shape.value_dim = 512;
  shape.latent = true;
  return shape;
}

/// The bytes of a token, from its definition.
std::vector<std::byte> bytes_of(std::span<const float> numbers) {
  auto bytes = std::vector<std::byte>(656);
  for (auto part = std::size_t{0}; part < 4; ++part) {
    auto largest = 0.0f;
    for (auto i = part * 128; i < part * 128 + 128; ++i) {
      largest = std::max(largest, std::abs(numbers[i]));
    }
    const auto scale = largest / 448;
    std::memcpy(bytes.data() + 512 + part * 4, &scale, sizeof(scale));
    for (auto i = part * 128; i < part * 128 + 128; ++i) {
      bytes[i] = static_cast<std::byte>(float8_e4m3::encode(numbers[i], scale));
    }
  }
  for (auto i = std::size_t{0}; i < 64; ++i) {
    const auto stored = bfloat16::encode(numbers[512 + i], 1);
    std::memcpy(bytes.data() + 528 + i * 2, &stored, sizeof(stored));
  }
  return bytes;
}

/// Rows `[token][1][dim]` in an array with gaps.
template <class Number>
token_rows<Number> rows_in(Number* numbers, std::int64_t num_tokens, std::int32_t dim) {
  return {numbers, dim + 5, dim, num_tokens, 1, dim};
}

}  // namespace

TEST_CASE("a packed token has the bytes that are published", "[append][packed]") {
  auto random = std::mt19937{3};
  auto storage = in_hnd_block_major<float8_latent>{latent, 16, 4};
  const auto& view = storage.view();
  CHECK(view.layer_bytes() == 16 * 656);  // without padding
  const auto slots = std::vector{slot{17}, slot{-1}, slot{63}, slot{0}};
  auto keys = std::vector<float>(4 * 581);
  std::ranges::generate(keys, [&] { return draw_number(3, random); });
  for (auto i = std::size_t{0}; i < 128; ++i) {
    keys[128 + i] *= 1e4f;  // parts have scales of their own
    keys[256 + i] = 1e-3f * keys[256 + i];
  }
  auto expected = storage.bytes();
  for (const auto i : {0, 2, 3}) {
    const auto at = static_cast<std::int64_t>(slots[static_cast<std::size_t>(i)]);
    const auto token = bytes_of(std::span{keys}.subspan(static_cast<std::size_t>(i) * 581, 576));
    std::ranges::copy(token, expected.begin() + ((at / 16 * 2 + 1) * 16 + at % 16) * 656);
  }
  REQUIRE(host::append<float8_latent>(view, 1, slots, rows_in<const float>(keys.data(), 4, 576), {}));
  CHECK(first_difference(storage.bytes(), expected) == no_difference);

  auto got_keys = std::vector<float>(4 * 581, 7.0f);
  auto got_values = std::vector<std::uint16_t>(4 * 517, 9);
  auto wide_values = std::vector<float>(4 * 517, 7.0f);
  REQUIRE(host::gather<float8_latent>(view, 1, slots, rows_in(got_keys.data(), 4, 576),
                                      rows_in(wide_values.data(), 4, 512)));
  auto narrow_keys = std::vector<std::uint16_t>(4 * 581, 9);
  REQUIRE(host::gather<float8_latent, bfloat16>(view, 1, slots, rows_in(narrow_keys.data(), 4, 576),
                                                rows_in(got_values.data(), 4, 512)));
  for (auto token = std::size_t{0}; token < 4; ++token) {
    const auto at = static_cast<std::int64_t>(slots[token]);
    const auto numbers =
        at < 0 ? std::vector<double>{} : read_packed_token(expected.data() + ((at / 16 * 2 + 1) * 16 + at % 16) * 656);
    for (auto i = std::size_t{0}; i < 581; ++i) {
      CAPTURE(token, i);
      const auto is_key = at >= 0 && i < 576;
      const auto number = is_key ? static_cast<float>(numbers[i]) : 7.0f;
      CHECK(got_keys[token * 581 + i] == number);
      CHECK(narrow_keys[token * 581 + i] == (is_key ? bfloat16::encode(number, 1) : 9));
      if (i < 517) {
        const auto is_value = at >= 0 && i < 512;
        CHECK(wide_values[token * 517 + i] == (is_value ? number : 7.0f));
        CHECK(got_values[token * 517 + i] == (is_value ? bfloat16::encode(number, 1) : 9));
      }
    }
  }
}

TEST_CASE("a NaN spoils the part of a packed token that it is in", "[append][packed]") {
  auto storage = in_nhd_layer_major<float8_latent>{latent, 4, 1};
  auto key = std::vector<float>(576, 1.5f);
  key[200] = std::numeric_limits<float>::infinity();
  key[570] = std::numeric_limits<float>::quiet_NaN();
  const auto slots = std::vector{slot{1}};
  REQUIRE(host::append<float8_latent>(storage.view(), 0, slots, contiguous_rows(std::as_const(key), 1, 576), {}));
  auto got = std::vector<float>(576);
  auto value = std::vector<float>(512);
  REQUIRE(host::gather<float8_latent>(storage.view(), 0, slots, contiguous_rows(got, 1, 576),
                                      contiguous_rows(value, 1, 512)));
  for (auto i = std::size_t{0}; i < 576; ++i) {
    CAPTURE(i);
    CHECK((i / 128 == 1 || i == 570 ? std::isnan(got[i]) : got[i] == 1.5f));
  }
}

TEST_CASE("attention over packed tokens agrees with its definition", "[attention][packed][random]") {
  const auto seed = Catch::getSeed();
  CAPTURE(seed);
  auto random = std::mt19937{seed};
  for (const auto group_size : {1, 3, 20}) {
    CAPTURE(group_size);
    auto shape = latent_batch({0, 1, 17, 150});
    shape.group_size = group_size;
    auto attention = attention_under_test<in_nhd_layer_major<float8_latent>>{shape, random};
    check_against_reference(attention);
  }
  auto shape = latent_batch({40, 100, 90});
  shape.group_size = 4;
  shape.queries = {3, 20, 1};
  shape.shared = {{}, {}, {1, 64}};
  auto chunks = attention_under_test<in_hnd_block_major<float8_latent>, bfloat16>{shape, random};
  auto options = attention_options{};
  options.soft_cap = 5;
  options.window = 50;
  check_against_reference(chunks, options, 1.6);  // outputs are of bfloat16
  shape.queries = {};
  shape.shared = {};
  shape.lists = listed_blocks::of_rows;
  shape.listed = {2, 3, 1};
  auto listed = attention_under_test<in_nhd_layer_major<float8_latent>>{shape, random};
  check_against_reference(listed);
}

TEST_CASE("attention over packed tokens is near to attention over the given numbers", "[attention][packed][random]") {
  const auto seed = Catch::getSeed();
  CAPTURE(seed);
  auto random = std::mt19937{seed};
  constexpr auto num_tokens = std::int64_t{300};
  auto problem = attention_problem{};
  problem.num_tokens = num_tokens;
  problem.key_dim = 576;
  problem.value_dim = 512;
  auto attention = attention_under_test<in_nhd_layer_major<float8_latent>>{latent_batch({num_tokens}), random};
  for (auto token = std::int64_t{0}; token < num_tokens; ++token) {
    auto key = std::vector<float>(576);
    std::ranges::generate(key, [&] { return draw_number(1, random) + 1; });
    problem.keys.insert(problem.keys.end(), key.begin(), key.end());
    problem.values.insert(problem.values.end(), key.begin(), key.begin() + 512);
    attention.write(0, token, key, std::vector<float>(512));
  }
  std::ranges::generate(attention.queries(), [&] { return draw_number(1, random); });
  problem.queries.assign(attention.queries().begin(), attention.queries().begin() + 576);
  const auto answer = reference_attention(problem, {});
  REQUIRE(attention.attend());
  const auto error = relative_error(
      answer.output, [&](std::size_t i) { return attention.output_at(0, 0, static_cast<std::int64_t>(i)); });
  CHECK(error <= 3e-2);
}

TEST_CASE("packed tokens are those of latent groups with their lengths", "[layout][packed]") {
  const auto refusal = [](const group_config& group) {
    return plan_storage<nhd_layer_major>(group, 16, 3, size_of_element<float8_latent>).error().message();
  };
  auto unlike = latent;
  unlike.key_dim = 640;
  CHECK(refusal(unlike) == "invalid argument: group_config.key_dim, which is not this element's, is 640, limit 576");
  unlike = latent;
  unlike.value_dim = 256;
  CHECK(refusal(unlike) == "invalid argument: group_config.value_dim, which is not this element's, is 256, limit 512");
  unlike = latent;
  unlike.kind = group_kind::full;
  CHECK(refusal(unlike) ==
        "invalid argument: group_config.kind, of which this element stores latent vectors only, is 0, limit 3");
  CHECK(!config_for_memory_budget(small_model, size_of_element<float8_latent>, 1 << 30));
  const auto one = plan_memory({latent}, size_of_element<float8_latent>).value();
  CHECK(one.block_bytes == 2 * 16 * 656);
  CHECK(payload_bytes(latent, size_of_element<float8_latent>, 5) == 2 * 5 * 656);
}
