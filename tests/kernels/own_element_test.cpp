// An element that a user writes outside the library goes through every kernel that knows elements.

#include "../support/printing.hpp"
#include "reference.hpp"
#include "target.hpp"

#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>

namespace own_element_test {

using namespace pagedkv;
using namespace pagedkv::test;

/// 8-bit floating point with five exponent bits: the upper byte of a float16, rounded to nearest even.
struct fp8_e5m2 {
  using storage = std::uint8_t;
  static constexpr bool scaled = false;
  static constexpr std::string_view name = "fp8_e5m2";

  PAGEDKV_HOST_DEVICE static constexpr float scale_for(float /*absmax*/) noexcept { return 1; }

  PAGEDKV_HOST_DEVICE static constexpr storage encode(float number, float scale) noexcept {
    const auto half = std::uint32_t{float16::encode(number, scale)};
    const auto is_nan = (half & 0x7fffU) > 0x7c00U;
    return static_cast<storage>(is_nan ? half >> 8 | 0x7fU : (half + 0x7fU + (half >> 8 & 1U)) >> 8);
  }

  PAGEDKV_HOST_DEVICE static constexpr float decode(storage stored, float scale) noexcept {
    return float16::decode(static_cast<std::uint16_t>(stored << 8), scale);
  }
};

static_assert(element<fp8_e5m2>);

TEMPLATE_TEST_CASE("An element of the user's own is appended, gathered and converted", "[element]", host_target,
                   hip_target<0>, hip_target<1>) {
  auto target = require_target<TestType>();
  auto random = std::mt19937(41);
  const auto config = make_config(16, 4, 2, 3, 48);
  const auto layout = plan<fp8_e5m2, hnd_by_layer>(config);
  const auto slots = random_slots(config, 40, random);
  auto keys = rows_of<float32>(40, 3, 48, 0);
  auto values = rows_of<float32>(40, 3, 48, 0);
  keys.fill(40, 3, random, 5.0F);
  values.fill(40, 3, random, 5.0F);
  auto expected = random_bytes(static_cast<std::size_t>(layout.bytes), random);
  const auto storage = target_array<std::byte, TestType>(target, expected);
  const auto mapping = target_array<slot, TestType>(target, slots);
  const auto key_array = target_array<float, TestType>(target, keys.numbers);
  const auto value_array = target_array<float, TestType>(target, values.numbers);
  const auto view = at(layout.view, storage.data());
  const auto span = std::span<const slot>(mapping.data(), mapping.size());
  const float* const key_data = key_array.data();
  const float* const value_data = value_array.data();
  REQUIRE(target.backend.template append<fp8_e5m2>(view, 1, span, keys.view(key_data), values.view(value_data),
                                                   target.stream()));
  REQUIRE(target.backend.synchronize(target.stream()));
  const auto reference = reference_storage<fp8_e5m2, hnd_by_layer>{config, expected.data()};
  reference_append(reference, 1, slots, keys, values);
  REQUIRE(storage.values() == expected);
  REQUIRE(target.backend.template gather<fp8_e5m2>(view, 1, span, keys.view(key_array.data()),
                                                   values.view(value_array.data()), target.stream()));
  REQUIRE(target.backend.synchronize(target.stream()));
  reference_gather(reference, 1, slots, keys, values);
  CHECK(key_array.values() == keys.numbers);
  CHECK(value_array.values() == values.numbers);

  if constexpr (TestType::is_device) {
    const auto half_layout = plan<float16, nhd_by_layer>(config);
    const auto halves =
        target_array<std::byte, TestType>(target, std::vector<std::byte>(static_cast<std::size_t>(half_layout.bytes)));
    const auto pairs = std::vector<block_pair>{{0, 3}, {1, 2}, {2, 1}, {3, 0}};
    const auto half_view = at(half_layout.view, halves.data());
    REQUIRE(hip::convert_blocks<float16, fp8_e5m2>(view, half_view, pairs, target.stream()));
    REQUIRE(hip::convert_blocks<fp8_e5m2, float16>(half_view, view, pairs, target.stream()));
    REQUIRE(target.backend.synchronize(target.stream()));
    auto returned = storage.values();
    const auto result = reference_storage<fp8_e5m2, hnd_by_layer>{config, returned.data()};
    for_each_mapped(config, slots, [&](auto, auto block, auto offset, auto head) {
      CHECK(result.read_row(false, 1, block, offset, head) == reference.read_row(false, 1, block, offset, head));
      CHECK(result.read_row(true, 1, block, offset, head) == reference.read_row(true, 1, block, offset, head));
    });
  }
}

}  // namespace own_element_test
