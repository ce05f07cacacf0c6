// Attention on the host whose sequences share the read of a prefix, against float64.

#include "../support/first_difference.hpp"
#include "../support/printing.hpp"
#include "attention_under_test.hpp"
#include "instruction_sets.hpp"

#include <pagedkv/host/thread_pool.hpp>

#include <catch2/catch_get_random_seed.hpp>
#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>

#include <limits>
#include <random>
#include <utility>

using namespace pagedkv;
using namespace pagedkv::test;

namespace {

template <class Element>
using nhd = in_nhd_layer_major<Element>;
template <class Element>
using hnd = in_hnd_block_major<Element>;

/// `count` sequences that share `tokens`.
batch_shape make_sharers(std::size_t count, std::int64_t tokens, std::int32_t group_size) {
  auto shape = batch_shape{};
  shape.group_size = group_size;
  for (auto i = std::size_t{0}; i < count; ++i) {
    shape.lengths.push_back(tokens + 1 + static_cast<std::int64_t>(i * 7 % 40));
    shape.shared.push_back({0, i == 0 ? 0 : tokens});
  }
  return shape;
}

/// The plan that the host makes for a batch.
template <class Attention>
host::attention::work_plan plan_of(const Attention& attention, const attention_options& options, bool has_panels) {
  auto call = host::attention::attention_call{};
  call.view = attention.view();
  call.batch = attention.batch();
  call.options = options;
  call.group_size = attention.num_heads() / call.view.num_kv_heads;
  call.has_panels = has_panels;
  return host::attention::make_plan(call, 2);
}

/// The number of prefixes that are read together, without or with a matrix unit for many rows.
template <class Attention>
std::size_t num_prefixes(const Attention& attention, const attention_options& options = {}, bool has_panels = false) {
  const auto plan = plan_of(attention, options, has_panels);
  return static_cast<std::size_t>(
      std::ranges::count_if(plan.units, [](const host::attention::unit& u) { return u.is_prefix; }));
}

}  // namespace

TEMPLATE_TEST_CASE("sequences on the host share the read of a prefix", "[attention][prefix][random]", nhd<float32>,
                   hnd<float16>, hnd<bfloat16>, nhd<int8>, hnd<float8_e4m3>) {
  const auto seed = Catch::getSeed();
  CAPTURE(seed);
  auto random = std::mt19937{seed};
  const auto sizes = {std::pair(1, 80), std::pair(2, 64), std::pair(3, 80), std::pair(4, 64), std::pair(8, 80)};
  for (const auto& [group_size, head_dim] : sizes) {
    CAPTURE(group_size, head_dim);
    auto shape = make_sharers(9, group_size >= 4 ? 1200 : 720, group_size);
    shape.head_dim = head_dim;
    auto attention = attention_under_test<TestType>{shape, random};
    CHECK((num_prefixes(attention) > 0) == (group_size < 8));
    CHECK(num_prefixes(attention, {}, true) == 1);
    check_against_reference(attention);
  }
}

TEST_CASE("several prefixes on the host, beside sequences that share none", "[attention][prefix]") {
  auto random = std::mt19937{3};
  auto shape = batch_shape{};
  const auto add = [&](std::int64_t length, std::size_t row, std::int64_t shared) {
    shape.lengths.push_back(length);
    shape.shared.push_back({row, shared});
  };
  for (auto i = 0; i < 20; ++i) {
    add(500 + i, 0, i == 0 ? 0 : 448);
    add(631, 1, i == 0 ? 0 : 608);
    add(20, 0, 0);
  }
  add(530, 1, 160);
  auto attention = attention_under_test<hnd<bfloat16>>{shape, random};
  CHECK(num_prefixes(attention) >= 2);
  check_against_reference(attention);
}

TEMPLATE_TEST_CASE("options apply to shared prefixes on the host", "[attention][prefix][random]", nhd<float32>,
                   hnd<float16>, hnd<bfloat16>, nhd<int8>, hnd<float8_e4m3>) {
  const auto seed = Catch::getSeed();
  CAPTURE(seed);
  auto random = std::mt19937{seed};
  auto shape = make_sharers(12, 800, 2);
  shape.magnitude = 2;
  auto queries = std::vector<std::int32_t>{};
  for (auto i = 0; i < 12; ++i) {
    queries.push_back(i == 3 ? 0 : 1 + i % 3);
    shape.lengths[static_cast<std::size_t>(i)] += 4;
  }
  const auto slopes = std::vector{0.5f, 0.01f, 0.125f, -0.01f};
  const auto sinks = std::vector{-3.0f, 2.0f, -std::numeric_limits<float>::infinity(), 0.5f};
  auto options = attention_options{};
  SECTION("all of them") {
    shape.queries = queries;
    options = {0.2f, 10, 0, slopes.data(), sinks.data()};
  }
  SECTION("trees") {
    shape.queries = queries;
    shape.tree = true;
  }
  SECTION("a window reads nothing together") { options.window = 100; }
  auto attention = attention_under_test<TestType>{shape, random};
  CHECK((num_prefixes(attention, options) > 0) == (options.window == 0));
  check_against_reference(attention, options);
}

TEST_CASE("sequences that end where their shared prefix ends, on the host", "[attention][prefix]") {
  auto random = std::mt19937{4};
  auto shape = make_sharers(9, 512, 1);
  shape.lengths = std::vector<std::int64_t>(9, 512);
  shape.lengths[4] = 528;
  auto attention = attention_under_test<hnd<float16>>{shape, random};
  CHECK(num_prefixes(attention) == 1);
  check_against_reference(attention);
}

TEST_CASE("a shared prefix gives the same bits on any number of threads", "[attention][prefix]") {
  auto random = std::mt19937{5};
  const auto shape = make_sharers(9, 8000, 2);
  auto attention = attention_under_test<hnd<bfloat16>>{shape, random};
  REQUIRE(attention.attend());
  const auto expected = attention.output_of_row(5);
  for (const auto size : {2, 7, 64}) {
    auto threads = host::thread_pool(size);
    REQUIRE(attention.attend({}, threads));
    CHECK(first_difference(attention.output_of_row(5), expected) == no_difference);
  }
}

TEST_CASE("prefixes that are too short, or of too few sequences, are read by each", "[attention][prefix]") {
  auto random = std::mt19937{6};
  CHECK(num_prefixes(attention_under_test<hnd<bfloat16>>{make_sharers(16, 64, 1), random}) == 0);
  const auto two = attention_under_test<hnd<bfloat16>>{make_sharers(2, 1600, 8), random};
  CHECK(num_prefixes(two) == 0);
  CHECK(num_prefixes(two, {}, true) == 1);
  auto shape = make_sharers(16, 1600, 1);
  CHECK(num_prefixes(attention_under_test<hnd<bfloat16>>{shape, random}) == 1);
  auto unwilling = attention_under_test<hnd<bfloat16>>{shape, random};
  auto call = host::attention::attention_call{};
  call.view = unwilling.view();
  call.batch = unwilling.batch();
  call.batch.shares_prefixes = false;
  CHECK(host::attention::make_plan(call, 1).prefix_queries.empty());
}

TEST_CASE("results of many sequences that share a prefix take 64 MiB at most", "[attention][prefix]") {
  const auto plan_for = [](std::int32_t num_rows, bool has_panels) {
    constexpr auto blocks_each = 260;  // of which the last four are a row's own
    auto indptr = std::vector<std::int32_t>{0};
    auto indices = std::vector<block_id>{};
    for (auto row = 0; row < num_rows; ++row) {
      for (auto i = 0; i < blocks_each; ++i) {
        indices.push_back(block_id{i < blocks_each - 4 ? i : (row + 1) * blocks_each + i});
      }
      indptr.push_back(static_cast<std::int32_t>(indices.size()));
    }
    const auto lens = std::vector<std::int32_t>(static_cast<std::size_t>(num_rows), 16);
    auto call = host::attention::attention_call{};
    call.view.block_size = 16;
    call.view.num_kv_heads = 8;
    call.view.head_dim = 128;
    call.group_size = 4;
    call.has_panels = has_panels;
    call.batch = {indptr, indices, lens, {}};
    call.batch.shares_prefixes = true;
    return host::attention::make_plan(call, 4);
  };
  for (const auto num_rows : {100, 1000, 4000}) {
    for (const auto has_panels : {false, true}) {
      CAPTURE(num_rows, has_panels);
      const auto plan = plan_for(num_rows, has_panels);
      CHECK(plan.num_partials <= 16 << 20);
      CHECK(plan.prefix_queries.size() <= static_cast<std::size_t>(num_rows));
      CHECK(plan.prefix_queries.size() >= static_cast<std::size_t>(std::min(num_rows, 1000)));
      for (const auto& u : plan.units) {
        const auto shares = u.is_prefix || u.prefix != host::attention::unit::none;
        CHECK((u.first_partial >= 0) == shares);
        CHECK(u.seen.begin == (u.is_prefix || !shares ? 0 : 4096));
      }
    }
  }
}
