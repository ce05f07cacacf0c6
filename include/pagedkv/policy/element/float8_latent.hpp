#pragma once

#include <pagedkv/core/host_device.hpp>
#include <pagedkv/core/packed_token.hpp>
#include <pagedkv/policy/element/bfloat16.hpp>
#include <pagedkv/policy/element/concept.hpp>
#include <pagedkv/policy/element/float8_e4m3.hpp>

#include <cstdint>
#include <string_view>

namespace pagedkv {

/// Latent vectors of 512 numbers with a rotated part of 64, in the 656 bytes a token that DeepSeek's FlashMLA reads:
/// 512 bytes of 8-bit floating point (E4M3), four float32 scales, each of 128 neighbouring numbers, and 64 numbers of
/// bfloat16. Scales are absmax / 448, within the bounds of `row_scale`. Groups of latent vectors with these lengths
/// have this element, and no others.
///
/// `storage` is a byte of a token. The functions are those of the 8-bit numbers.
struct float8_latent {
  using storage = std::uint8_t;
  using latent = basic_float8_e4m3<token_scale>;
  using rotated = bfloat16;
  static constexpr bool scaled = true;
  static constexpr std::string_view name = "float8_latent";
  static constexpr auto packed = packed_token{
      .latent_dim = 512, .part_dim = 128, .rotated_dim = 64, .scale_offset = 512, .rotated_offset = 528, .bytes = 656};

  [[nodiscard]] PAGEDKV_HOST_DEVICE static constexpr float scale_for(float absmax) noexcept {
    return latent::scale_for(absmax);
  }

  [[nodiscard]] PAGEDKV_HOST_DEVICE static constexpr storage encode(float number, float scale) noexcept {
    return latent::encode(number, scale);
  }

  [[nodiscard]] PAGEDKV_HOST_DEVICE static constexpr float decode(storage stored, float scale) noexcept {
    return latent::decode(stored, scale);
  }
};

static_assert(element<float8_latent> && packs_tokens<float8_latent>);

}  // namespace pagedkv
