// Attention on the host over the blocks of lists, against float64.

#include "../support/first_difference.hpp"
#include "../support/messages.hpp"
#include "../support/printing.hpp"
#include "attention_under_test.hpp"
#include "instruction_sets.hpp"

#include <pagedkv/host/thread_pool.hpp>

#include <catch2/catch_get_random_seed.hpp>
#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>

#include <limits>
#include <random>

using namespace pagedkv;
using namespace pagedkv::test;

namespace {

constexpr auto float_infinity = std::numeric_limits<float>::infinity();

template <class Element>
using nhd = in_nhd_layer_major<Element>;
template <class Element>
using hnd = in_hnd_block_major<Element>;

/// Rows that read some of their blocks; blocks that no list names do not exist.
batch_shape make_readers(listed_blocks kind, std::int32_t group_size) {
  auto shape = batch_shape{{0, 1, 97, 320, 350, 800}};
  shape.group_size = group_size;
  shape.lists = kind;
  shape.listed = {2, 1, 4, 0, 9, 40};
  return shape;
}

}  // namespace

TEMPLATE_TEST_CASE("attention on the host over the blocks of lists agrees with its definition",
                   "[attention][lists][random]", nhd<float32>, hnd<float16>, nhd<bfloat16>, nhd<int8>,
                   hnd<float8_e4m3>) {
  const auto seed = Catch::getSeed();
  CAPTURE(seed);
  auto random = std::mt19937{seed};
  const auto slopes = std::vector{0.5f, 0.25f, 0.125f, 0.0f, -0.01f, 1.0f, 0.1f, 0.2f};
  const auto sinks = std::vector{-3.0f, 0.0f, 2.0f, 9.0f, -float_infinity, 0.5f, 1.0f, 1.0f};
  for (const auto kind : {listed_blocks::of_rows, listed_blocks::of_heads}) {
    for (const auto group_size : {1, 4, 20}) {
      for (const auto block_size : {5, 16, 128}) {
        CAPTURE(static_cast<int>(kind), group_size, block_size);
        auto shape = make_readers(kind, group_size);
        shape.block_size = block_size;
        if (block_size > 16) {
          shape.listed.back() = 11;  // several chunks of tokens already
        }
        auto attention = attention_under_test<TestType>{shape, random};
        check_against_reference(attention);
        CHECK(attention.output_at(3, 0, 0) == 0);
        CHECK(attention.log_sum_exp(3, 0) == -float_infinity);
      }
    }
    auto shape = make_readers(kind, 4);
    shape.queries = std::vector<std::int32_t>{1, 1, 5, 2, 66, 3};
    auto several = attention_under_test<TestType>{shape, random};
    check_against_reference(several);
    check_against_reference(several, {0.2f, 10, 0, slopes.data(), sinks.data()});
    check_against_reference(several, {0, 0, 300, nullptr, sinks.data()});
    CHECK(several.log_sum_exp(7, 3) == -float_infinity);  // an empty list, with a sink
    shape.queries = std::vector<std::int32_t>{1, 1, 5, 2, 32, 3};
    shape.tree = true;
    auto trees = attention_under_test<TestType>{shape, random};
    check_against_reference(trees);
  }
}

TEMPLATE_TEST_CASE("lists over latent vectors, and over values of another length", "[attention][lists][random]",
                   nhd<float32>, nhd<bfloat16>) {
  const auto seed = Catch::getSeed();
  CAPTURE(seed);
  auto random = std::mt19937{seed};
  auto shape = make_readers(listed_blocks::of_rows, 20);
  shape.num_kv_heads = 1;
  shape.latent = true;
  shape.head_dim = 576;
  shape.value_dim = 512;
  auto latent = attention_under_test<TestType>{shape, random};
  check_against_reference(latent);
  shape = make_readers(listed_blocks::of_heads, 3);
  shape.head_dim = 192;
  shape.value_dim = 128;
  auto longer = attention_under_test<TestType>{shape, random};
  check_against_reference(longer);
}

TEMPLATE_TEST_CASE("a row's list decides its bits, whatever the threads and the batch", "[attention][lists]",
                   nhd<float32>, hnd<int8>) {
  auto random = std::mt19937{21};
  auto shape = make_readers(listed_blocks::of_heads, 2);
  shape.lengths = {30'000, 640};
  shape.listed = {400, 20};
  auto attention = attention_under_test<TestType>{shape, random};
  REQUIRE(attention.attend());
  const auto expected = std::vector{attention.output_of_row(0), attention.output_of_row(1)};
  auto threads = host::thread_pool(5);
  REQUIRE(attention.attend({}, threads));
  for (auto row = std::size_t{0}; row < 2; ++row) {
    CHECK(first_difference(attention.output_of_row(row), expected[row]) == no_difference);
  }
  for (auto row = std::size_t{0}; row < 2; ++row) {
    REQUIRE(attention.attend_alone(row));
    CHECK(first_difference(attention.output_of_row(row), expected[row]) == no_difference);
  }
}

TEST_CASE("a block that is listed twice counts twice, and a negative entry not at all", "[attention][lists]") {
  auto random = std::mt19937{22};
  auto shape = batch_shape{{160}};
  shape.lists = listed_blocks::of_rows;
  shape.listed = {3};
  auto attention = attention_under_test<nhd<float32>>{shape, random};
  const auto with_entries = [&](std::vector<std::int32_t> entries) {
    // The table has the blocks that the first list names.
    attention.entries() = std::move(entries);
    REQUIRE(attention.attend());
    return std::vector{attention.output_at(0, 0, 5), attention.log_sum_exp(0, 0)};
  };
  const auto block = attention.entries()[0] < 0 ? attention.entries()[1] : attention.entries()[0];
  REQUIRE(block >= 0);
  const auto once = with_entries({block, -1, -7});
  const auto twice = with_entries({-1, block, block});
  CHECK(std::abs(once[0] - twice[0]) <= 1e-6f);
  CHECK(std::abs(once[1] + std::log(2.0f) - twice[1]) <= 1e-6f);
}

TEST_CASE("lists that do not fit the batch are refused", "[attention][lists]") {
  auto random = std::mt19937{23};
  auto under_test = attention_under_test<nhd<float32>>{batch_shape{{20, 30}}, random};
  const auto with_lists = [&](listed_blocks kind, std::vector<std::int32_t> indptr, std::vector<std::int32_t> blocks) {
    auto batch = under_test.batch();
    batch.lists = {kind, indptr, blocks};
    auto numbers = std::vector<float>(300, 3.0f);
    const auto outcome =
        host::attend<float32>(under_test.view(), 0, batch, {under_test.queries().data(), 128, 64, 2, 2, 64},
                              {{numbers.data(), 128, 64, 2, 2, 64}});
    CHECK((outcome || numbers == std::vector<float>(300, 3.0f)));
    return test::said(outcome);
  };
  using enum listed_blocks;
  using test::invalid;
  test::check_messages({
      {with_lists(of_rows, {0, 1}, {0}), invalid("size of attention_batch.lists.indptr is 2, limit 3")},
      {with_lists(of_rows, {0, 2, 1}, {0, 0}),
       invalid("entry of attention_batch.lists.indptr, below the one before it, is 1, limit 2")},
      {with_lists(of_rows, {-1, 0, 1}, {0}),
       invalid("entry of attention_batch.lists.indptr, below the one before it, is -1, limit 0")},
      {with_lists(of_heads, {0, 2, 5}, {0, 0, 0, 0, 0}),
       invalid("entry of attention_batch.lists.indptr, where a row needs equal lists of all KV heads, is 5, limit 4")},
      {with_lists(of_rows, {0, 1, 3}, {0, 0}),
       invalid("last entry of attention_batch.lists.indptr, beyond its blocks, is 3, limit 2")},
      {with_lists(of_rows, {0, 1, 2}, {1, 2}),
       invalid("entry of attention_batch.lists.blocks, beyond its row's blocks, is 2, limit 1")},
  });
  under_test.indices()[1] = no_block;
  CHECK(with_lists(of_rows, {0, 2, 3}, {0, 1, 1}) == invalid("block in attention_batch.indices is -1, limit 0"));
}
