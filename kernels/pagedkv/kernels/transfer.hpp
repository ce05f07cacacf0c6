#pragma once

#include <pagedkv/kernels/row.hpp>

namespace pagedkv::kernels {

/// Reads rows of `Element` from memory. A source names the element of what it reads, gives `N` numbers of the key and
/// the value from a position on, and their scales (anything for unscaled elements).
template <class Element, int N>
struct plain_source {
  using element = Element;
  using storage = typename Element::storage;

  row_pair<const storage> rows;

  [[nodiscard]] __device__ vector<storage, N> key(std::int32_t first) const { return load_vector<N>(rows.key + first); }
  [[nodiscard]] __device__ vector<storage, N> value(std::int32_t first) const {
    return load_vector<N>(rows.value + first);
  }
  [[nodiscard]] __device__ float key_scale() const { return scale(rows.key_scale); }
  [[nodiscard]] __device__ float value_scale() const { return scale(rows.value_scale); }

 private:
  [[nodiscard]] static __device__ float scale(const float* where) {
    if constexpr (Element::scaled) {
      return load(where);
    } else {
      return 1.0F;
    }
  }
};

/// Numbers of `From` as numbers of `To`. Equal elements keep every bit, NaN payloads included.
template <class To, class From, int N>
[[nodiscard]] __device__ vector<typename To::storage, N> recode(const vector<typename From::storage, N>& stored,
                                                                float from_scale, float to_scale) {
  if constexpr (std::is_same_v<To, From> && !To::scaled) {
    return stored;
  } else {
    return encode<To, N>(decode<From, N>(stored, from_scale), to_scale);
  }
}

/// Bits of the largest magnitude so far and in `numbers`. As integers magnitudes order like numbers, with infinity
/// above every number and NaN above infinity.
template <int N>
[[nodiscard]] __device__ std::int32_t absmax_bits(std::int32_t so_far, const vector<float, N>& numbers) {
  for (auto i = 0; i < N; ++i) {
    const auto magnitude = __float_as_int(numbers.values[i]) & 0x7fffffff;
    so_far = magnitude > so_far ? magnitude : so_far;
  }
  return so_far;
}

/// The same, over all lanes of a row. Every lane of the wave takes part.
[[nodiscard]] __device__ inline float absmax_of_row(std::int32_t bits, std::int32_t lanes_per_row) {
  for (auto distance = lanes_per_row / 2; distance > 0; distance /= 2) {
    const auto other = __shfl_xor(bits, distance, lanes_per_row);
    bits = other > bits ? other : bits;
  }
  return __int_as_float(bits);
}

template <class To, int N, class Source>
__device__ void transfer_unscaled(const row_spread& spread, const Source& source,
                                  const row_pair<typename To::storage>& to) {
  using from = typename Source::element;
  const auto key_scale = source.key_scale();
  const auto value_scale = source.value_scale();
  for (auto i = spread.lane() * N; i < spread.head_dim; i += spread.lanes_per_row * N) {
    const auto key = source.key(i);
    const auto value = source.value(i);
    store_vector<N>(to.key + i, recode<To, from, N>(key, key_scale, 1.0F));
    store_vector<N>(to.value + i, recode<To, from, N>(value, value_scale, 1.0F));
  }
}

// A lane keeps its first numbers from the search for the largest magnitude to the encoding; only rows longer than
// 32 * N numbers are read twice, the second time from the cache.
template <class To, int N, class Source>
__device__ void transfer_scaled(const row_spread& spread, const Source& source,
                                const row_pair<typename To::storage>& to, bool active) {
  using from = typename Source::element;
  const auto first = spread.lane() * N;
  const auto stride = spread.lanes_per_row * N;
  const auto num_numbers = active ? spread.head_dim : 0;
  const auto from_key_scale = active ? source.key_scale() : 1.0F;
  const auto from_value_scale = active ? source.value_scale() : 1.0F;
  auto key = vector<float, N>{};
  auto value = vector<float, N>{};
  if (first < num_numbers) {
    key = decode<from, N>(source.key(first), from_key_scale);
    value = decode<from, N>(source.value(first), from_value_scale);
  }
  auto key_bits = absmax_bits<N>(0, key);
  auto value_bits = absmax_bits<N>(0, value);
  for (auto i = first + stride; i < num_numbers; i += stride) {
    key_bits = absmax_bits<N>(key_bits, decode<from, N>(source.key(i), from_key_scale));
    value_bits = absmax_bits<N>(value_bits, decode<from, N>(source.value(i), from_value_scale));
  }
  const auto key_scale = To::scale_for(absmax_of_row(key_bits, spread.lanes_per_row));
  const auto value_scale = To::scale_for(absmax_of_row(value_bits, spread.lanes_per_row));
  if (first < num_numbers) {
    store_vector<N>(to.key + first, encode<To, N>(key, key_scale));
    store_vector<N>(to.value + first, encode<To, N>(value, value_scale));
  }
  for (auto i = first + stride; i < num_numbers; i += stride) {
    store_vector<N>(to.key + i, recode<To, from, N>(source.key(i), from_key_scale, key_scale));
    store_vector<N>(to.value + i, recode<To, from, N>(source.value(i), from_value_scale, value_scale));
  }
  if (active && spread.lane() == 0) {
    store(to.key_scale, key_scale);
    store(to.value_scale, value_scale);
  }
}

/// Writes one row of keys and one of values as `To`, with new scales where it has any. Every lane of the wave calls it;
/// those that are not `active` only take part in shuffles, and their source and destination are not touched.
template <class To, int N, class Source>
__device__ void transfer(const row_spread& spread, const Source& source, const row_pair<typename To::storage>& to,
                         bool active) {
  if constexpr (To::scaled) {
    transfer_scaled<To, N>(spread, source, to, active);
  } else if (active) {
    transfer_unscaled<To, N>(spread, source, to);
  }
}

}  // namespace pagedkv::kernels
