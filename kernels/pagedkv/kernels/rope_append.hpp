#pragma once

#include <pagedkv/kernels/append.hpp>

namespace pagedkv::kernels {

/// Which two numbers of a key rotate together.
enum class rope_pairing : std::uint8_t {
  halves,      // i and i + rotary_dim / 2
  neighbours,  // 2 i and 2 i + 1
};

/// Cosines and sines of the rotary position embedding (Su et al., "RoFormer", 2021), computed by the caller: row p
/// holds `rotary_dim / 2` cosines and then as many sines for position p. A table needs no range reduction on the
/// device.
struct rope_table {
  const float* angles = nullptr;
  std::int64_t num_positions = 0;
  std::int32_t rotary_dim = 0;  // even, at most head_dim; the numbers past it are not rotated
};

/// The element of rotated numbers on their way: float32 as it is.
struct rotated_number {
  using storage = float;
  static constexpr bool scaled = false;

  [[nodiscard]] PAGEDKV_HOST_DEVICE static constexpr float decode(float number, float /*scale*/) { return number; }
};

/// Reads keys rotated to their position, as float32, and values as they are.
template <class Input, rope_pairing Pairing, int N>
struct rotating_source {
  using element = rotated_number;

  row_pair<const typename Input::storage> rows;
  const float* cosines = nullptr;
  std::int32_t rotary_dim = 0;

  [[nodiscard]] __device__ vector<float, N> value(std::int32_t first) const { return numbers(rows.value, first); }
  [[nodiscard]] static __device__ float key_scale() { return 1.0F; }
  [[nodiscard]] static __device__ float value_scale() { return 1.0F; }

  [[nodiscard]] __device__ vector<float, N> key(std::int32_t first) const {
    const auto own = numbers(rows.key, first);
    if (first >= rotary_dim) {
      return own;
    }
    if constexpr (Pairing == rope_pairing::halves) {
      return rotate_halves(own, first);
    } else {
      return rotate_neighbours(own, first);
    }
  }

 private:
  [[nodiscard]] static __device__ vector<float, N> numbers(const typename Input::storage* row, std::int32_t first) {
    return decode<Input, N>(load_vector<N>(row + first), 1.0F);
  }

  [[nodiscard]] __device__ vector<float, N> rotate_halves(const vector<float, N>& own, std::int32_t first) const {
    const auto half = rotary_dim / 2;
    const auto in_first_half = first < half;
    const auto partner = numbers(rows.key, in_first_half ? first + half : first - half);
    const auto angle = in_first_half ? first : first - half;
    const auto cosine = load_vector<N>(cosines + angle);
    const auto sine = load_vector<N>(cosines + half + angle);
    auto rotated = vector<float, N>{};
    for (auto i = 0; i < N; ++i) {
      const auto signed_sine = in_first_half ? -sine.values[i] : sine.values[i];
      rotated.values[i] = own.values[i] * cosine.values[i] + partner.values[i] * signed_sine;
    }
    return rotated;
  }

  [[nodiscard]] __device__ vector<float, N> rotate_neighbours(const vector<float, N>& own, std::int32_t first) const {
    auto rotated = vector<float, N>{};
    for (auto i = 0; i < N; ++i) {
      const auto odd = (first + i) % 2 != 0;
      const auto angle = (first + i) / 2;
      const auto sine = load(cosines + rotary_dim / 2 + angle);
      const auto partner = N > 1 ? own.values[i ^ (N > 1)] : numbers(rows.key, first ^ 1).values[0];
      rotated.values[i] = own.values[i] * load(cosines + angle) + partner * (odd ? sine : -sine);
    }
    return rotated;
  }
};

/// Append that rotates token i's keys to `positions[i]` on the way.
template <class Element, class Input, rope_pairing Pairing, int N>
__global__ void __launch_bounds__(row_workgroup_size)
    rope_append_kernel(row_spread spread, slot_rows mapping, block_storage_view view, std::int32_t layer,
                       token_rows<const typename Input::storage> keys, token_rows<const typename Input::storage> values,
                       const std::int64_t* positions, rope_table table) {
  for_each_row(spread, [&](std::int64_t row) {
    const auto place = mapping.find(row);
    const auto active = place.block >= 0;
    auto source = rotating_source<Input, Pairing, N>{};
    auto to = row_pair<typename Element::storage>{};
    if (active) {
      const auto position = load(positions + place.token);
      check(position >= 0 && position < table.num_positions, "position within the table");
      source.rows = rows_of_token(keys, values, place.token, place.head);
      source.cosines = table.angles + position * table.rotary_dim;
      source.rotary_dim = table.rotary_dim;
      to = rows_in_block<Element>(view, layer, place.block, place.offset, place.head);
    }
    transfer<Element, N>(spread, source, to, active);
  });
}

/// Enqueues the append; see `append`. `positions` and the table are memory that the device can read.
template <class Element, class Input, rope_pairing Pairing>
[[nodiscard]] hipError_t rope_append(const block_storage_view& view, std::int32_t layer, const slot* slots,
                                     std::int64_t num_tokens, const token_rows<const typename Input::storage>& keys,
                                     const token_rows<const typename Input::storage>& values,
                                     const std::int64_t* positions, const rope_table& table, hipStream_t stream) {
  static_assert(!Input::scaled, "rows carry no scales");
  constexpr auto most = numbers_per_lane<Element, Input>;
  using input = const typename Input::storage;
  const auto aligned = reinterpret_cast<std::uintptr_t>(table.angles) % (most * sizeof(float)) == 0 &&
                       table.rotary_dim % (2 * most) == 0 && aligned_rows<typename Element::storage, most>(view) &&
                       aligned_rows<input, most>(keys) && aligned_rows<input, most>(values);
  const auto mapping = make_slot_rows(view, slots);
  return launch_rows<most>(aligned, num_tokens * view.num_kv_heads, view.head_dim,
                           [&](auto width, const row_launch& plan) {
                             return launch<rope_append_kernel<Element, Input, Pairing, decltype(width)::value>>(
                                 plan.shape, stream, plan.spread, mapping, view, layer, keys, values, positions, table);
                           });
}

}  // namespace pagedkv::kernels
