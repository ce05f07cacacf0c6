#include "../support/first_difference.hpp"
#include "../support/messages.hpp"
#include "../support/on_threads.hpp"
#include "../support/printing.hpp"
#include "attention_under_test.hpp"
#include "instruction_sets.hpp"

#include <pagedkv/host/thread_pool.hpp>

#include <catch2/catch_get_random_seed.hpp>
#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <concepts>
#include <limits>
#include <random>
#include <string>

using namespace pagedkv;
using namespace pagedkv::test;

namespace {

constexpr auto infinity = std::numeric_limits<float>::infinity();
constexpr auto not_a_number = std::numeric_limits<float>::quiet_NaN();

template <class Element>
using nhd = in_nhd_layer_major<Element>;
template <class Element>
using hnd = in_hnd_block_major<Element>;

/// An element that the library does not know: a byte in units of 1/16, scaled.
struct sixteenths {
  using storage = std::int8_t;
  static constexpr bool scaled = true;
  static constexpr std::string_view name = "sixteenths";
  static constexpr float scale_for(float absmax) noexcept { return absmax / 6 + 0x1p-100f; }
  static constexpr storage encode(float number, float scale) noexcept {
    return static_cast<storage>(number / scale * 16);
  }
  static constexpr float decode(storage stored, float scale) noexcept {
    return static_cast<float>(stored) / 16 * scale;
  }
};

static_assert(element<sixteenths>);

}  // namespace

TEMPLATE_PRODUCT_TEST_CASE("attention over blocks agrees with its definition", "[attention][random]", (nhd, hnd),
                           (float32, float16, bfloat16, int8, sixteenths, float8_e4m3)) {
  const auto seed = Catch::getSeed();
  CAPTURE(seed);
  auto random = std::mt19937{seed};
  SECTION("ragged lengths") {
    auto shape = batch_shape{{0, 1, 15, 16, 17, 97, 999}};
    shape.group_size = 2;
    auto attention = attention_under_test<TestType>{shape, random};
    check_against_reference(attention);
    CHECK(attention.output_at(0, 0, 0) == 0);
    CHECK(attention.log_sum_exp(0, 0) == -infinity);
  }
  SECTION("block sizes") {
    for (const auto block_size : {1, 5, 8, 32, 256}) {
      for (const auto group_size : {1, 5}) {
        CAPTURE(block_size, group_size);
        auto shape = batch_shape{{1, 255, 256, 257, 64}};
        shape.block_size = block_size;
        shape.group_size = group_size;
        auto attention = attention_under_test<TestType>{shape, random};
        check_against_reference(attention);
      }
    }
  }
  SECTION("group sizes") {
    for (const auto group_size : {1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 64}) {
      CAPTURE(group_size);
      auto shape = batch_shape{{70, 33}};
      shape.group_size = group_size;
      auto attention = attention_under_test<TestType>{shape, random};
      check_against_reference(attention);
    }
  }
  SECTION("head dims") {
    for (const auto head_dim : {1, 8, 20, 24, 40, 64, 67, 80, 96, 104, 112, 128, 192, 256}) {
      CAPTURE(head_dim);
      auto shape = batch_shape{{70, 129}};
      shape.head_dim = head_dim;
      shape.group_size = 3;
      auto attention = attention_under_test<TestType>{shape, random};
      check_against_reference(attention);
    }
  }
  SECTION("several queries") {
    for (const auto group_size : {1, 4, 7}) {
      for (const auto head_dim : {24, 64}) {
        CAPTURE(group_size, head_dim);
        auto shape = batch_shape{{97, 70, 5, 64, 3, 140}};
        shape.group_size = group_size;
        shape.head_dim = head_dim;
        shape.queries = std::vector<std::int32_t>{4, 70, 0, 16, 5, 66};  // the last but one has more than tokens
        auto attention = attention_under_test<TestType>{shape, random};
        check_against_reference(attention);
        auto options = attention_options{};
        options.window = 20;
        check_against_reference(attention, options);
      }
    }
  }
}

TEMPLATE_TEST_CASE("options of attention have their documented effect", "[attention][random]", nhd<float32>,
                   hnd<float16>, nhd<bfloat16>, nhd<int8>, hnd<float8_e4m3>) {
  const auto seed = Catch::getSeed();
  CAPTURE(seed);
  auto random = std::mt19937{seed};
  auto shape = batch_shape{{0, 1, 77, 1000, 200}};
  shape.group_size = 3;
  shape.magnitude = 3;
  shape.queries = std::vector<std::int32_t>{1, 1, 1, 2, 40};
  auto attention = attention_under_test<TestType>{shape, random};
  const auto slopes = std::vector{0.5f, 0.25f, 0.125f, 0.0f, -0.01f, 1.0f};
  const auto sinks = std::vector{-3.0f, 0.0f, 2.0f, 9.0f, -infinity, 0.5f};
  auto options = attention_options{};
  SECTION("scale") { options.scale = 0.3f; }
  SECTION("soft cap") { options.soft_cap = 5; }
  SECTION("a high soft cap") { options.soft_cap = 50; }
  SECTION("ALiBi") { options.alibi_slopes = slopes.data(); }
  SECTION("sinks") { options.sinks = sinks.data(); }
  SECTION("windows") { options.window = 33; }
  SECTION("a window of one") { options.window = 1; }
  SECTION("all of them") {
    options = {0.2f, 10, 99, slopes.data(), sinks.data()};
  }
  check_against_reference(attention, options);
}

TEMPLATE_TEST_CASE("queries and outputs may be of any unscaled element", "[attention]", float16, bfloat16) {
  auto random = std::mt19937{5};
  auto shape = batch_shape{{5, 100}};
  shape.group_size = 4;
  auto same = attention_under_test<nhd<float32>, TestType>{shape, random};
  REQUIRE(same.attend());
  CHECK(same.worst_error(same.expected({})) <= attention_tolerance<TestType>);
  auto wider = attention_under_test<nhd<float32>, TestType, float32>{shape, random};
  REQUIRE(wider.attend());
  CHECK(wider.worst_error(wider.expected({})) <= attention_tolerance<float32>);
}

TEST_CASE("queries over bfloat16 may be its own numbers or others", "[attention][random]") {
  const auto seed = Catch::getSeed();
  CAPTURE(seed);
  auto random = std::mt19937{seed};
  for (const auto group_size : {3, 8, 15, 20}) {
    CAPTURE(group_size);
    auto shape = batch_shape{{0, 1, 33, 150}};
    shape.group_size = group_size;
    shape.queries = std::vector<std::int32_t>{1, 1, 2, 3};
    auto exact = attention_under_test<hnd<bfloat16>, bfloat16, float32>{shape, random};
    check_against_reference(exact);
    auto mixed = attention_under_test<hnd<bfloat16>, float32>{shape, random};
    const auto half = static_cast<std::ptrdiff_t>(mixed.queries().size() / 2);
    std::for_each(mixed.queries().begin(), mixed.queries().begin() + half,
                  [](float& query) { query = bfloat16::decode(bfloat16::encode(query, 1.0f), 1.0f); });
    check_against_reference(mixed);
  }
}

TEMPLATE_TEST_CASE("attention to a long sequence uses every thread", "[attention]", nhd<float32>, hnd<int8>) {
  auto random = std::mt19937{6};
  auto shape = batch_shape{{32789}};
  shape.group_size = 4;
  auto attention = attention_under_test<TestType>{shape, random};
  auto threads = host::thread_pool(3);
  REQUIRE(attention.attend({}, threads));
  CHECK(attention.worst_error(attention.expected({})) <= attention_tolerance<typename TestType::element_type>);
}

TEMPLATE_TEST_CASE("the bits of a row depend on nothing but the row", "[attention]", nhd<float32>, hnd<float16>,
                   nhd<bfloat16>, nhd<int8>) {
  // The first, third and last row have several chunks. The fourth has two units of panels, the second of them not full.
  auto shape = batch_shape{{1500, 40, 1100, 520, 5000}};
  shape.group_size = 4;
  shape.head_dim = GENERATE(64, 40);
  shape.queries = std::vector<std::int32_t>{1, 3, 2, 70, 1};
  auto random = std::mt19937{7};
  auto whole = attention_under_test<TestType>{shape, random};
  for (const auto set : instruction_sets<typename TestType::element_type>()) {
    REQUIRE(whole.attend({}, {}, set));
    auto together = std::vector<std::vector<float>>{};
    for (auto row = std::size_t{0}; row < shape.lengths.size(); ++row) {
      together.push_back(whole.output_of_row(row));
    }
    for (auto row = std::size_t{0}; row < shape.lengths.size(); ++row) {
      REQUIRE(whole.attend_alone(row, {}, set));
      CHECK(first_difference(whole.output_of_row(row), together[row]) == no_difference);
    }
  }
  REQUIRE(whole.attend());
  auto expected = std::vector<std::vector<float>>{};
  for (auto row = std::size_t{0}; row < shape.lengths.size(); ++row) {
    expected.push_back(whole.output_of_row(row));
  }
  for (const auto size : {2, 3, 7, 64}) {
    CAPTURE(size);
    auto threads = host::thread_pool(size);
    REQUIRE(whole.attend({}, threads));
    for (auto row = std::size_t{0}; row < shape.lengths.size(); ++row) {
      CHECK(first_difference(whole.output_of_row(row), expected[row]) == no_difference);
    }
  }
}

/// A pool that makes its calls on the calling thread, the last one first.
struct backward_pool {
  [[nodiscard]] static int size() { return 5; }

  template <class Call>
  static void run(int n, Call&& call) {
    while (n > 0) {
      call(--n);
    }
  }
};

TEST_CASE("a pool may make all calls on one thread, in any order", "[attention]") {
  auto random = std::mt19937{17};
  auto shape = batch_shape{{3000, 40}};
  shape.group_size = 4;
  auto attention = attention_under_test<hnd<bfloat16>>{shape, random};
  REQUIRE(attention.attend());
  const auto expected = std::vector{attention.output_of_row(0), attention.output_of_row(1)};
  auto pool = backward_pool{};
  REQUIRE(attention.attend({}, pool));
  CHECK(std::vector{attention.output_of_row(0), attention.output_of_row(1)} == expected);
}

/// A pool that keeps the largest number of calls of a run.
struct counting_pool {
  [[nodiscard]] static int size() { return 8; }

  template <class Call>
  void run(int n, Call&& call) {
    most_calls = std::max(most_calls, n);
    while (n > 0) {
      call(--n);
    }
  }

  int most_calls = 0;
};

TEST_CASE("small work takes fewer threads than large work", "[attention]") {
  auto most_calls = std::vector<int>{};
  for (const auto length : {16, 2000, 30000}) {
    auto random = std::mt19937{18};
    auto shape = batch_shape{{length}};
    shape.group_size = 4;
    auto attention = attention_under_test<hnd<bfloat16>>{shape, random};
    auto pool = counting_pool{};
    REQUIRE(attention.attend({}, pool));
    most_calls.push_back(pool.most_calls);
  }
  CHECK(most_calls[0] == 0);  // not even woken
  CHECK(most_calls[1] > 0);
  CHECK(most_calls[1] < counting_pool::size());
  CHECK(most_calls[2] == counting_pool::size());
}

TEST_CASE("several threads share one pool", "[attention][random]") {
  auto pool = host::thread_pool(3);
  auto errors = std::array<double, 4>{};
  on_threads(errors.size(), [&](std::size_t i) {
    auto random = std::mt19937{static_cast<unsigned>(i)};
    auto attention = attention_under_test<nhd<float32>>{batch_shape{{2000, 17}}, random};
    for (auto step = 0; step < 5; ++step) {
      errors[i] = attention.attend({}, pool) ? std::max(errors[i], attention.worst_error(attention.expected({}))) : 1;
    }
  });
  CHECK(std::ranges::max(errors) <= attention_tolerance<float32>);
}

TEMPLATE_PRODUCT_TEST_CASE("values may be shorter or longer than keys, or the first part of them",
                           "[attention][random]", (nhd, hnd),
                           (float32, float16, bfloat16, int8, sixteenths, float8_e4m3)) {
  const auto seed = Catch::getSeed();
  CAPTURE(seed);
  auto random = std::mt19937{seed};
  struct dims {
    std::int32_t key;
    std::int32_t value;
    bool latent;
  };
  for (const auto& [key, value, latent] : {dims{192, 128, false}, dims{40, 96, false}, dims{64, 20, false},
                                           dims{576, 512, true}, dims{36, 21, true}, dims{32, 32, true},
                                           dims{1024, 64, false}, dims{1088, 64, false}}) {
    // On both sides of the longest keys whose products are summed as integers.
    if (key > 1000 && !std::same_as<typename attention_under_test<TestType>::element_type, int8>) {
      continue;
    }
    for (const auto group_size : {1, 3, 20}) {
      CAPTURE(key, value, latent, group_size);
      auto shape = batch_shape{{0, 1, 33, 150}};
      shape.head_dim = key;
      shape.value_dim = value;
      shape.num_kv_heads = latent ? 1 : 2;
      shape.latent = latent;
      shape.group_size = group_size;
      auto attention = attention_under_test<TestType>{shape, random};
      check_against_reference(attention);
    }
  }
}

TEMPLATE_TEST_CASE("a tree mask hides branches", "[attention][random]", nhd<float32>, hnd<float16>, hnd<bfloat16>,
                   nhd<int8>, nhd<float8_e4m3>) {
  const auto seed = Catch::getSeed();
  CAPTURE(seed);
  auto random = std::mt19937{seed};
  for (const auto group_size : {1, 4}) {
    auto shape = batch_shape{{5, 16, 49, 70, 200, 32}};
    shape.queries = std::vector<std::int32_t>{5, 1, 16, 16, 3, 32};
    shape.tree = true;
    shape.group_size = group_size;
    auto attention = attention_under_test<TestType>{shape, random};
    check_against_reference(attention);
    auto options = attention_options{};
    options.window = 20;
    options.soft_cap = 5;
    check_against_reference(attention, options);
  }
  auto shape = batch_shape{{40}};
  shape.queries = std::vector<std::int32_t>{33};
  shape.tree = true;
  auto attention = attention_under_test<TestType>{shape, random};
  const auto refused = attention.attend();
  REQUIRE_FALSE(refused);
  CHECK(refused.error().value == 33);
}

TEMPLATE_TEST_CASE("one token's output is its value", "[attention]", nhd<float32>, hnd<float16>, nhd<bfloat16>) {
  auto random = std::mt19937{8};
  auto attention = attention_under_test<TestType>{batch_shape{{1}}, random};
  const auto value = std::vector<float>(2 * 64, 0.375f);
  attention.write(0, 0, std::vector<float>(2 * 64, 1.0f), value);
  REQUIRE(attention.attend());
  CHECK(attention.output_at(0, 1, 63) == 0.375f);
}

TEMPLATE_TEST_CASE("NaN and infinity reach the queries that see them and no others", "[attention]", nhd<float32>,
                   hnd<float16>, nhd<bfloat16>, nhd<int8>, hnd<float8_e4m3>) {
  const auto in_key = GENERATE(true, false);
  const auto bad = GENERATE(not_a_number, infinity);
  for (const auto set : instruction_sets<typename TestType::element_type>()) {
    CAPTURE(in_key, bad, static_cast<int>(set));
    auto random = std::mt19937{9};
    auto shape = batch_shape{{100, 100}};
    shape.group_size = 2;
    shape.queries = std::vector<std::int32_t>{20, 1};
    auto attention = attention_under_test<TestType>{shape, random};
    const auto good = std::vector<float>(2 * 64, 0.5f);
    auto poisoned = good;
    poisoned[3] = bad;  // of KV head 0
    attention.write(0, 90, in_key ? poisoned : good, in_key ? good : poisoned);
    REQUIRE(attention.attend({}, {}, set));
    const auto finite = [&](std::int64_t query, std::int64_t head) {
      return std::isfinite(attention.output_at(query, head, 3));
    };
    CHECK(finite(9, 0));         // position 89
    CHECK_FALSE(finite(10, 0));  // position 90
    CHECK_FALSE(finite(19, 1));
    CHECK(finite(19, 2));  // another KV head
    CHECK(finite(20, 0));  // another row
  }
}

TEMPLATE_TEST_CASE("NaN and infinity reach all queries of a group, and one query its own head", "[attention]",
                   nhd<float32>, hnd<float16>, nhd<bfloat16>, hnd<int8>, nhd<float8_e4m3>) {
  const auto bad = GENERATE(not_a_number, infinity);
  for (const auto set : instruction_sets<typename TestType::element_type>()) {
    CAPTURE(bad, static_cast<int>(set));
    auto random = std::mt19937{13};
    auto shape = batch_shape{{128}};
    shape.group_size = 8;
    const auto finite = [&](const auto& attention, std::int64_t head) {
      return std::isfinite(attention.output_at(0, head, 3));
    };
    auto in_value = attention_under_test<TestType>{shape, random};
    auto poisoned = std::vector<float>(2 * 64, 0.5f);
    const auto good = poisoned;
    poisoned[3] = bad;  // of KV head 0
    in_value.write(0, 90, good, poisoned);
    REQUIRE(in_value.attend({}, {}, set));
    auto in_query = attention_under_test<TestType>{shape, random};
    in_query.queries()[5] = bad;  // of head 0
    REQUIRE(in_query.attend({}, {}, set));
    for (auto head = 0; head < 16; ++head) {
      CAPTURE(head);
      CHECK(finite(in_value, head) == (head >= 8));
      CHECK(finite(in_query, head) == (head != 0));
    }
  }
}

TEMPLATE_TEST_CASE("a NaN that a tree mask hides does not reach the result", "[attention]", nhd<float32>, hnd<float16>,
                   nhd<bfloat16>, hnd<int8>, hnd<float8_e4m3>) {
  for (const auto group_size : {1, 3, 16}) {
    auto random = std::mt19937{15};
    auto shape = batch_shape{{70}};
    shape.queries = std::vector<std::int32_t>{8};
    shape.tree = true;
    shape.group_size = group_size;
    auto attention = attention_under_test<TestType>{shape, random};
    // The first token of the tree.
    attention.write(0, 62, std::vector<float>(2 * 64, 0.5f), std::vector<float>(2 * 64, not_a_number));
    const auto batch = attention.batch();
    for (const auto set : instruction_sets<typename TestType::element_type>()) {
      REQUIRE(attention.attend({}, {}, set));
      for (auto query = std::size_t{0}; query < 8; ++query) {
        CAPTURE(group_size, query, static_cast<int>(set));
        const bool hidden = query > 0 && (batch.tree_masks[query] & 1) == 0;
        CHECK(std::isfinite(attention.output_at(static_cast<std::int64_t>(query), 0, 3)) == hidden);
      }
    }
  }
}

TEST_CASE("a scale that is any NaN makes the result NaN", "[attention]") {
  for (const auto bits : {0x7fc0'0000U, 0x7fff'ffffU, 0xffff'ffffU}) {
    for (const auto group_size : {1, 8, 20}) {
      auto random = std::mt19937{16};
      auto shape = batch_shape{{100}};
      shape.group_size = group_size;
      auto attention = attention_under_test<nhd<int8>>{shape, random};
      const auto& view = attention.view();
      const auto at = static_cast<std::int64_t>(attention.slot_of(0, 50));
      *view.value_scale(1, at / 16, static_cast<std::int32_t>(at % 16), 0) = std::bit_cast<float>(bits);
      for (const auto set : instruction_sets<int8>()) {
        CAPTURE(bits, group_size, static_cast<int>(set));
        REQUIRE(attention.attend({}, {}, set));
        CHECK(std::isnan(attention.output_at(0, 0, 3)));
        CHECK(std::isfinite(attention.output_at(0, group_size, 3)));  // another KV head
      }
    }
  }
}

/// Where later calls keep their variables.
[[gnu::noinline]] void leave_nan_on_the_stack() {
  volatile float numbers[1 << 14];
  for (auto& number : numbers) {
    number = not_a_number;
  }
}

TEST_CASE("scales of tokens that a row does not see do not reach it", "[attention]") {
  for (const auto group_size : {1, 2, 4}) {
    auto random = std::mt19937{18};
    auto shape = batch_shape{{13, 77}};  // no tile of the first row fills its registers
    shape.group_size = group_size;
    shape.queries = std::vector<std::int32_t>{1, 3};
    auto attention = attention_under_test<nhd<int8>>{shape, random};
    const auto& view = attention.view();
    const auto at = static_cast<std::int64_t>(attention.slot_of(1, 76));
    *view.value_scale(1, at / 16, static_cast<std::int32_t>(at % 16), 0) = not_a_number;
    for (const auto set : instruction_sets<int8>()) {
      CAPTURE(group_size, static_cast<int>(set));
      leave_nan_on_the_stack();
      REQUIRE(attention.attend({}, {}, set));
      for (const auto query : {0, 1, 2}) {
        CHECK(std::isfinite(attention.output_at(query, 0, 3)));
      }
      CHECK(std::isnan(attention.output_at(3, 0, 3)));
    }
  }
}

TEST_CASE("results of parts of long prompts take little memory on many threads", "[attention]") {
  const auto num_partials = [](std::int32_t num_queries, int num_threads) {
    const auto indptr = std::vector<std::int32_t>{0, 8192};
    const auto indices = std::vector<block_id>(8192);
    const auto lens = std::vector<std::int32_t>{16};
    const auto queries = std::vector<std::int32_t>{0, num_queries};
    auto call = host::attention::attention_call{};
    call.view.num_layers = 1;
    call.view.block_size = 16;
    call.view.num_kv_heads = 1;
    call.view.head_dim = 128;
    call.group_size = 8;
    call.has_panels = true;
    call.batch = {indptr, indices, lens, queries};
    return host::attention::make_plan(call, num_threads).num_partials;
  };
  CHECK(num_partials(8192, 64) <= 16 << 20);
  CHECK(num_partials(1, 64) > 0);  // one token's work is divided along the sequence
}

TEST_CASE("a NaN in a query spoils its own head only", "[attention]") {
  auto random = std::mt19937{10};
  auto shape = batch_shape{{100}};
  shape.group_size = 4;
  auto attention = attention_under_test<nhd<float32>>{shape, random};
  attention.queries()[5] = not_a_number;
  REQUIRE(attention.attend());
  CHECK(std::isnan(attention.output_at(0, 0, 0)));
  CHECK(std::isnan(attention.log_sum_exp(0, 0)));
  CHECK(std::isfinite(attention.output_at(0, 1, 0)));
}

TEST_CASE("scores of ten thousand neither overflow nor vanish", "[attention]") {
  auto random = std::mt19937{11};
  auto attention = attention_under_test<nhd<float32>>{batch_shape{{50}}, random};
  for (auto token = std::int64_t{0}; token < 50; ++token) {
    const auto sign = token == 20 ? 1.0f : -1.0f;
    attention.write(0, token, std::vector<float>(2 * 64, sign * 100),
                    std::vector<float>(2 * 64, static_cast<float>(token)));
  }
  for (const auto sign : {1.0f, -1.0f}) {
    std::ranges::fill(attention.queries(), sign * 12.5f);  // scores of ± 10,000
    for (const auto set : instruction_sets<float32>()) {
      REQUIRE(attention.attend({}, {}, set));
      CHECK(attention.worst_error(attention.expected({})) <= 1e-5);
      CHECK(attention.log_sum_exp(0, 0) > 9999);
    }
  }
}

TEMPLATE_TEST_CASE("a window reads no block before it", "[attention]", nhd<float32>, hnd<int8>) {
  auto random = std::mt19937{12};
  auto shape = batch_shape{{100, 40}};
  shape.queries = std::vector<std::int32_t>{3, 1};
  auto attention = attention_under_test<TestType>{shape, random};
  auto options = attention_options{};
  options.window = 30;
  // The first query is at position 97 and sees 68 to 97: blocks 4 on.
  std::fill_n(attention.indices().begin(), 4, no_block);
  check_against_reference(attention, options);
  attention.indices()[4] = no_block;
  const auto refused = attention.attend(options);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == error_code::invalid_argument);
  CHECK(refused.error().value == -1);
}

TEST_CASE("attention with arguments that do not fit is refused", "[attention]") {
  auto random = std::mt19937{13};
  auto shape = batch_shape{{20, 30}};
  auto under_test = attention_under_test<nhd<float32>>{shape, random};
  const auto& view = under_test.view();
  const auto good = under_test.batch();
  auto numbers = std::vector<float>(1000, 3.0f);
  const auto refused = [&](std::int32_t layer, const attention_batch& batch, std::int32_t heads,
                           const attention_options& options = {}) {
    const auto outcome =
        host::attend<float32>(view, layer, batch, {under_test.queries().data(), 128, 64, 50, heads, 64},
                              {{numbers.data(), 128, 64, 50, heads, 64}}, options);
    CHECK(numbers == std::vector<float>(1000, 3.0f));
    return test::said(outcome);
  };
  using test::invalid;
  const auto* const queries = under_test.queries().data();
  auto* const results = numbers.data();
  const auto of_rows = [&](const token_rows<const float>& from, const token_rows<float>& to) {
    return test::said(host::attend<float32>(view, 0, good, from, {to}));
  };
  const auto lens = std::vector<std::int32_t>{4, 17};
  const auto nothing_in_a_block = std::vector<std::int32_t>{0, 14};
  const auto falling = std::vector<std::int32_t>{0, 2, 1};
  auto indices = std::vector<block_id>(good.indices.begin(), good.indices.end());
  indices[1] = block_id{view.num_blocks};
  const auto many = std::vector<std::int32_t>{0, 40, 41};
  const auto masks = std::vector<std::uint32_t>(41);
  auto trees = good;
  trees.query_indptr = many;
  trees.tree_masks = masks;
  auto few_masks = trees;
  few_masks.tree_masks = trees.tree_masks.first(40);
  const auto last_block = std::to_string(view.num_blocks - 1);
  test::check_messages({
      {refused(2, good, 2), invalid("layer is 2, limit 1")},
      {refused(-1, good, 2), invalid("layer is -1, limit 0")},
      {refused(0, good, 0), invalid("num_heads of the queries, no multiple of the KV heads, is 0, limit 2")},
      {refused(0, good, -7), invalid("num_heads of the queries, no multiple of the KV heads, is -7, limit 2")},
      {refused(0, good, 1), invalid("num_heads of the queries, no multiple of the KV heads, is 1, limit 2")},
      {refused(0, good, 5), invalid("num_heads of the queries, no multiple of the KV heads, is 5, limit 4")},
      {refused(0, good, 2, {0, 0, -1}), invalid("attention_options.window is -1, limit 0")},
      {refused(0, good, 2, {0, -0.5f}), invalid("attention_options.soft_cap, rounded down, is -1, limit 0")},
      {refused(0, {good.indptr, good.indices, lens, {}}, 2), invalid("attention_batch.last_block_len is 17, limit 16")},
      {refused(0, {good.indptr, good.indices, nothing_in_a_block, {}}, 2),
       invalid("attention_batch.last_block_len is 0, limit 1")},
      {refused(0, {good.indptr.first(2), good.indices, good.last_block_len, {}}, 2),
       invalid("size of attention_batch.indptr is 2, limit 3")},
      {refused(0, {falling, good.indices, good.last_block_len, {}}, 2),
       invalid("entry of attention_batch.indptr, below the one before it, is 1, limit 2")},
      {refused(0, {good.indptr, good.indices.first(3), good.last_block_len, {}}, 2),
       invalid("last entry of attention_batch.indptr, beyond its indices, is 4, limit 3")},
      {refused(0, {good.indptr, good.indices, good.last_block_len, std::span{falling}.first(2)}, 2),
       invalid("size of attention_batch.query_indptr is 2, limit 3")},
      {refused(0, {good.indptr, good.indices, good.last_block_len, falling}, 2),
       invalid("entry of attention_batch.query_indptr, below the one before it, is 1, limit 2")},
      {refused(0, {good.indptr, indices, good.last_block_len, {}}, 2),
       invalid("block in attention_batch.indices is " + std::to_string(view.num_blocks) + ", limit " + last_block)},
      {refused(0, trees, 2), invalid("queries of a row with tree masks is 40, limit 32")},
      {refused(0, few_masks, 2), invalid("size of attention_batch.tree_masks is 40, limit 41")},
      {of_rows({queries, 128, 64, 1, 2, 64}, {results, 128, 64, 2, 2, 64}),
       invalid("num_tokens of the queries is 1, limit 2")},
      {of_rows({queries, 128, 64, 2, 2, 8}, {results, 128, 64, 2, 2, 64}),
       invalid("head_dim of the queries is 8, limit 64")},
      {of_rows({queries, 128, 64, 2, 2, 64}, {results, 128, 64, 1, 2, 64}),
       invalid("num_tokens of the outputs is 1, limit 2")},
      {of_rows({queries, 128, 64, 2, 2, 64}, {results, 128, 64, 2, 4, 64}),
       invalid("num_heads of the outputs is 4, limit 2")},
      {of_rows({queries, 128, 64, 2, 2, 64}, {results, 128, 64, 2, 2, 65}),
       invalid("head_dim of the outputs is 65, limit 64")},
  });
}

TEST_CASE("attention accepts an empty batch", "[attention]") {
  auto random = std::mt19937{14};
  auto attention = attention_under_test<nhd<float32>>{batch_shape{}, random};
  CHECK(attention.attend());
  CHECK(host::attend<float32>(attention.view(), 0, {}, {.num_heads = 2}, {}));
}

TEST_CASE("rows may share blocks, and blocks beyond 65,535 are found", "[attention]") {
  auto config = cache_config{};
  config.block_size = 1;
  config.num_blocks = 70'000;
  config.head_dim = 16;
  const auto storage = nhd<float32>{config};
  const auto keys = std::vector<float>(16, 0.0f);
  for (const auto block : {1, 69'999}) {
    const auto values = std::vector<float>(16, static_cast<float>(block));
    REQUIRE(host::append<float32>(storage.view(), 0, std::vector{slot{block}}, contiguous_rows(keys, 1, 16),
                                  contiguous_rows(values, 1, 16)));
  }
  const auto indptr = std::vector<std::int32_t>{0, 2, 3};
  const auto indices = std::vector{block_id{1}, block_id{69'999}, block_id{69'999}};
  const auto lens = std::vector<std::int32_t>{1, 1};
  auto output = std::vector<float>(32);
  const auto queries = std::vector<float>(32, 1.0f);
  REQUIRE(host::attend<float32>(storage.view(), 0, {indptr, indices, lens, {}}, contiguous_rows(queries, 1, 16),
                                {contiguous_rows(output, 1, 16)}));
  CHECK(output[0] == 35'000);
  CHECK(output[31] == 69'999);
}
