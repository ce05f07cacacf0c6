#pragma once

namespace pagedkv::test {

/// A number between -magnitude and magnitude, of one draw from a generator of 32 bits: a standard distribution would
/// take most of the time of a test that is instrumented.
template <class Random>
[[nodiscard]] float draw_number(float magnitude, Random& random) {
  return magnitude * (static_cast<float>(random() >> 8) * 0x1p-23F - 1);
}

}  // namespace pagedkv::test
