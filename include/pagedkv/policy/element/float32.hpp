#pragma once

#include <pagedkv/core/host_device.hpp>
#include <pagedkv/policy/element/concept.hpp>

namespace pagedkv {

/// IEEE binary32, stored bit for bit.
struct float32 {
  using storage = float;
  static constexpr bool scaled = false;
  static constexpr std::string_view name = "float32";

  [[nodiscard]] PAGEDKV_HOST_DEVICE static constexpr float scale_for(float /*absmax*/) noexcept { return 1; }
  [[nodiscard]] PAGEDKV_HOST_DEVICE static constexpr storage encode(float number, float /*scale*/) noexcept {
    return number;
  }
  [[nodiscard]] PAGEDKV_HOST_DEVICE static constexpr float decode(storage stored, float /*scale*/) noexcept {
    return stored;
  }
};

static_assert(element<float32>);

}  // namespace pagedkv
