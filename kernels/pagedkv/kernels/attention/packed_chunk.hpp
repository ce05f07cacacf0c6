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

/// Eight neighbouring numbers of a packed token, as products read them: 16 bits each. Chunks count from the token's start;
/// those from `first_wide` on are stored so.
template <class Element>
struct packed_chunk {
  using words = vector<lane_word, 4>;
  using quantised_words = vector<lane_word, 2>;
  static constexpr int numbers = 8;
  static constexpr int first_wide = Element::packed.latent_dim / numbers;
  static constexpr int chunks_of_scale = Element::packed.part_dim / numbers;
  static_assert(Element::packed.rotated_offset % vector_bytes == 0 && Element::packed.bytes % vector_bytes == 0);

  /// The words of one of eight neighbouring lanes, which takes every eighth chunk of `Tokens` tokens.
  template <int Tokens>
  struct stage {
    registers<quantised_words, Tokens, first_wide / 8> quantised;
    registers<float, Tokens, first_wide / chunks_of_scale> scales;
    registers<words, Tokens> wide;
  };
  static_assert(first_wide % 8 == 0 && Element::packed.rotated_dim == 8 * numbers);

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
    using stored_numbers = vector<typename Element::storage, numbers>;
    const auto decoded = decode<typename Element::latent, numbers>(__builtin_bit_cast(stored_numbers, stored), scale);
    auto expanded = words{};
    PAGEDKV_UNROLL
    for (auto i = 0; i < numbers / 2; ++i) {
      expanded.values[i] = pack<typename Element::rotated>(decoded.values[2 * i], decoded.values[2 * i + 1]);
    }
    return expanded;
  }
};

}  // namespace pagedkv::kernels
