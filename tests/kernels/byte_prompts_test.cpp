// Prompts and shared prefixes over numbers of 8 bits, which Hopper's products read as bfloat16: on devices, and on the
// host executor, against float64.

#include "attention_target.hpp"

#include <catch2/catch_template_test_macros.hpp>

// The executor's platform, whose functions the host calls itself.
#if !defined(__CUDACC__) && !defined(__HIPCC__) && !defined(__HIP_PLATFORM_AMD__)
  #include <pagedkv/kernels/attention/tile_reader.hpp>
  #define PAGEDKV_CALLS_KERNEL_PARTS
#endif

namespace byte_prompts_test {

using namespace pagedkv;
using namespace pagedkv::test;

constexpr auto seed = std::uint32_t{20261129};

template <class Element, class Input>
std::size_t check_prompts(const attention_case& asked) {
  return check_on_tested_device<Element, Input>(asked, seed);
}

/// For a batch of which plans share two prefixes where workgroups have 128 columns. With 64, as on CDNA, plans may find
/// that sharing saves nothing.
template <class Element, class Input>
void check_prefixes(const attention_case& asked) {
  const auto num_shared = check_prompts<Element, Input>(asked);
  if (matrices_of(tested_device()) != runtime::matrix_instructions::mfma) {
    CHECK(num_shared == 2);
  }
}

/// Chunks of prompts of several tasks, one of them without a token, one of a single query.
[[nodiscard]] attention_case make_prompts() {
  auto asked = attention_case{};
  asked.prefill = true;
  asked.num_kv_heads = 2;
  asked.group_size = 3;
  asked.head_dim = 128;
  asked.lengths = {300, 33, 0, 129, 256};
  asked.queries = std::vector<std::int32_t>{70, 20, 0, 129, 1};
  return asked;
}

#if defined(PAGEDKV_CALLS_KERNEL_PARTS)
TEMPLATE_TEST_CASE("Every number of 8 bits becomes bfloat16 without an error, divided by a power of two",
                   "[attention][numbers]", int8, float8_e4m3, float8_e5m2, float8_e4m3fnuz, float8_e5m2fnuz) {
  using storage = typename TestType::storage;
  for (auto code = 0U; code < 256; ++code) {
    // A word of four different numbers, with this one in each place.
    for (auto place = 0U; place < 4; ++place) {
      auto stored = kernels::lane_word{0};
      for (auto i = 0U; i < 4; ++i) {
        stored |= ((code + (i - place) * 85) & 0xffU) << 8 * i;
      }
      kernels::registers<kernels::lane_word, 2> numbers;
      kernels::expand_to_brain<TestType, hip::attention_numbers>(stored, numbers);
      for (auto i = 0U; i < 4; ++i) {
        const auto expected =
            TestType::decode(static_cast<storage>(stored >> 8 * i & 0xffU), 1.0F) / kernels::brain_divisor<TestType>;
        const auto number = kernels::number_of<bfloat16>(numbers[i / 2], static_cast<int>(i % 2));
        CAPTURE(code, place, i, expected, number);
        CHECK((number == expected || (std::isnan(number) && std::isnan(expected))));
      }
    }
  }
}
#endif

TEST_CASE("prompts over 8-bit numbers, for all types of queries", "[attention][bytes]") {
  auto asked = make_prompts();
  check_prompts<int8, bfloat16>(asked);
  check_prompts<int8, float16>(asked);
  check_prompts<float8_e4m3, bfloat16>(asked);
  asked.gap = 3;
  check_prompts<int8, float32>(asked);
  check_prompts<float8_e4m3, float16>(asked);
}

TEST_CASE("prompts over 8-bit numbers with all options", "[attention][bytes]") {
  auto asked = make_prompts();
  asked.block_size = 5;
  asked.num_shares = 7;
  asked.sinks = true;
  asked.alibi = true;
  asked.soft_cap = 5;
  check_prompts<int8, bfloat16>(asked);
  asked.window = 140;
  asked.scale = -0.05F;
  check_prompts<int8, float16>(asked);
  check_prompts<float8_e4m3, bfloat16>(asked);
  asked = make_prompts();
  asked.window = 50;
  asked.split_tokens = 64;
  check_prompts<int8, bfloat16>(asked);
}

TEST_CASE("prompts over 8-bit numbers, for all lengths and groups", "[attention][bytes]") {
  auto asked = make_prompts();
  for (const auto& [head_dim, group_size] : {std::pair{64, 1}, {80, 8}, {96, 2}, {112, 130}}) {
    asked.head_dim = head_dim;
    asked.group_size = group_size;
    asked.num_kv_heads = group_size > 8 ? 1 : 2;
    asked.lengths = {260, 17};
    asked.queries = std::vector<std::int32_t>{group_size > 8 ? 3 : 140, 1};
    check_prompts<int8, bfloat16>(asked);
    check_prompts<float8_e4m3, bfloat16>(asked);
  }
  asked = make_prompts();
  asked.value_dim = 48;
  check_prompts<int8, bfloat16>(asked);
  asked.head_dim = 48;
  asked.value_dim = 128;
  check_prompts<float8_e4m3, float16>(asked);
}

TEST_CASE("prompts over 8-bit numbers whose tasks are dealt, in many stages", "[attention][bytes]") {
  auto asked = make_prompts();
  asked.num_kv_heads = 1;
  asked.lengths = {700, 20, 270};
  asked.queries = std::vector<std::int32_t>{300, 20, 270};
  asked.num_shares = 2;
  check_prompts<int8, bfloat16>(asked);
  asked.num_shares = 5;
  check_prompts<float8_e4m3, bfloat16>(asked);
}

TEST_CASE("prompts over 8-bit numbers with other scales and formats", "[attention][bytes]") {
  auto asked = make_prompts();
  asked.num_shares = 3;
  check_prompts<basic_float8_e4m3fnuz<token_scale>, bfloat16>(asked);
  check_prompts<basic_float8_e5m2<head_scale>, bfloat16>(asked);
}

TEST_CASE("logits of thousands over 8-bit numbers", "[attention][bytes]") {
  auto asked = make_prompts();
  asked.magnitude = 20;
  asked.scale = 1;
  check_prompts<int8, bfloat16>(asked);
}

TEST_CASE("8-bit numbers with trees of drafts, and with lists of blocks", "[attention][bytes]") {
  auto asked = make_prompts();
  asked.prefill = false;
  asked.tree = true;
  asked.lengths = {300, 16, 490, 40};
  asked.queries = std::vector<std::int32_t>{5, 1, 16, 32};
  check_prompts<int8, bfloat16>(asked);
  asked = make_prompts();
  for (const auto kind : {listed_blocks::of_rows, listed_blocks::of_heads}) {
    asked.lists = kind;
    asked.listed = {12, 3, 0, 5, 2};
    check_prompts<int8, bfloat16>(asked);
  }
}

TEST_CASE("shared prefixes of 8-bit numbers, of many stages and columns", "[attention][bytes]") {
  auto asked = attention_case{};
  asked.head_dim = 128;
  for (auto i = 0; i < 24; ++i) {
    asked.lengths.push_back(721 + i * 7 % 40);
    asked.shared.push_back({0, i == 0 ? 0 : 720});
  }
  asked.group_size = 8;
  asked.num_shares = 40;
  check_prefixes<int8, bfloat16>(asked);
  asked.soft_cap = 5;
  asked.alibi = true;
  asked.sinks = true;
  check_prefixes<int8, float16>(asked);
  check_prefixes<float8_e4m3, bfloat16>(asked);
}

}  // namespace byte_prompts_test
