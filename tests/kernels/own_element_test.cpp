// An element that a user writes outside the library goes through every kernel that knows elements.

#include "check_storage.hpp"

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
  const auto own = *lay_out<fp8_e5m2, hnd_by_layer>(config);
  append_and_gather<float32>(target, own, random_slots(config, 40, random), 0, random);
  if constexpr (TestType::is_device) {
    const auto halves = *lay_out<float16, nhd_by_layer>(config);
    const auto pairs = std::vector<block_pair>{{0, 3}, {1, 2}, {2, 1}, {3, 0}};
    check_conversion(target, own, halves, pairs, random);
    check_conversion(target, halves, own, pairs, random);
  }
}

}  // namespace own_element_test
