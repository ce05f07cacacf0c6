#pragma once

#include <pagedkv/core/host_device.hpp>
#include <pagedkv/kernels/transfer/append.hpp>

#include <algorithm>

namespace pagedkv::kernels {

/// The element of rotated numbers before they are encoded: plain float32.
struct rotated_number {
  using storage = float;
  static constexpr bool scaled = false;

  [[nodiscard]] PAGEDKV_HOST_DEVICE static constexpr float decode(float number, float /*scale*/) { return number; }
};

/// `ReadsAhead`: whether the angles are read before the first use of the key: that takes registers, but lanes with many
/// of them are too few to hide two waits.
///
/// Reads keys, rotates them to their position as float32, and reads values unchanged. A lane holds both numbers of each
/// pair: its `N` numbers are neighbours in the first half of the rotated part and their partners in the second half;
/// past the rotated part likewise.
template <class Input, rope_pairing Pairing, int N, bool ReadsAhead>
struct rotating_source {
  using key_element = rotated_number;
  using value_element = Input;
  using storage = typename Input::storage;
  static constexpr bool takes_rows_at_once = ReadsAhead && N > 2;

  row_pair<const storage> rows;
  rope_table table;
  std::int64_t position = 0;
  std::int32_t head_dim = 0;
  const float* cosines = nullptr;  // of the position, unless they are read ahead

  PAGEDKV_DEVICE void turn_to(std::int64_t to) {
    position = to;
    if constexpr (!ReadsAhead) {
      cosines = find_cosines();
    }
  }

  [[nodiscard]] static PAGEDKV_DEVICE float key_scale() { return 1.0F; }
  [[nodiscard]] static PAGEDKV_DEVICE float value_scale() { return 1.0F; }

  [[nodiscard]] PAGEDKV_DEVICE bool has_angles() const { return position >= 0 && position < table.num_positions; }

  [[nodiscard]] PAGEDKV_DEVICE vector<float, N> key(std::int32_t first) const {
    const auto stored = read(rows.key, first);
    const auto rotated = first < table.rotary_dim;
    if constexpr (ReadsAhead) {
      turns angles;
      if (rotated) {
        angles = read_angles(first);
      }
      const auto numbers = decode<Input, N>(stored, 1.0F);
      return rotated ? rotate(numbers, angles) : numbers;
    } else {
      const auto numbers = decode<Input, N>(stored, 1.0F);
      return rotated ? rotate(numbers, read_angles(first)) : numbers;
    }
  }

  [[nodiscard]] PAGEDKV_DEVICE vector<storage, N> value(std::int32_t first) const { return read(rows.value, first); }

  template <class Row, class T, int M>
  PAGEDKV_DEVICE void put(const Row& row, std::int32_t first, const vector<T, M>& numbers) const {
    const auto at = halves_of(first);
    auto low = vector<T, M / 2>{};
    auto high = vector<T, M / 2>{};
    for (auto i = 0; i < M / 2; ++i) {
      low.values[i] = numbers.values[i];
      high.values[i] = numbers.values[M / 2 + i];
    }
    store_numbers(row + at.low, low);
    store_numbers(row + at.high, high);
  }

 private:
  static constexpr auto half = N / 2;
  // A lane with single numbers cannot hold a pair of neighbours, so its two numbers are the pair.
  static constexpr auto adjoining = N == 2 && Pairing == rope_pairing::neighbours;

  struct halves {
    std::int32_t low;
    std::int32_t high;
  };

  /// Cosines and sines of a lane's pairs, in order.
  struct turns {
    vector<float, half> cosines;
    vector<float, half> sines;
  };

  [[nodiscard]] PAGEDKV_DEVICE halves halves_of(std::int32_t first) const {
    if (adjoining) {
      return {first, first + 1};
    }
    const auto rotated = first < table.rotary_dim;
    const auto start = rotated ? 0 : table.rotary_dim;
    const auto size = rotated ? table.rotary_dim : head_dim - table.rotary_dim;
    const auto low = start + (first - start) / 2;
    return {low, low + size / 2};
  }

  [[nodiscard]] PAGEDKV_DEVICE vector<storage, N> read(const storage* row, std::int32_t first) const {
    const auto at = halves_of(first);
    const auto low = load_vector<half>(row + at.low);
    const auto high = load_vector<half>(row + at.high);
    auto numbers = vector<storage, N>{};
    for (auto i = 0; i < half; ++i) {
      numbers.values[i] = low.values[i];
      numbers.values[half + i] = high.values[i];
    }
    return numbers;
  }

  [[nodiscard]] PAGEDKV_DEVICE const float* find_cosines() const {
    return table.angles + stride_over(table.rotary_dim, has_angles() ? position : 0);
  }

  [[nodiscard]] PAGEDKV_DEVICE turns read_angles(std::int32_t first) const {
    const auto* const cosines_of_position = ReadsAhead ? find_cosines() : cosines;
    const auto* const sines = cosines_of_position + table.rotary_dim / 2;
    const auto at = halves_of(first);
    if constexpr (Pairing == rope_pairing::halves) {
      return {load_vector<half>(cosines_of_position + at.low), load_vector<half>(sines + at.low)};
    } else if constexpr (adjoining) {
      return {load_vector<half>(cosines_of_position + at.low / 2), load_vector<half>(sines + at.low / 2)};
    } else {
      auto angles = turns{};
      for (const auto upper : {0, 1}) {
        const auto angle = (upper == 0 ? at.low : at.high) / 2;
        const auto cosine = load_vector<half / 2>(cosines_of_position + angle);
        const auto sine = load_vector<half / 2>(sines + angle);
        for (auto i = 0; i < half / 2; ++i) {
          angles.cosines.values[upper * (half / 2) + i] = cosine.values[i];
          angles.sines.values[upper * (half / 2) + i] = sine.values[i];
        }
      }
      return angles;
    }
  }

  [[nodiscard]] static PAGEDKV_DEVICE vector<float, N> rotate(const vector<float, N>& numbers, const turns& angles) {
    constexpr auto in_halves = Pairing == rope_pairing::halves || adjoining;
    auto rotated = vector<float, N>{};
    for (auto i = 0; i < half; ++i) {
      const auto x = in_halves ? i : 2 * i;
      const auto y = in_halves ? half + i : 2 * i + 1;
      rotated.values[x] = numbers.values[x] * angles.cosines.values[i] - numbers.values[y] * angles.sines.values[i];
      rotated.values[y] = numbers.values[x] * angles.sines.values[i] + numbers.values[y] * angles.cosines.values[i];
    }
    return rotated;
  }
};

/// Numbers of each half of a pair that a lane takes: with scales, as many as two stores of half a vector hold, since
/// more numbers share the arithmetic of a row; else as many as fill the widest vectors.
template <class Element, class Input>
inline constexpr int rope_numbers_per_half = [] {
  constexpr auto stored = static_cast<int>(sizeof(typename Element::storage));
  constexpr auto given = static_cast<int>(sizeof(typename Input::storage));
  return vector_bytes / (Element::scaled ? 2 * stored : (stored > given ? stored : given));
}();

/// Workgroups that a processor is to have room for, which limits a lane's registers; 0: as many as the compiler finds
/// right.
template <int N>
inline constexpr int rope_workgroups = N <= 8 ? 0 : 4;

/// Append that rotates token i's keys to `positions[i]`, in workgroups whose y is 0. Workgroups whose y is 1 rotate the
/// queries.
template <class Element, class Input, rope_pairing Pairing, int N>
PAGEDKV_KERNEL void PAGEDKV_LAUNCH_BOUNDS(row_workgroup_size, (rope_workgroups<N>))
    rope_append_kernel(row_spread spread, mapped_tokens mapping, block_storage_view view, std::int32_t layer,
                       token_rows<const typename Input::storage> keys, token_rows<const typename Input::storage> values,
                       const std::int64_t* positions, rope_table table, row_spread query_spread,
                       rope_queries<typename Input::storage> queries) {
  using source_type = rotating_source<Input, Pairing, N, Element::scaled>;
  let_next_kernel_start();
  wait_for_previous_kernel();
  // A skipped token may have any position.
  const auto turned_to_position = [&](std::int32_t token, std::int64_t slot_index) {
    auto source = source_type{};
    source.table = table;
    source.head_dim = spread.head_dim;
    source.turn_to(load(positions + token));
    check(source.has_angles() || slot_index < 0 || table.rotary_dim == 0, "position within the table");
    return source;
  };
  if (workgroup_index().y == 0) {
    const auto row = find_row(spread);
    const auto slot_index = mapping.slot_of(row.token);
    auto source = source_type{};
    if (points_on_every_lane || row.token >= 0) {
      source = turned_to_position(row.token_or_first(), slot_index);
      source.rows = rows_of_token(keys, values, row.token_or_first(), row.head);
    }
    transfer<Element, N>(spread, source, row.token >= 0, slot_index >= 0,
                         [&] { return mapping.rows_in_slot<Element>(view, layer, slot_index, row.head); });
  } else if (const auto row = find_row(query_spread); row.token >= 0) {
    auto source = turned_to_position(row.token, mapping.slot_of(row.token));
    source.rows.key = row_of_token(queries.from, row.token, row.head);
    auto* const to = row_of_token(queries.to, row.token, row.head);
    PAGEDKV_KEEP_LOOP
    for (auto first = spread.lane() * N; first < spread.head_dim; first += spread.lanes_per_row() * N) {
      source.put(to, first, encode<Input, N>(source.key(first), 1.0F));
    }
  }
}

template <class Element, class Input, rope_pairing Pairing>
[[nodiscard]] runtime::status rope_append(const block_storage_view& view, std::int32_t layer, const slot* slots,
                                          std::int64_t num_tokens,
                                          const token_rows<const typename Input::storage>& keys,
                                          const token_rows<const typename Input::storage>& values,
                                          const std::int64_t* positions, const rope_table& table,
                                          const rope_queries<typename Input::storage>& queries,
                                          runtime::stream stream) {
  static_assert(is_unscaled<Input>, "rows carry no scales");
  using input = typename Input::storage;
  constexpr auto half = rope_numbers_per_half<Element, Input>;
  const auto aligned = fits_at_once<Element, 2 * half>(view.head_dim) && table.rotary_dim % (2 * half) == 0 &&
                       view.head_dim % (2 * half) == 0 &&
                       reinterpret_cast<std::uintptr_t>(table.angles) % vector_bytes == 0 &&
                       aligned_rows<typename Element::storage, half>(view) && aligned_rows<const input, half>(keys) &&
                       aligned_rows<const input, half>(values) && aligned_rows<const input, half>(queries.from) &&
                       aligned_rows<input, half>(queries.to);
  const auto mapping = map_tokens(view, slots);
  if (num_tokens == 0 || num_tokens > max_tokens_per_launch) {
    return num_tokens == 0 ? runtime::success : runtime::error_invalid_value;
  }
  const auto launch_width = [&](auto width) {
    const auto tokens = static_cast<std::int32_t>(num_tokens);
    const auto spread = spread_rows(tokens, view.num_kv_heads, view.head_dim, width);
    auto query_spread = row_spread{};
    auto shape = cover_rows(spread);
    if (queries.num_heads > 0) {
      query_spread = spread_rows(tokens, queries.num_heads, view.head_dim, width);
      const auto grid = cover_rows(query_spread).grid;
      shape.grid = {std::max(shape.grid.x, grid.x), 2, std::max(shape.grid.z, grid.z)};
    }
    return launch_following<rope_append_kernel<Element, Input, Pairing, decltype(width)::value>>(
        shape, stream, spread, mapping, view, layer, keys, values, positions, table, query_spread, queries);
  };
  return aligned ? launch_width(std::integral_constant<int, 2 * half>{})
                 : launch_width(std::integral_constant<int, 2>{});
}

}  // namespace pagedkv::kernels
