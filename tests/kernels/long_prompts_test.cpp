// Prompts and shared prefixes with keys and values of up to 256 numbers, for which Hopper has products of warpgroups of
// their own: on devices, and on the host executor with matrices like NVIDIA's, against float64.

#include "attention_target.hpp"

#include <utility>
#include <vector>

namespace long_prompts_test {

using namespace pagedkv;
using namespace pagedkv::test;

constexpr auto seed = std::uint32_t{20261202};

template <class Element, class Input>
std::size_t check_prompts(const attention_case& asked) {
  return check_on_tested_device<Element, Input, nhd_by_layer>(asked, seed);
}

/// Chunks of prompts of several tasks and stages, one of them without a token, one of a single query. Devices other
/// than Hopper have half of the columns in a task unless the plan says otherwise.
[[nodiscard]] attention_case make_prompts() {
  auto asked = attention_case{};
  asked.prefill = true;
  asked.wide_tasks = true;
  asked.num_kv_heads = 1;
  asked.group_size = 2;
  asked.head_dim = 256;
  asked.lengths = {150, 33, 0, 129, 64};
  asked.queries = std::vector<std::int32_t>{70, 20, 0, 30, 1};
  return asked;
}

TEST_CASE("prompts with heads of 256 numbers, for all types of queries", "[long_prompts]") {
  auto asked = make_prompts();
  check_prompts<bfloat16, bfloat16>(asked);
  check_prompts<float16, float16>(asked);
  check_prompts<bfloat16, float32>(asked);
  asked.wide_tasks = false;
  check_prompts<bfloat16, bfloat16>(asked);
  asked.gap = 3;
  asked.num_kv_heads = 2;
  check_prompts<float16, bfloat16>(asked);
}

TEST_CASE("prompts with heads of 200 numbers, and keys and values of two lengths", "[long_prompts]") {
  auto asked = make_prompts();
  for (const auto& [head_dim, value_dim] : {std::pair{200, 0}, {256, 200}, {136, 256}, {64, 144}}) {
    asked.head_dim = head_dim;
    asked.value_dim = value_dim;
    check_prompts<bfloat16, bfloat16>(asked);
    check_prompts<float16, float32>(asked);
  }
}

TEST_CASE("prompts with heads of 256 numbers with all options, in pieces", "[long_prompts]") {
  auto asked = make_prompts();
  asked.block_size = 5;
  asked.num_shares = 7;
  asked.sinks = true;
  asked.alibi = true;
  asked.soft_cap = 5;
  check_prompts<bfloat16, bfloat16>(asked);
  asked.window = 75;
  asked.scale = -0.05F;
  check_prompts<float16, float32>(asked);
  asked = make_prompts();
  asked.window = 50;
  asked.split_tokens = 64;
  check_prompts<bfloat16, bfloat16>(asked);
}

TEST_CASE("prompts with heads of 256 numbers whose tasks are dealt, in many stages", "[long_prompts]") {
  auto asked = make_prompts();
  asked.lengths = {400, 20, 200};
  asked.queries = std::vector<std::int32_t>{200, 20, 100};
  for (const auto num_shares : {2, 5}) {
    asked.num_shares = num_shares;
    check_prompts<bfloat16, bfloat16>(asked);
  }
}

TEST_CASE("logits of thousands with heads of 256 numbers", "[long_prompts]") {
  auto asked = make_prompts();
  asked.magnitude = 20;
  asked.scale = 1;
  check_prompts<bfloat16, bfloat16>(asked);
}

TEST_CASE("heads of 256 numbers with trees of drafts, and with lists of blocks", "[long_prompts]") {
  auto asked = make_prompts();
  asked.prefill = false;
  asked.tree = true;
  asked.group_size = 5;
  asked.lengths = {150, 16, 245, 40};
  asked.queries = std::vector<std::int32_t>{5, 1, 16, 32};
  check_prompts<bfloat16, bfloat16>(asked);
  asked = make_prompts();
  asked.num_kv_heads = 2;
  for (const auto kind : {listed_blocks::of_rows, listed_blocks::of_heads}) {
    asked.lists = kind;
    asked.listed = {8, 3, 0, 5, 2};
    check_prompts<bfloat16, bfloat16>(asked);
  }
}

TEST_CASE("prompts over 8-bit heads of 256 numbers that are expanded once, in many stages", "[long_prompts]") {
  auto asked = make_prompts();
  asked.expands = true;
  asked.num_shares = 3;
  check_prompts<int8, bfloat16>(asked);
  check_prompts<float8_e4m3, bfloat16>(asked);
}

TEST_CASE("shared prefixes with heads of 256 numbers", "[long_prompts]") {
  auto asked = attention_case{};
  asked.head_dim = 256;
  asked.wide_tasks = true;
  for (auto i = 0; i < 24; ++i) {
    asked.lengths.push_back(481 + i * 7 % 40);
    asked.shared.push_back({0, i == 0 ? 0 : 480});
  }
  asked.group_size = 8;
  asked.num_shares = 8;
  const auto num_shared = check_prompts<bfloat16, bfloat16>(asked);
  // With other matrices, plans may find that sharing saves nothing.
  CHECK((num_shared > 0 || matrices_of(tested_device()) != runtime::matrix_instructions::mma));
  asked.soft_cap = 5;
  asked.alibi = true;
  asked.sinks = true;
  check_prompts<float16, float32>(asked);
  asked.wide_tasks = false;
  check_prompts<bfloat16, bfloat16>(asked);
}

}  // namespace long_prompts_test
