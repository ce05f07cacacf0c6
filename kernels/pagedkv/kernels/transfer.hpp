#pragma once

#include <pagedkv/kernels/platform.hpp>
#include <pagedkv/kernels/row.hpp>

#include <cstdint>
#include <string_view>

#if defined(__CUDA_ARCH__)
  #if __CUDA_ARCH__ >= 800
    #define PAGEDKV_MAGNITUDES_OF_PAIRS
  #endif
#endif

namespace pagedkv::kernels {

/// Bits of the larger of two magnitudes: one given by its bits, one of a number. As integers, magnitudes order like
/// numbers, with infinity above every number and NaN above infinity.
[[nodiscard]] PAGEDKV_DEVICE inline std::int32_t larger_magnitude(std::int32_t magnitude_bits, float number) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  // One instruction that keeps NaN, at twice the rate of integer instructions.
  float larger;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(__builtin_bit_cast(float, magnitude_bits)), "f"(fabsf(number)));
  return __builtin_bit_cast(std::int32_t, larger);
#else
  const auto bits = __builtin_bit_cast(std::int32_t, number) & 0x7fffffff;
  return bits > magnitude_bits ? bits : magnitude_bits;
#endif
}

#if defined(PAGEDKV_MAGNITUDES_OF_PAIRS)

/// Whether two numbers of `Element` are a word of either format of 16 bits.
template <class Element>
inline constexpr bool has_magnitudes_of_pairs = requires {
  requires Element::name == std::string_view("float16") || Element::name == std::string_view("bfloat16");
};

template <class Element>
inline constexpr bool is_pair_of_bfloat16 = Element::name == std::string_view("bfloat16");

/// The larger magnitudes of two pairs of 16-bit numbers: one instruction that keeps NaN.
template <class Element>
[[nodiscard]] PAGEDKV_DEVICE std::uint32_t larger_magnitudes(std::uint32_t a, std::uint32_t b) {
  std::uint32_t larger;
  if constexpr (is_pair_of_bfloat16<Element>) {
    asm("{.reg .b32 p, q; abs.bf16x2 p, %1; abs.bf16x2 q, %2; max.NaN.bf16x2 %0, p, q;}"
        : "=r"(larger)
        : "r"(a), "r"(b));
  } else {
    asm("{.reg .b32 p, q; abs.f16x2 p, %1; abs.f16x2 q, %2; max.NaN.f16x2 %0, p, q;}" : "=r"(larger) : "r"(a), "r"(b));
  }
  return larger;
}

#else

template <class Element>
inline constexpr bool has_magnitudes_of_pairs = false;

#endif

}  // namespace pagedkv::kernels

// Not unrolled: long rows are rare, and copies of the loop's body take registers.
#if defined(__HIPCC__) || defined(__CUDACC__)
  #define PAGEDKV_KEEP_LOOP _Pragma("unroll 1")
  #define PAGEDKV_UNROLL_LOOP _Pragma("unroll")
#else
  #define PAGEDKV_KEEP_LOOP
  #define PAGEDKV_UNROLL_LOOP
#endif

namespace pagedkv::kernels {

/// Reads rows of `Element` from memory. A source names the elements of key and value, returns the `N` numbers of each
/// that a lane takes, and their scales (any value for unscaled elements), and stores numbers: lane `first / N` stores
/// the numbers from `first` on, or those at other positions that the source defines. `takes_rows_at_once`: no row that
/// gets a scale has more numbers than `N` for each of its lanes, so nothing is read twice; see `fits_at_once`.
template <class Element, int N>
struct plain_source {
  using key_element = Element;
  using value_element = Element;
  using storage = typename Element::storage;
  static constexpr bool takes_rows_at_once = false;

  row_pair<const storage, scale_place<Element>> rows;

  [[nodiscard]] PAGEDKV_DEVICE vector<storage, N> key(std::int32_t first) const {
    return load_vector<N>(rows.key + first);
  }
  [[nodiscard]] PAGEDKV_DEVICE vector<storage, N> value(std::int32_t first) const {
    return load_vector<N>(rows.value + first);
  }
  [[nodiscard]] PAGEDKV_DEVICE float key_scale() const { return load_scale<Element>(rows.key_scale); }
  [[nodiscard]] PAGEDKV_DEVICE float value_scale() const { return load_scale<Element>(rows.value_scale); }

  /// `numbers`: as `encode` returns them.
  template <class Row, class Numbers>
  PAGEDKV_DEVICE void put(const Row& row, std::int32_t first, const Numbers& numbers) const {
    store_numbers(row + first, numbers);
  }
};

/// Whether lanes with `N` numbers each have all of a row that gets a scale.
template <class Element, int N>
[[nodiscard]] constexpr bool fits_at_once(std::int32_t head_dim) noexcept {
  return !Element::scaled || head_dim <= 32 * N;
}

/// Numbers of `From` as numbers of `To`. Equal elements keep every bit, NaN payloads included.
template <class To, class From, int N>
[[nodiscard]] PAGEDKV_DEVICE encoded_numbers<To, N> recode(const vector<typename From::storage, N>& stored,
                                                           float from_scale, float to_scale) {
  if constexpr (std::is_same_v<To, From> && is_unscaled<To>) {
    return stored;
  } else {
    return encode<To, N>(decode<From, N>(stored, from_scale), to_scale);
  }
}

/// Bits of the largest magnitude among `so_far` and stored numbers.
template <class Element, int N>
[[nodiscard]] PAGEDKV_DEVICE std::int32_t absmax_bits(std::int32_t so_far,
                                                      const vector<typename Element::storage, N>& stored, float scale) {
#if defined(PAGEDKV_MAGNITUDES_OF_PAIRS)
  if constexpr (has_magnitudes_of_pairs<Element> && N % 2 == 0) {
    const auto pairs = __builtin_bit_cast(vector<std::uint32_t, N / 2>, stored);
    auto larger = pairs.values[0];
    for (auto i = 1; i < N / 2; ++i) {
      larger = larger_magnitudes<Element>(larger, pairs.values[i]);
    }
    so_far = larger_magnitude(so_far, Element::decode(static_cast<std::uint16_t>(larger), scale));
    return larger_magnitude(so_far, Element::decode(static_cast<std::uint16_t>(larger >> 16), scale));
  }
#endif
  const auto numbers = decode<Element, N>(stored, scale);
  for (auto i = 0; i < N; ++i) {
    so_far = larger_magnitude(so_far, numbers.values[i]);
  }
  return so_far;
}

/// The scales of a key and a value.
struct pair_of_scales {
  float key;
  float value;
};

/// The scales of the rows whose largest magnitudes have these bits on the row's lanes. Of two neighbouring lanes, one
/// goes on with the key and the other with the value, so that each computes one scale. Every lane of the wave takes
/// part.
template <class To>
[[nodiscard]] PAGEDKV_DEVICE pair_of_scales scales_of_rows(const row_spread& spread, std::int32_t key_bits,
                                                           std::int32_t value_bits) {
  const auto scale_for = [](std::int32_t bits) { return To::scale_for(__builtin_bit_cast(float, bits)); };
  const auto lanes = spread.lanes_per_row();
  if (lanes == 1) {
    return {scale_for(key_bits), scale_for(value_bits)};
  }
  const auto larger = [](std::int32_t a, std::int32_t b) { return a > b ? a : b; };
  const auto of_value = spread.lane() % 2 != 0;
  const auto received = shuffle_xor(of_value ? key_bits : value_bits, 1);
  auto bits = larger(of_value ? value_bits : key_bits, received);
  PAGEDKV_UNROLL_LOOP
  for (auto distance = 2; distance < 32; distance *= 2) {
    if (distance < lanes) {
      bits = larger(bits, shuffle_xor(bits, distance));
    }
  }
  const auto scale = scale_for(bits);
  const auto of_neighbour = shuffle_xor(scale, 1);
  return {of_value ? of_neighbour : scale, of_value ? scale : of_neighbour};
}

// With scales that the rows have already, if any. Values are read first: a key may also wait for its position.
template <class To, int N, class Source, class Locate>
PAGEDKV_DEVICE void transfer_as_scaled(const row_spread& spread, const Source& source, bool writable, Locate locate) {
  const auto key_scale = source.key_scale();
  const auto value_scale = source.value_scale();
  PAGEDKV_KEEP_LOOP
  for (auto first = spread.lane() * N; first < spread.head_dim; first += spread.lanes_per_row() * N) {
    const auto value = source.value(first);
    const auto key = source.key(first);
    if (writable) {
      const auto to = locate();
      const auto to_key_scale = load_scale<To>(to.key_scale);
      const auto to_value_scale = load_scale<To>(to.value_scale);
      source.put(to.key, first, recode<To, typename Source::key_element, N>(key, key_scale, to_key_scale));
      source.put(to.value, first, recode<To, typename Source::value_element, N>(value, value_scale, to_value_scale));
    }
  }
}

/// Numbers that a lane keeps, as words where they fill some: compilers move single numbers of 16 bits one by one.
template <class Element, int N>
class kept_numbers {
  using numbers = vector<typename Element::storage, N>;
  static constexpr bool as_words = sizeof(numbers) % sizeof(std::uint32_t) == 0;
  using words = vector<std::uint32_t, (sizeof(numbers) + 3) / sizeof(std::uint32_t)>;

 public:
  PAGEDKV_DEVICE void keep(const numbers& to_keep) {
    kept_ = __builtin_bit_cast(std::conditional_t<as_words, words, numbers>, to_keep);
  }
  [[nodiscard]] PAGEDKV_DEVICE numbers get() const { return __builtin_bit_cast(numbers, kept_); }

 private:
  std::conditional_t<as_words, words, numbers> kept_;
};

// A lane keeps its first numbers, in their stored form, from the search for the largest magnitude to the encoding; only
// rows longer than 32 * N numbers are read twice, the second time from the cache.
template <class To, int N, class Source, class Locate>
PAGEDKV_DEVICE void transfer_scaled(const row_spread& spread, const Source& source, bool readable, bool writable,
                                    Locate locate) {
  using key_element = typename Source::key_element;
  using value_element = typename Source::value_element;
  constexpr auto takes_all = Source::takes_rows_at_once;
  const auto lane_first = spread.lane() * N;
  const auto stride = spread.lanes_per_row() * N;
  const auto num_numbers = readable ? spread.head_dim : 0;
  const auto last = lane_first + ((num_numbers - 1 - lane_first) >> spread.numbers_log2<N>()) * stride;
  const auto from_key_scale = readable ? source.key_scale() : 1.0F;
  const auto from_value_scale = readable ? source.value_scale() : 1.0F;
  // Not initialised: initialisation would add an instruction per number.
  kept_numbers<key_element, N> kept_key;
  kept_numbers<value_element, N> kept_value;
  auto key_bits = std::int32_t{0};
  auto value_bits = std::int32_t{0};
  // Backwards, so that the numbers to keep come last.
  if (auto first = takes_all ? lane_first : last; lane_first < num_numbers) {
    PAGEDKV_KEEP_LOOP
    do {
      const auto value = source.value(first);
      const auto key = source.key(first);
      kept_value.keep(value);
      kept_key.keep(key);
      value_bits = absmax_bits<value_element, N>(value_bits, value, from_value_scale);
      key_bits = absmax_bits<key_element, N>(key_bits, key, from_key_scale);
      first -= stride;
    } while (!takes_all && first >= lane_first);
  }
  const auto [key_scale, value_scale] = scales_of_rows<To>(spread, key_bits, value_bits);
  if (!writable) {
    return;
  }
  const auto to = locate();
  PAGEDKV_KEEP_LOOP
  for (auto first = lane_first; first < num_numbers; first = takes_all ? num_numbers : first + stride) {
    if (!takes_all && first != lane_first) {
      kept_value.keep(source.value(first));
      kept_key.keep(source.key(first));
    }
    source.put(to.value, first, recode<To, value_element, N>(kept_value.get(), from_value_scale, value_scale));
    source.put(to.key, first, recode<To, key_element, N>(kept_key.get(), from_key_scale, key_scale));
  }
  if (spread.lane() == 0) {
    store(to.value_scale, value_scale);
    store(to.key_scale, key_scale);
  }
}

/// Writes one row of keys and one of values as `To`, with new scales if these lie in the block. Every lane of the wave
/// calls it; if the source is not readable, the lanes only take part in shuffles. `locate` returns the destination, if
/// it is writable; it is called after the reads are issued, so that the address computation does not delay them.
template <class To, int N, class Source, class Locate>
PAGEDKV_DEVICE void transfer(const row_spread& spread, const Source& source, bool readable, bool writable,
                             Locate locate) {
  if constexpr (To::scaled) {
    transfer_scaled<To, N>(spread, source, readable, writable, locate);
  } else if (readable) {
    transfer_as_scaled<To, N>(spread, source, writable, locate);
  }
}

}  // namespace pagedkv::kernels
