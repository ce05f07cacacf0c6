#pragma once

#include <pagedkv/detail/runs.hpp>
#include <pagedkv/policy/element/concept.hpp>
#include <pagedkv/policy/element/float32.hpp>
#include <pagedkv/policy/element/parts/numbers.hpp>

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

namespace pagedkv {

/// The loops over rows. With chunks of a known length and arrays that do not overlap, compilers use vector instructions
/// at -O2.
template <element E>
struct row_loops {
  using storage = typename E::storage;
  static constexpr auto chunk = std::size_t{16};
  static constexpr auto converts = !std::is_same_v<storage, float>;

  [[gnu::always_inline]] static void encode(const float* __restrict row, float scale, storage* __restrict stored,
                                            std::size_t size) noexcept {
    const auto whole = size - size % chunk;
    for (auto i = std::size_t{0}; i < whole; i += chunk) {
      for (auto k = std::size_t{0}; k < chunk; ++k) {
        stored[i + k] = E::encode(row[i + k], scale);
      }
    }
    for (auto i = whole; i < size; ++i) {
      stored[i] = E::encode(row[i], scale);
    }
  }

  [[gnu::always_inline]] static void decode(const storage* __restrict stored, float scale, float* __restrict row,
                                            std::size_t size) noexcept {
    const auto whole = size - size % chunk;
    for (auto i = std::size_t{0}; i < whole; i += chunk) {
      for (auto k = std::size_t{0}; k < chunk; ++k) {
        row[i + k] = E::decode(stored[i + k], scale);
      }
    }
    for (auto i = whole; i < size; ++i) {
      row[i] = E::decode(stored[i], scale);
    }
  }

#if defined(PAGEDKV_WIDE_VECTORS)
  // Loops with wider vectors, and with an element's own vector functions if it has any.
  [[gnu::flatten]] PAGEDKV_WIDE static void encode_wide(const float* row, float scale, storage* stored,
                                                        std::size_t size) noexcept {
    auto i = std::size_t{0};
    if constexpr (requires { E::encode_eight(row, scale, stored); }) {
      for (; i + 8 <= size; i += 8) {
        E::encode_eight(row + i, scale, stored + i);
      }
    }
    encode(row + i, scale, stored + i, size - i);
    leave_wide_vectors();
  }

  [[gnu::flatten]] PAGEDKV_WIDE static void decode_wide(const storage* stored, float scale, float* row,
                                                        std::size_t size) noexcept {
    auto i = std::size_t{0};
    if constexpr (requires { E::decode_eight(stored, scale, row); }) {
      for (; i + 8 <= size; i += 8) {
        E::decode_eight(stored + i, scale, row + i);
      }
    }
    decode(stored + i, scale, row + i, size - i);
    leave_wide_vectors();
  }
#endif
};

/// Bits of the largest magnitude in a row, in chunks as above.
[[gnu::always_inline]] inline std::int32_t absmax_bits(const float* row, std::size_t size) noexcept {
  constexpr auto chunk = std::size_t{16};
  constexpr auto magnitude = [](std::int32_t bits) { return bits & 0x7fffffff; };
  constexpr auto larger = [](std::int32_t a, std::int32_t b) { return a > b ? a : b; };
  std::int32_t largest[chunk] = {};
  auto i = std::size_t{0};
  for (; i + chunk <= size; i += chunk) {
    for (auto k = std::size_t{0}; k < chunk; ++k) {
      largest[k] = larger(largest[k], magnitude(__builtin_bit_cast(std::int32_t, row[i + k])));
    }
  }
  for (; i < size; ++i) {
    largest[0] = larger(largest[0], magnitude(__builtin_bit_cast(std::int32_t, row[i])));
  }
  for (auto k = std::size_t{1}; k < chunk; ++k) {
    largest[0] = larger(largest[0], largest[k]);
  }
  return largest[0];
}

#if defined(PAGEDKV_WIDE_VECTORS)
[[gnu::flatten]] PAGEDKV_WIDE inline std::int32_t absmax_bits_wide(const float* row, std::size_t size) noexcept {
  const auto bits = absmax_bits(row, size);
  leave_wide_vectors();
  return bits;
}
#endif

/// Largest magnitude in a row; NaN if it holds one; 0 if it is empty. Magnitudes are compared as integers, which have
/// the order of the numbers, with infinity above every number and NaN above infinity.
[[nodiscard]] inline float absmax(std::span<const float> row) noexcept {
#if defined(PAGEDKV_WIDE_VECTORS)
  if (has_wide_vectors) {
    return __builtin_bit_cast(float, absmax_bits_wide(row.data(), row.size()));
  }
#endif
  return __builtin_bit_cast(float, absmax_bits(row.data(), row.size()));
}

/// Encodes numbers whose scale is known. Sizes must be equal.
template <element E>
void encode_numbers(std::span<const float> row, float scale, std::span<typename E::storage> stored) noexcept {
  assert(row.size() == stored.size());
#if defined(PAGEDKV_WIDE_VECTORS)
  if (row_loops<E>::converts && has_wide_vectors) {
    return row_loops<E>::encode_wide(row.data(), scale, stored.data(), row.size());
  }
#endif
  row_loops<E>::encode(row.data(), scale, stored.data(), row.size());
}

/// Encodes the numbers of one token and head, and returns their scale. `given`: the scale of an element with static
/// scales; 1 for one without any. Sizes must be equal.
template <element E>
float encode_row(std::span<const float> row, std::span<typename E::storage> stored, float given = 1) noexcept {
  auto scale = given;
  if constexpr (E::scaled) {
    scale = E::scale_for(absmax(row));
  }
  encode_numbers<E>(row, scale, stored);
  return scale;
}

/// Decodes numbers that `encode_row` stored with `scale`. Sizes must be equal.
template <element E>
void decode_row(std::span<const typename E::storage> stored, float scale, std::span<float> row) noexcept {
  assert(row.size() == stored.size());
#if defined(PAGEDKV_WIDE_VECTORS)
  if (row_loops<E>::converts && has_wide_vectors) {
    return row_loops<E>::decode_wide(stored.data(), scale, row.data(), stored.size());
  }
#endif
  row_loops<E>::decode(stored.data(), scale, row.data(), stored.size());
}

/// The larger of two magnitudes. A NaN is larger than any number.
[[nodiscard]] inline float larger_magnitude(float a, float b) noexcept {
  const auto bits = std::max(__builtin_bit_cast(std::int32_t, a), __builtin_bit_cast(std::int32_t, b));
  return __builtin_bit_cast(float, bits);
}

/// The general case of `recode_row`: by way of float32, in pieces that stay in the cache.
template <element To, element From>
float recode_in_pieces(std::span<const typename From::storage> from, float from_scale,
                       std::span<typename To::storage> to, float given) noexcept {
  constexpr auto most = std::size_t{256};
  float numbers[most];
  const auto decode = [&](std::size_t first) {
    const auto piece = std::span{numbers}.first(std::min(most, from.size() - first));
    decode_row<From>(from.subspan(first, piece.size()), from_scale, piece);
    return piece;
  };
  auto scale = given;
  if constexpr (To::scaled) {
    auto largest = 0.0f;
    for (auto first = std::size_t{0}; first < from.size(); first += most) {
      largest = larger_magnitude(largest, absmax(decode(first)));
    }
    scale = To::scale_for(largest);
  }
  for (auto first = std::size_t{0}; first < from.size(); first += most) {
    const auto piece = decode(first);
    encode_numbers<To>(piece, scale, to.subspan(first, piece.size()));
  }
  return scale;
}

/// Converts the numbers of one token and head from `From`, with this scale, to `To`, and returns their new scale.
/// `given` as above. Equal unscaled elements keep every bit, NaN payloads included. Sizes must be equal.
template <element To, element From>
float recode_row(std::span<const typename From::storage> from, float from_scale, std::span<typename To::storage> to,
                 float given = 1) noexcept {
  assert(from.size() == to.size());
  if constexpr (std::is_same_v<To, From> && is_unscaled<To>) {
    copy_run(from, to);
    return 1;
  } else if constexpr (std::is_same_v<From, float32>) {
    return encode_row<To>(from, to, given);
  } else if constexpr (std::is_same_v<To, float32>) {
    decode_row<From>(from, from_scale, to);
    return 1;
  } else {
    return recode_in_pieces<To, From>(from, from_scale, to, given);
  }
}

}  // namespace pagedkv
