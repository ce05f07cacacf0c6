#pragma once

#include <pagedkv/core/host_device.hpp>

#include <cstdint>

namespace pagedkv {

/// The bytes of a token that holds numbers of two kinds: `latent_dim` quantised numbers of a byte each, the float32
/// scales of their parts, and `rotated_dim` wider numbers.
struct packed_token {
  std::int32_t latent_dim = 0;      // quantised numbers
  std::int32_t part_dim = 0;        // neighbouring quantised numbers that share a scale
  std::int32_t rotated_dim = 0;     // wider numbers
  std::int32_t scale_offset = 0;    // bytes to the scales
  std::int32_t rotated_offset = 0;  // bytes to the wider numbers
  std::int32_t bytes = 0;

  /// All numbers of a token.
  [[nodiscard]] PAGEDKV_HOST_DEVICE constexpr std::int32_t key_dim() const noexcept { return latent_dim + rotated_dim; }
  /// Its scales.
  [[nodiscard]] PAGEDKV_HOST_DEVICE constexpr std::int32_t num_parts() const noexcept { return latent_dim / part_dim; }
};

/// Whether an element stores whole tokens of such numbers, as `float8_latent` does.
template <class Element>
inline constexpr bool packs_tokens = requires { Element::packed.key_dim(); };

}  // namespace pagedkv
