// Attention over the blocks of lists, on devices, and on the host executor with waves of 64 and 32 lanes, against
// float64.

#include "../support/messages.hpp"
#include "attention_target.hpp"

namespace lists_attention_tests {

using namespace pagedkv;
using namespace pagedkv::test;

constexpr auto seed = std::uint32_t{20261125};

/// Rows that read some of their blocks; blocks that no list names do not exist.
[[nodiscard]] attention_case make_readers(listed_blocks kind, std::int32_t group_size) {
  auto asked = attention_case{};
  asked.lengths = {0, 1, 97, 340, 700};
  asked.group_size = group_size;
  asked.lists = kind;
  asked.listed = {2, 1, 4, 0, 9};
  return asked;
}

TEST_CASE("attention over the blocks of lists, for every element", "[lists_attention]") {
  for (const auto kind : {listed_blocks::of_rows, listed_blocks::of_heads}) {
    auto asked = make_readers(kind, 4);
    check_on_every_device<bfloat16, bfloat16>(asked, seed);
    check_on_every_device<int8, float16>(asked, seed);
    check_on_every_device<float32, float32>(asked, seed);
    asked.block_size = 32;
    asked.head_dim = 128;
    asked.num_shares = 5;
    check_on_every_device<float16, float32>(asked, seed);
    check_on_every_device<float8_e4m3, bfloat16>(asked, seed);
    asked.block_size = 24;  // no multiple of a tile
    check_on_every_device<bfloat16, float32>(asked, seed);
    check_on_every_device<int8, float32>(asked, seed);
    asked = make_readers(kind, 16);
    asked.head_dim = 256;
    check_on_every_device<bfloat16, bfloat16>(asked, seed);
    check_on_every_device<int8, bfloat16>(asked, seed);
    check_on_every_device<float8_e4m3, bfloat16>(asked, seed);
  }
}

TEST_CASE("lists with several queries, trees, and all options", "[lists_attention]") {
  for (const auto kind : {listed_blocks::of_rows, listed_blocks::of_heads}) {
    auto asked = make_readers(kind, 3);
    asked.queries = std::vector<std::int32_t>{1, 1, 5, 2, 17};
    asked.num_shares = 9;
    check_on_every_device<bfloat16, bfloat16>(asked, seed);
    asked.alibi = true;
    asked.sinks = true;
    asked.soft_cap = 5;
    check_on_every_device<float16, float32>(asked, seed);
    asked.window = 150;
    check_on_every_device<float32, float32>(asked, seed);
    check_on_every_device<int8, float32>(asked, seed);
    asked.tree = true;
    check_on_every_device<bfloat16, float32>(asked, seed);
  }
}

TEST_CASE("lists with chunks of prompts, latent vectors, and values of another length", "[lists_attention]") {
  for (const auto kind : {listed_blocks::of_rows, listed_blocks::of_heads}) {
    auto asked = make_readers(kind, 3);
    asked.prefill = true;
    asked.queries = std::vector<std::int32_t>{1, 1, 50, 2, 70};
    check_on_every_device<bfloat16, bfloat16>(asked, seed);
    asked.window = 100;
    asked.num_shares = 3;
    check_on_every_device<int8, float16>(asked, seed);
    asked = make_readers(kind, 3);
    asked.head_dim = 192;
    asked.value_dim = 128;
    check_on_every_device<float16, float16>(asked, seed);
  }
  auto asked = make_readers(listed_blocks::of_rows, 20);
  asked.num_kv_heads = 1;
  asked.latent = true;
  asked.head_dim = 576;
  asked.value_dim = 512;
  asked.num_shares = 3;
  check_on_every_device<bfloat16, bfloat16>(asked, seed);
  asked.queries = std::vector<std::int32_t>{1, 1, 2, 2, 3};
  asked.sinks = true;
  check_on_every_device<float16, float32>(asked, seed);
}

TEST_CASE("lists by a plan that was made some tokens earlier, and in fixed splits", "[lists_attention]") {
  auto asked = make_readers(listed_blocks::of_heads, 2);
  asked.lengths = {17, 1, 97, 340, 700};
  asked.num_shares = 7;
  asked.grown = 1;
  check_on_every_device<bfloat16, float32>(asked, seed);
  asked.grown = 0;
  asked.split_tokens = 64;
  check_on_every_device<bfloat16, float32>(asked, seed);
  check_on_every_device<float32, float32>(asked, seed);
}

TEST_CASE("a plan refuses lists that do not fit", "[lists_attention]") {
  auto asked = attention_case{};
  asked.lengths = {20, 30};
  auto under_test = attention_batch_under_test<bfloat16, nhd_by_layer, bfloat16>(asked, seed);
  const auto refused = [&](listed_blocks of_shape, listed_blocks kind, std::vector<std::int32_t> indptr,
                           std::size_t num_entries) {
    auto shape = attention_shape{};
    shape.num_kv_heads = 2;
    shape.max_rows = 2;
    shape.num_shares = 4;
    shape.lists = of_shape;
    auto planner = attention_planner(shape);
    auto batch = under_test.host_batch();
    batch.lists = {kind, indptr, {static_cast<const std::int32_t*>(nullptr), num_entries}};
    const auto outcome = planner.plan(batch);
    CHECK((outcome || planner.parts().rows.empty()));
    return said(outcome);
  };
  using enum listed_blocks;
  check_messages({
      {refused(none, of_rows, {0, 1, 2}, 2),
       invalid("kind of attention_batch.lists, which is not that of the plan's shape, is 1, limit 0")},
      {refused(of_heads, of_rows, {0, 2, 4}, 4),
       invalid("kind of attention_batch.lists, which is not that of the plan's shape, is 1, limit 2")},
      {refused(of_rows, of_rows, {0, 1}, 2), invalid("size of attention_batch.lists.indptr is 2, limit 3")},
      {refused(of_heads, of_heads, {0, 2, 3}, 3),
       invalid("entry of attention_batch.lists.indptr, where a row needs equal lists of all KV heads, is 3, limit 2")},
      {refused(of_rows, of_rows, {0, 1, 1 << 28}, 1 << 28),
       "limit reached: tokens of attention_batch.lists is 4294967296, limit 2147483647"},
  });
}

}  // namespace lists_attention_tests
