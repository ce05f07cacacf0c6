#pragma once

#include <pagedkv/core/storage_formats.hpp>
#include <pagedkv/kernels/attention/matrix.hpp>
#include <pagedkv/kernels/row.hpp>

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

/// Eight neighbouring numbers of a packed token, as products read them: 16 bits each. Chunks count from the token's
/// start; those from `first_wide` on are stored so. Those of 8 bits are decoded by way of `Half`, which stores
/// binary16.
template <class Element, class Half>
struct packed_chunk {
  using words = vector<lane_word, 4>;
  using quantised_words = vector<lane_word, 2>;
  static constexpr int numbers = 8;
  static constexpr int first_wide = Element::packed.latent_dim / numbers;
  static constexpr int chunks_of_scale = Element::packed.part_dim / numbers;
  static_assert(Element::packed.rotated_offset % vector_bytes == 0 && Element::packed.bytes % vector_bytes == 0);

  [[nodiscard]] static PAGEDKV_DEVICE quantised_words read_quantised(const std::byte* from, int chunk) {
    return load_vector<2>(reinterpret_cast<const lane_word*>(from) + chunk * 2);
  }

  /// The scale of the part that a quantised chunk is in.
  [[nodiscard]] static PAGEDKV_DEVICE float read_scale(const std::byte* from, int chunk) {
    return load(reinterpret_cast<const float*>(from + Element::packed.scale_offset) + chunk / chunks_of_scale);
  }

  [[nodiscard]] static PAGEDKV_DEVICE words read_wide(const std::byte* from, int chunk) {
    return load_vector<4>(reinterpret_cast<const lane_word*>(from + Element::packed.rotated_offset) +
                          (chunk - first_wide) * 4);
  }

  [[nodiscard]] static PAGEDKV_DEVICE words expand(const quantised_words& stored, float scale) {
    auto expanded = words{};
    PAGEDKV_UNROLL
    for (auto i = 0; i < 2; ++i) {
      expanded.values[2 * i] = expand_two(Element::latent::template halves_of<0>(stored.values[i]), scale);
      expanded.values[2 * i + 1] = expand_two(Element::latent::template halves_of<1>(stored.values[i]), scale);
    }
    return expanded;
  }

 private:
  [[nodiscard]] static PAGEDKV_DEVICE lane_word expand_two(lane_word halves, float scale) {
    const auto low = Half::decode(static_cast<typename Half::storage>(halves & 0xffffU), 1.0F);
    const auto high = Half::decode(static_cast<typename Half::storage>(halves >> 16), 1.0F);
    return pack<typename Element::rotated>(low * scale, high * scale);
  }
};

}  // namespace pagedkv::kernels
