// Prompts over blocks of 8 bits that become bfloat16 once in a call, on devices, and on the host executor with waves of
// 64 and 32 lanes, against float64.

#include "../support/messages.hpp"
#include "attention_target.hpp"

#include <catch2/catch_template_test_macros.hpp>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace expanded_prompts_test {

using namespace pagedkv;
using namespace pagedkv::test;

constexpr auto seed = std::uint32_t{20261201};

/// Chunks of prompts, one without a token, one of a single query.
[[nodiscard]] attention_case make_prompts() {
  auto asked = attention_case{};
  asked.prefill = true;
  asked.expands = true;
  asked.group_size = 3;
  asked.head_dim = 128;
  asked.lengths = {90, 0, 33, 50};
  asked.queries = std::vector<std::int32_t>{50, 0, 33, 1};
  return asked;
}

/// Plans expand where there are matrix instructions for rows of 16 bits of these lengths.
template <class Element, int Device>
void check_whether_expands(const attention_case& asked) {
  const auto longest = std::max(asked.head_dim, asked.value_dim);
  const auto matrices = matrices_of(Device);
  const auto expected = matrices != runtime::matrix_instructions::none &&
                        (matrices != runtime::matrix_instructions::wmma || longest <= 128);
  auto batch = attention_batch_under_test<Element, hnd_by_block, bfloat16>(asked, seed);
  const auto shape = hip::attention_shape_on<Element>(Device, batch.view(), asked.group_size,
                                                      {.max_query_tokens = 100, .max_expanded_blocks = 7});
  CHECK(shape.value().expanded_blocks == (expected ? 7 : 0));
}

template <class Element, class Input>
void check_prompts(const attention_case& asked) {
  check_on_every_device<Element, Input>(asked, seed);
}

TEMPLATE_TEST_CASE("expanded prompts, for every length of keys and values, and every scale", "[expanded]", int8,
                   float8_e4m3, basic_float8_e4m3fnuz<token_scale>, basic_float8_e5m2<head_scale>) {
  auto asked = make_prompts();
  asked.group_size = 1;
  asked.lengths = {40, 0, 17};
  asked.queries = std::vector<std::int32_t>{20, 0, 17};
  for (const auto& [head_dim, value_dim] : {std::pair{64, 0}, {128, 0}, {256, 0}, {192, 128}, {72, 40}}) {
    asked.head_dim = head_dim;
    asked.value_dim = value_dim;
    check_whether_expands<TestType, 0>(asked);
    check_prompts<TestType, bfloat16>(asked);
  }
  if (hip_target<2>::why_absent().empty()) {
    check_whether_expands<TestType, 1>(asked);
    check_whether_expands<TestType, 2>(asked);
    asked.head_dim = 256;
    check_whether_expands<TestType, 2>(asked);
  }
}

TEST_CASE("expanded prompts with all options, and blocks of any size", "[expanded]") {
  auto asked = make_prompts();
  asked.block_size = 5;
  asked.num_shares = 3;
  asked.sinks = true;
  asked.alibi = true;
  asked.soft_cap = 5;
  asked.gap = 3;
  check_prompts<int8, float32>(asked);
  asked.block_size = 64;
  asked.scale = -0.05F;
  check_prompts<float8_e4m3, float16>(asked);
}

TEST_CASE("expanded prompts whose blocks before windows do not exist", "[expanded]") {
  auto asked = make_prompts();
  asked.lengths = {190, 33, 0, 120};
  asked.queries = std::vector<std::int32_t>{70, 1, 0, 16};
  asked.window = 20;
  asked.drops = true;
  asked.num_shares = 3;
  check_prompts<int8, bfloat16>(asked);
  check_prompts<float8_e4m3, bfloat16>(asked);
}

TEST_CASE("expanded prompts in many pieces, and in fixed splits", "[expanded]") {
  auto asked = make_prompts();
  asked.num_kv_heads = 1;
  asked.group_size = 2;
  asked.head_dim = 64;
  asked.lengths = {170, 20, 80};
  asked.queries = std::vector<std::int32_t>{50, 20, 80};
  for (const auto num_shares : {2, 7}) {
    asked.num_shares = num_shares;
    check_prompts<int8, bfloat16>(asked);
  }
  asked.num_shares = 0;
  asked.split_tokens = 64;
  check_prompts<float8_e4m3, bfloat16>(asked);
}

TEST_CASE("expanded prompts with lists of blocks, trees of drafts, and blocks of several rows", "[expanded]") {
  auto asked = make_prompts();
  asked.head_dim = 64;
  for (const auto kind : {listed_blocks::of_rows, listed_blocks::of_heads}) {
    asked.lists = kind;
    asked.listed = {4, 0, 2, 2};
    check_prompts<int8, bfloat16>(asked);
  }
  asked = make_prompts();
  asked.head_dim = 64;
  asked.tree = true;
  asked.lengths = {60, 16, 40};
  asked.queries = std::vector<std::int32_t>{5, 1, 32};
  check_prompts<int8, bfloat16>(asked);
  asked.tree = false;
  asked.shared = {{}, {}, {0, 32}};
  asked.queries = std::vector<std::int32_t>{5, 1, 8};
  check_prompts<float8_e4m3, bfloat16>(asked);
}

TEST_CASE("blocks with ids beyond 65,535, further apart than 32 bits, are expanded", "[expanded]") {
  auto asked = make_prompts();
  asked.lengths = {40, 3};
  asked.queries = std::vector<std::int32_t>{2, 1};
  asked.far = true;
  check_prompts<int8, bfloat16>(asked);
}

/// With fixed splits, the bits of a row are the same in a batch of one.
template <int Device>
void check_first_row_alone(const attention_case& asked) {
  const auto target = require_target<hip_target<Device>>();
  auto batch = attention_batch_under_test<int8, hnd_by_block, bfloat16>(asked, seed);
  const auto together = batch.run(target, Device);
  CHECK((batch.expanded_blocks() > 0 || matrices_of(Device) == runtime::matrix_instructions::none));
  const auto alone = batch.run(target, Device, 0);
  CHECK(batch.numbers_of_row(alone, 0) == batch.numbers_of_row(together, 0));
}

/// The words of a plan say how many blocks there are, not the call: a captured graph is replayed with new words.
TEST_CASE("a captured call expands the blocks of each plan", "[expanded]") {
  auto asked = make_prompts();
  asked.captured_for_first_row = true;
  check_prompts<int8, bfloat16>(asked);
  asked.captured_for_first_row = false;
  asked.split_tokens = 64;
  check_first_row_alone<0>(asked);
  if (hip_target<1>::why_absent().empty()) {
    check_first_row_alone<1>(asked);
  }
}

/// Of the three that a plan asks for.
template <class Element>
[[nodiscard]] std::int32_t expanded_blocks(const block_storage_view& view, std::int32_t max_query_tokens) {
  const auto use = hip::attention_use{.max_query_tokens = max_query_tokens, .max_expanded_blocks = 3};
  return hip::attention_shape_on<Element>(0, view, 1, use).value().expanded_blocks;
}

/// The first device, or a visible skip where it is absent or has no matrix instructions.
[[nodiscard]] hip_target<0> require_matrices() {
  auto target = require_target<hip_target<0>>();
  if (matrices_of(0) == runtime::matrix_instructions::none) {
    SKIP("the device has no matrix instructions");
  }
  return target;
}

TEST_CASE("blocks are expanded for prompts over 8 bits in aligned rows only", "[expanded]") {
  static_cast<void>(require_matrices());
  auto asked = make_prompts();
  auto batch = attention_batch_under_test<int8, hnd_by_block, bfloat16>(asked, seed);
  CHECK(expanded_blocks<int8>(batch.view(), 9) == 3);
  CHECK(expanded_blocks<int8>(batch.view(), 0) == 0);
  CHECK(expanded_blocks<bfloat16>(batch.view(), 9) == 0);
  CHECK(expanded_blocks<float8_latent>(batch.view(), 9) == 0);
  auto other = batch.view();
  other.base += 4;
  CHECK(expanded_blocks<int8>(other, 9) == 0);
  other = batch.view();
  other.head_dim = 60;
  CHECK(expanded_blocks<int8>(other, 9) == 0);
}

TEST_CASE("more blocks than there is room for, and blocks of another size, are refused", "[expanded]") {
  const auto target = require_matrices();
  auto asked = make_prompts();
  auto batch = attention_batch_under_test<int8, hnd_by_block, bfloat16>(asked, seed);
  const auto planned = batch.host_batch();
  const auto num_entries = planned.indptr.back();
  const auto use = [&](std::int32_t max_blocks) {
    return hip::attention_use{.max_rows = 4, .max_query_tokens = 100, .max_expanded_blocks = max_blocks};
  };
  const auto shape_for = [&](std::int32_t max_blocks) {
    return hip::attention_shape_on<int8>(0, batch.view(), asked.group_size, use(max_blocks)).value();
  };
  CHECK(attention_planner(shape_for(num_entries)).plan(planned).has_value());
  auto planner = attention_planner(shape_for(num_entries - 1));
  const auto outcome = planner.plan(planned);
  CHECK(planner.parts().rows.empty());
  const auto queries = token_rows<const std::uint16_t>{.num_heads = batch.num_heads()};
  auto words = std::vector<std::byte>(64);
  const auto refused = [&](const block_storage_view& view) {
    auto call = planned;
    call.plan = {shape_for(num_entries), words.data(), words.data()};
    return said(hip::attend<int8, bfloat16>(view, 0, call, queries, {}, {}, target.stream()));
  };
  auto shorter = batch.view();
  shorter.head_dim = 64;
  auto unaligned = batch.view();
  unaligned.base += 4;
  const auto block_bytes = [&](std::int32_t head_dim) {
    return std::to_string(2 * 2 * asked.num_kv_heads * asked.block_size * head_dim);
  };
  const auto text = std::string(
                        "expanded_block_bytes of attention_batch.plan, which are not those of the storage's "
                        "blocks, is ") +
                    block_bytes(128) + ", limit ";
  check_messages({
      {said(outcome), "limit reached: last entry of attention_batch.indptr, with blocks that are expanded, is " +
                          std::to_string(num_entries) + ", limit " + std::to_string(num_entries - 1)},
      {refused(shorter), invalid(text + block_bytes(64))},
      {refused(unaligned), invalid(text + "0")},
  });
}

TEST_CASE("the workspace has room for the expanded blocks behind the partial results", "[expanded]") {
  auto shape = attention_shape{};
  const auto without = attention_workspace_bytes(shape, 128);
  shape.expanded_blocks = 100;
  shape.expanded_block_bytes = 8192;
  const auto layout = attention_workspace_layout(shape, 128);
  CHECK(layout.expanded_ids == (without + 255) / 256 * 256);
  CHECK(layout.expanded_blocks == layout.expanded_ids + 512);
  CHECK(layout.bytes == layout.expanded_blocks + 100 * 8192);
  CHECK(attention_workspace_bytes(shape, 128) == layout.bytes);
}

}  // namespace expanded_prompts_test
