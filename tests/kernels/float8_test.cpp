// Kernels over 8-bit floating point in every format, with scales of a tensor, a head, or a token and head. float8_e4m3
// with a scale a tensor is among the elements of the other tests.

#include "attention_target.hpp"
#include "check_storage.hpp"

#include <pagedkv/core/ids.hpp>

#include <catch2/catch_template_test_macros.hpp>

namespace float8_test {

using namespace pagedkv;
using namespace pagedkv::test;

constexpr auto seed = std::uint32_t{20261201};

template <class Element, class Layout, class Rows>
struct combination {
  using element = Element;
  using layout_type = Layout;
  using rows = Rows;
};

template <class Target, class Element, class Layout, class Rows>
void append_and_gather_on(std::mt19937& random) {
  if (!Target::why_absent().empty()) {
    return;
  }
  INFO(Target::name);
  auto target = Target();
  for (const auto head_dim : {64, 80}) {
    const auto config = make_config(16, 4, 2, 3, head_dim);
    append_and_gather<Rows>(target, *lay_out<Element, Layout>(config), random_slots(config, 40, random), 0, random);
  }
}

TEMPLATE_TEST_CASE("Rows of 8-bit floating point have the scales that they belong to", "[append][float8]",
                   (combination<basic_float8_e4m3<head_scale>, hnd_by_layer, bfloat16>),
                   (combination<basic_float8_e4m3<token_scale>, nhd_by_block, float16>),
                   (combination<basic_float8_e5m2<head_scale>, shuffled_layer_major, float32>),
                   (combination<float8_e4m3fnuz, nhd_by_layer, float32>),
                   (combination<basic_float8_e5m2fnuz<token_scale>, transposed_block_major, bfloat16>)) {
  auto random = std::mt19937(61);
  using element = typename TestType::element;
  using layout = typename TestType::layout_type;
  using rows = typename TestType::rows;
  append_and_gather_on<host_target, element, layout, rows>(random);
  append_and_gather_on<hip_target<0>, element, layout, rows>(random);
  append_and_gather_on<hip_target<1>, element, layout, rows>(random);
}

/// Every number of a format, in one row.
template <class Element>
std::vector<float> all_numbers() {
  auto numbers = std::vector<float>();
  for (auto code = 0; code < 256; ++code) {
    const auto number = Element::decode(static_cast<std::uint8_t>(code), 1.0F);
    numbers.push_back(std::isfinite(number) ? number : 0.0F);
  }
  return numbers;
}

TEMPLATE_TEST_CASE("Every number of a format is stored and read on a device as on the host", "[append][float8]",
                   float8_e4m3, float8_e5m2, float8_e4m3fnuz, float8_e5m2fnuz) {
  auto target = require_target<hip_target<0>>();
  const auto config = make_config(4, 1, 1, 1, 256);
  auto rows = rows_of<float32>(3, 1, 256, 0);
  const auto numbers = all_numbers<TestType>();
  for (auto i = std::size_t{0}; i < numbers.size(); ++i) {
    rows.row(0, 0)[i] = numbers[i];
    // Halfway to the next number, and beyond the largest.
    rows.row(1, 0)[i] = (numbers[i] + numbers[i % 128 == 127 ? i : i + 1]) / 2;
    rows.row(2, 0)[i] = numbers[i] * 1000;
  }
  auto expected = std::vector<std::byte>(static_cast<std::size_t>(plan<TestType, nhd_by_layer>(config).bytes));
  const auto slots = std::vector{slot{0}, slot{1}, slot{2}};
  const auto storage = target_array<std::byte, hip_target<0>>(target, expected);
  const auto mapping = target_array<slot, hip_target<0>>(target, slots);
  const auto array = target_array<float, hip_target<0>>(target, rows.numbers);
  const auto view = at(plan<TestType, nhd_by_layer>(config).view, storage.data());
  const auto mapped = std::span<const slot>(mapping.data(), mapping.size());
  const float* const data = array.data();
  REQUIRE(target.backend.template append<TestType>(view, 0, mapped, rows.view(data), rows.view(data), target.stream()));
  REQUIRE(target.backend.template gather<TestType>(view, 0, mapped, rows.view(array.data()), rows.view(array.data()),
                                                   target.stream()));
  REQUIRE(target.backend.synchronize(target.stream()));
  const auto stored = storage.values();
  const auto read = array.values();
  for (auto i = std::size_t{0}; i < rows.numbers.size(); ++i) {
    const auto right = TestType::encode(rows.numbers[i], 1.0F);
    CAPTURE(i, rows.numbers[i]);
    CHECK(static_cast<std::uint8_t>(stored[i]) == right);
    CHECK(read[i] == TestType::decode(right, 1.0F));
  }
}

TEMPLATE_TEST_CASE("NaN stays NaN and infinities become it, on a device", "[append][float8]", float8_e4m3, float8_e5m2,
                   float8_e4m3fnuz, float8_e5m2fnuz) {
  auto target = require_target<hip_target<0>>();
  const auto config = make_config(4, 1, 1, 1, 32);
  auto rows = rows_of<float32>(1, 1, 32, 0);
  std::fill(rows.numbers.begin(), rows.numbers.end(), 1.5F);
  const auto infinity = std::numeric_limits<float>::infinity();
  rows.numbers[3] = std::numeric_limits<float>::quiet_NaN();
  rows.numbers[4] = infinity;
  rows.numbers[19] = -infinity;
  const auto bytes = std::vector<std::byte>(static_cast<std::size_t>(plan<TestType, nhd_by_layer>(config).bytes));
  const auto storage = target_array<std::byte, hip_target<0>>(target, bytes);
  const auto mapping = target_array<slot, hip_target<0>>(target, {slot{2}});
  const auto array = target_array<float, hip_target<0>>(target, rows.numbers);
  const auto view = at(plan<TestType, nhd_by_layer>(config).view, storage.data());
  const auto mapped = std::span<const slot>(mapping.data(), 1);
  const float* const data = array.data();
  REQUIRE(target.backend.template append<TestType>(view, 0, mapped, rows.view(data), rows.view(data), target.stream()));
  REQUIRE(target.backend.template gather<TestType>(view, 0, mapped, rows.view(array.data()), rows.view(array.data()),
                                                   target.stream()));
  REQUIRE(target.backend.synchronize(target.stream()));
  const auto read = array.values();
  for (auto i = std::size_t{0}; i < 32; ++i) {
    CAPTURE(i, read[i]);
    CHECK((i == 3 || i == 4 || i == 19 ? std::isnan(read[i]) : read[i] == 1.5F));
  }
}

template <class Element, class Input, int Device>
void check_where_present(const attention_case& asked) {
  if (Device == 0 || hip_target<Device>::why_absent().empty()) {
    check_attention<Element, hnd_by_block, Input, Device>(asked, seed);
  }
}

/// Decoding in waves and by plain arithmetic, and a chunk of a prompt, on one device of the executor, or a real one.
template <class Element, class Input, int Device>
void check_attention_of() {
  auto asked = attention_case{};
  asked.lengths = {0, 1, 33, 97, 300};
  asked.num_kv_heads = 3;
  asked.group_size = 4;
  asked.num_shares = 7;
  check_where_present<Element, Input, Device>(asked);
  asked.head_dim = 128;
  asked.group_size = 1;
  asked.split_tokens = 64;
  asked.num_shares = 0;
  check_where_present<Element, Input, Device>(asked);
  asked.head_dim = 35;
  asked.split_tokens = 0;
  check_where_present<Element, Input, Device>(asked);
  asked.head_dim = 64;
  asked.group_size = 3;
  asked.prefill = true;
  asked.lengths = {16, 90};
  asked.queries = std::vector<std::int32_t>{1, 71};
  asked.soft_cap = 20;
  check_where_present<Element, Input, Device>(asked);
}

TEST_CASE("attention over 8-bit floating point with any scales", "[attention][float8]") {
  check_attention_of<basic_float8_e5m2<head_scale>, bfloat16, 0>();
  check_attention_of<basic_float8_e4m3fnuz<token_scale>, float16, 1>();
  check_attention_of<float8_e5m2fnuz, float32, 2>();
}

TEST_CASE("latent vectors of 8-bit floating point", "[attention][float8]") {
  auto asked = latent_case();
  asked.lengths = {33, 5};
  asked.group_size = 3;
  check_where_present<float8_e4m3, bfloat16, 1>(asked);
}

}  // namespace float8_test
