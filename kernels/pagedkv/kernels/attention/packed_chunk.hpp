#pragma once

#include <pagedkv/core/packed_token.hpp>
#include <pagedkv/kernels/attention/matrix.hpp>
#include <pagedkv/kernels/row.hpp>

#include <type_traits>

namespace pagedkv::kernels {

/// The element of the numbers that products multiply: packed tokens are expanded to that of their wider numbers.
template <class Element>
struct expanded {
  using element = Element;
};
template <class Element>
  requires packs_tokens<Element>
struct expanded<Element> {
  using element = typename Element::rotated;
};

/// Eight neighbouring numbers of a packed token. `chunk` counts them.
template <class Element>
struct packed_chunk {
  using words = vector<lane_word, 4>;
  static constexpr int numbers = 8;

  /// The chunk as it is stored, and the scale of a quantised one.
  [[nodiscard]] static PAGEDKV_DEVICE words read(const std::byte* from, int chunk) {
    constexpr auto packed = Element::packed;
    if (is_wide(chunk)) {
      const auto* const wide = reinterpret_cast<const lane_word*>(from + packed.rotated_offset);
      return load_vector<4>(wide + (chunk - packed.latent_dim / numbers) * 4);
    }
    const auto stored = load_vector<2>(reinterpret_cast<const lane_word*>(from) + chunk * 2);
    const auto* const scales = reinterpret_cast<const float*>(from + packed.scale_offset);
    const auto scale = load(scales + chunk / (packed.part_dim / numbers));
    return {stored.values[0], stored.values[1], __builtin_bit_cast(lane_word, scale), 0};
  }

  /// Its numbers for products, of 16 bits each.
  [[nodiscard]] static PAGEDKV_DEVICE words expand(const words& read, int chunk) {
    using latent = typename Element::latent;
    if (is_wide(chunk)) {
      return read;
    }
    const auto stored = __builtin_bit_cast(stored_numbers, vector<lane_word, 2>{read.values[0], read.values[1]});
    const auto decoded = decode<latent, numbers>(stored, __builtin_bit_cast(float, read.values[2]));
    auto expanded = words{};
    PAGEDKV_UNROLL
    for (auto i = 0; i < 4; ++i) {
      expanded.values[i] = pack<typename Element::rotated>(decoded.values[2 * i], decoded.values[2 * i + 1]);
    }
    return expanded;
  }

 private:
  using stored_numbers = vector<typename Element::storage, numbers>;

  [[nodiscard]] static PAGEDKV_DEVICE bool is_wide(int chunk) {
    constexpr auto packed = Element::packed;
    static_assert(packed.part_dim % numbers == 0 && packed.rotated_offset % vector_bytes == 0);
    return chunk >= packed.latent_dim / numbers;
  }
};

}  // namespace pagedkv::kernels
