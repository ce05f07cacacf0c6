// Attention whose sequences share the read of a prefix, on devices, and on the host executor with waves of 64 and 32
// lanes, against float64.

#include "attention_target.hpp"

namespace prefix_attention_tests {

using namespace pagedkv;
using namespace pagedkv::test;

constexpr auto seed = std::uint32_t{20261122};

/// On every device that there is: the executor's have matrix instructions of every kind. `num_prefixes`: of the plan,
/// where the device has such instructions.
template <class Element, class Input>
void check_everywhere(const attention_case& asked, std::size_t num_prefixes) {
  const auto check_device = [&]<int Device>(std::integral_constant<int, Device>) {
    if (Device > 0 && !hip_target<Device>::why_absent().empty()) {
      return;
    }
    const auto found = check_attention<Element, hnd_by_block, Input, Device>(asked, seed);
    auto properties = runtime::device_properties{};
    REQUIRE(runtime::get_device_properties(&properties, Device) == runtime::success);
    INFO("device " << Device);
    CHECK(found == (properties.matrices == runtime::matrix_instructions::none ? 0 : num_prefixes));
  };
  check_device(std::integral_constant<int, 0>{});
  check_device(std::integral_constant<int, 1>{});
  check_device(std::integral_constant<int, 2>{});
}

/// `count` sequences that share `tokens`, in a plan for few waves.
[[nodiscard]] attention_case make_sharers(std::size_t count, std::int32_t tokens) {
  auto asked = attention_case{};
  for (auto i = std::size_t{0}; i < count; ++i) {
    asked.lengths.push_back(tokens + 1 + static_cast<std::int32_t>(i * 7 % 40));
    asked.shared.push_back({0, i == 0 ? 0 : tokens});
  }
  asked.num_shares = 3;
  return asked;
}

TEST_CASE("sequences share the read of a prefix", "[prefix_attention]") {
  auto asked = make_sharers(10, 256);
  check_everywhere<bfloat16, bfloat16>(asked, 1);
  asked = make_sharers(10, 480);
  asked.group_size = 4;
  asked.num_shares = 20;
  check_everywhere<int8, float32>(asked, 1);
  check_everywhere<float8_e4m3, float32>(asked, 1);
  asked.group_size = 3;
  asked.block_size = 5;
  asked.head_dim = 128;
  check_everywhere<float16, float16>(asked, 1);
}

TEST_CASE("several prefixes, of different lengths, beside sequences that share none", "[prefix_attention]") {
  auto asked = attention_case{};
  const auto add = [&](std::int32_t length, std::size_t row, std::int32_t shared) {
    asked.lengths.push_back(length);
    asked.shared.push_back({row, shared});
  };
  for (auto i = 0; i < 8; ++i) {
    add(300 + i, 0, i == 0 ? 0 : 288);
    add(431, 1, i == 0 ? 0 : 400);
    add(20, 0, 0);
  }
  add(330, 1, 160);
  asked.num_shares = 3;
  check_everywhere<bfloat16, float32>(asked, 2);
}

TEST_CASE("sequences that end where their shared prefix ends", "[prefix_attention]") {
  auto asked = make_sharers(9, 256);
  asked.lengths = std::vector<std::int32_t>(9, 256);
  asked.lengths[4] = 272;
  check_everywhere<bfloat16, bfloat16>(asked, 1);
}

TEST_CASE("a shape that shares prefixes, and a batch that has none", "[prefix_attention]") {
  auto asked = make_sharers(5, 0);
  check_everywhere<bfloat16, bfloat16>(asked, 0);
  asked.graph = false;
  check_everywhere<bfloat16, bfloat16>(asked, 0);
}

TEST_CASE("shared prefixes with all options", "[prefix_attention]") {
  auto asked = make_sharers(12, 200);
  asked.soft_cap = 5;
  asked.alibi = true;
  asked.sinks = true;
  asked.scale = 0.2F;
  asked.gap = 3;
  check_everywhere<float16, float32>(asked, 1);
  asked.window = 100;
  check_everywhere<float16, float32>(asked, 0);
  asked.window = 0;
  asked.split_tokens = 64;
  check_everywhere<float16, float32>(asked, 0);
}

TEST_CASE("several queries of a sequence, and trees of drafts, after a shared prefix", "[prefix_attention]") {
  auto asked = make_sharers(12, 512);
  asked.group_size = 2;
  for (auto i = 0; i < 12; ++i) {
    asked.queries.push_back(i == 3 ? 0 : 1 + i % 4);
    asked.lengths[static_cast<std::size_t>(i)] += 4;
  }
  check_everywhere<bfloat16, bfloat16>(asked, 1);
  asked.tree = true;
  check_everywhere<bfloat16, bfloat16>(asked, 1);
}

TEST_CASE("a shared prefix of values that are shorter than keys", "[prefix_attention]") {
  auto asked = make_sharers(8, 160);
  asked.head_dim = 192;
  asked.value_dim = 128;
  if (hip_target<1>::why_absent().empty()) {
    check_attention<bfloat16, nhd_by_layer, bfloat16, 1>(asked, seed);
  }
  check_attention<bfloat16, nhd_by_layer, bfloat16, 0>(asked, seed);
}

TEST_CASE("sequences that have grown since prefixes were found", "[prefix_attention]") {
  auto asked = make_sharers(12, 256);
  for (auto& length : asked.lengths) {
    length = (length + 15) / 16 * 16;
  }
  asked.grown = 9;
  check_everywhere<bfloat16, bfloat16>(asked, 1);
}

}  // namespace prefix_attention_tests
