#pragma once

#include <pagedkv/kernels/attention/matrix.hpp>

namespace pagedkv::kernels {

// Conversion of stored words to words of 16-bit numbers for the matrix unit.

/// Words of 16-bit numbers that a stored word becomes.
template <class Storage>
inline constexpr int words_of_stored = sizeof(Storage) == 1 ? 2 : 1;

/// A byte of int8 biased by 128, with 0x64 above it, is the binary16 number 1152 + x.
inline constexpr lane_word byte_bias = 0x80808080U;
inline constexpr lane_word byte_high = 0x64646464U;
inline constexpr lane_word half_bias = 0x64806480U;

/// Whether an element of 8 bits tells its numbers as binary16; else they are integers.
template <class Element>
inline constexpr bool has_halves = requires(lane_word four) { Element::template halves_of<0>(four); };

/// The numbers of one stored word, in order.
template <class Element, class Number>
PAGEDKV_DEVICE void expand(lane_word stored, registers<lane_word, words_of_stored<typename Element::storage>>& numbers) {
  if constexpr (has_halves<Element>) {
    numbers[0] = Element::template halves_of<0>(stored);
    numbers[1] = Element::template halves_of<1>(stored);
  } else if constexpr (sizeof(typename Element::storage) == 1) {
    const auto biased = stored ^ byte_bias;
    numbers[0] = subtract_pairs<Number>(permute_bytes<0x4140>(biased, byte_high), half_bias);
    numbers[1] = subtract_pairs<Number>(permute_bytes<0x4342>(biased, byte_high), half_bias);
  } else {
    numbers[0] = stored;
  }
}

/// The upper byte of bfloat16 numbers from 128 to 511.
inline constexpr lane_word brain_high = 0x43434343U;

/// The numbers of a stored word of 8-bit numbers, in order, as bfloat16, which holds all of int8 and float8.
template <class Element, class Numbers>
PAGEDKV_DEVICE void expand_to_brain(lane_word stored, registers<lane_word, 2>& numbers) {
  using brain = typename Numbers::brain;
  if constexpr (has_halves<Element>) {
    const auto convert = [](lane_word halves) {
      using half = typename Numbers::half;
      return pack<brain>(half::decode(static_cast<typename half::storage>(halves & 0xffffU), 1.0F),
                         half::decode(static_cast<typename half::storage>(halves >> 16), 1.0F));
    };
    numbers[0] = convert(Element::template halves_of<0>(stored));
    numbers[1] = convert(Element::template halves_of<1>(stored));
  } else {
    // Of 128 and the lower seven bits, 128 is subtracted. The highest bit stands for -128, and makes 256 of that 128.
    const auto convert = [](lane_word biased) {
      return subtract_pairs<brain>(biased & 0xff7fff7fU, biased & 0xff80ff80U);
    };
    numbers[0] = convert(permute_bytes<0x4140>(stored, brain_high));
    numbers[1] = convert(permute_bytes<0x4342>(stored, brain_high));
  }
}

/// Numbers per stored word.
template <class Storage>
inline constexpr int numbers_per_word = 4 / static_cast<int>(sizeof(Storage));

/// Packs the numbers of each dimension of a stored word in two rows as a pair.
template <class Element, class Number>
PAGEDKV_DEVICE void pair_rows(lane_word first, lane_word second,
                              registers<lane_word, numbers_per_word<typename Element::storage>>& pairs) {
  if constexpr (has_halves<Element>) {
    const auto low = permute_bytes<0x5140>(first, second);
    const auto high = permute_bytes<0x7362>(first, second);
    pairs[0] = Element::template halves_of<0>(low);
    pairs[1] = Element::template halves_of<1>(low);
    pairs[2] = Element::template halves_of<0>(high);
    pairs[3] = Element::template halves_of<1>(high);
  } else if constexpr (sizeof(typename Element::storage) == 1) {
    const auto low = permute_bytes<0x5140>(first, second) ^ byte_bias;
    const auto high = permute_bytes<0x7362>(first, second) ^ byte_bias;
    pairs[0] = subtract_pairs<Number>(permute_bytes<0x4140>(low, byte_high), half_bias);
    pairs[1] = subtract_pairs<Number>(permute_bytes<0x4342>(low, byte_high), half_bias);
    pairs[2] = subtract_pairs<Number>(permute_bytes<0x4140>(high, byte_high), half_bias);
    pairs[3] = subtract_pairs<Number>(permute_bytes<0x4342>(high, byte_high), half_bias);
  } else {
    pairs[0] = permute_bytes<0x5410>(first, second);
    pairs[1] = permute_bytes<0x7632>(first, second);
  }
}

}  // namespace pagedkv::kernels
