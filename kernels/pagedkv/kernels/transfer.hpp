#pragma once

#include <pagedkv/kernels/magnitude.hpp>
#include <pagedkv/kernels/row.hpp>

// Not unrolled: long rows are rare, and copies of the loop's body take registers.
#if defined(__HIPCC__) || defined(__CUDACC__)
  #define PAGEDKV_KEEP_LOOP _Pragma("unroll 1")
#else
  #define PAGEDKV_KEEP_LOOP
#endif

namespace pagedkv::kernels {

/// Reads rows of `Element` from memory. A source names the elements of key and value, returns the `N` numbers of each
/// that a lane takes, and their scales (any value for unscaled elements), and stores numbers: lane `first / N` stores
/// the numbers from `first` on, or those at other positions that the source defines.
template <class Element, int N>
struct plain_source {
  using key_element = Element;
  using value_element = Element;
  using storage = typename Element::storage;

  row_pair<const storage, scale_place<Element>> rows;

  [[nodiscard]] PAGEDKV_DEVICE vector<storage, N> key(std::int32_t first) const {
    return load_vector<N>(rows.key + first);
  }
  [[nodiscard]] PAGEDKV_DEVICE vector<storage, N> value(std::int32_t first) const {
    return load_vector<N>(rows.value + first);
  }
  [[nodiscard]] PAGEDKV_DEVICE float key_scale() const { return load_scale<Element>(rows.key_scale); }
  [[nodiscard]] PAGEDKV_DEVICE float value_scale() const { return load_scale<Element>(rows.value_scale); }

  template <class Row, class Storage>
  PAGEDKV_DEVICE void put(const Row& row, std::int32_t first, const vector<Storage, N>& numbers) const {
    store_vector<N>(row + first, numbers);
  }
};

/// Numbers of `From` as numbers of `To`. Equal elements keep every bit, NaN payloads included.
template <class To, class From, int N>
[[nodiscard]] PAGEDKV_DEVICE vector<typename To::storage, N> recode(const vector<typename From::storage, N>& stored,
                                                                    float from_scale, float to_scale) {
  if constexpr (std::is_same_v<To, From> && is_unscaled<To>) {
    return stored;
  } else {
    return encode<To, N>(decode<From, N>(stored, from_scale), to_scale);
  }
}

/// Bits of the largest magnitude among `largest` so far and `numbers`.
template <int N>
[[nodiscard]] PAGEDKV_DEVICE std::int32_t absmax_bits(std::int32_t so_far, const vector<float, N>& numbers) {
  for (auto i = 0; i < N; ++i) {
    so_far = larger_magnitude(so_far, numbers.values[i]);
  }
  return so_far;
}

/// The largest magnitude over all lanes of a row. Every lane of the wave takes part.
[[nodiscard]] PAGEDKV_DEVICE inline float absmax_of_row(std::int32_t bits, std::int32_t lanes_per_row) {
  for (auto distance = lanes_per_row / 2; distance > 0; distance /= 2) {
    const auto other = shuffle_xor(bits, distance, lanes_per_row);
    bits = other > bits ? other : bits;
  }
  return __builtin_bit_cast(float, bits);
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

// A lane keeps its first numbers, in their stored form, from the search for the largest magnitude to the encoding; only
// rows longer than 32 * N numbers are read twice, the second time from the cache.
template <class To, int N, class Source, class Locate>
PAGEDKV_DEVICE void transfer_scaled(const row_spread& spread, const Source& source, bool readable, bool writable,
                                    Locate locate) {
  using key_element = typename Source::key_element;
  using value_element = typename Source::value_element;
  const auto lane_first = spread.lane() * N;
  const auto stride = spread.lanes_per_row() * N;
  const auto num_numbers = readable ? spread.head_dim : 0;
  const auto last = lane_first + ((num_numbers - 1 - lane_first) >> spread.numbers_log2<N>()) * stride;
  const auto from_key_scale = readable ? source.key_scale() : 1.0F;
  const auto from_value_scale = readable ? source.value_scale() : 1.0F;
  // Not initialised: initialisation would add an instruction per number.
  vector<typename key_element::storage, N> kept_key;
  vector<typename value_element::storage, N> kept_value;
  auto key_bits = std::int32_t{0};
  auto value_bits = std::int32_t{0};
  // Backwards, so that the numbers to keep come last.
  if (auto first = last; lane_first < num_numbers) {
    PAGEDKV_KEEP_LOOP
    do {
      kept_value = source.value(first);
      kept_key = source.key(first);
      value_bits = absmax_bits<N>(value_bits, decode<value_element, N>(kept_value, from_value_scale));
      key_bits = absmax_bits<N>(key_bits, decode<key_element, N>(kept_key, from_key_scale));
      first -= stride;
    } while (first >= lane_first);
  }
  const auto value_scale = To::scale_for(absmax_of_row(value_bits, spread.lanes_per_row()));
  const auto key_scale = To::scale_for(absmax_of_row(key_bits, spread.lanes_per_row()));
  if (!writable) {
    return;
  }
  const auto to = locate();
  PAGEDKV_KEEP_LOOP
  for (auto first = lane_first; first < num_numbers; first += stride) {
    if (first != lane_first) {
      kept_value = source.value(first);
      kept_key = source.key(first);
    }
    source.put(to.value, first, recode<To, value_element, N>(kept_value, from_value_scale, value_scale));
    source.put(to.key, first, recode<To, key_element, N>(kept_key, from_key_scale, key_scale));
  }
  if (spread.lane() == 0) {
    store(to.value_scale, value_scale);
    store(to.key_scale, key_scale);
  }
}

/// Writes one row of keys and one of values as `To`, with new scales if these lie in the block. Every lane of the wave calls
/// it; if the source is not readable, the lanes only take part in shuffles. `locate` returns the destination, if it is
/// writable; it is called after the reads are issued, so that the address computation does not delay them.
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
