#pragma once

#include <pagedkv/core/storage_formats.hpp>
#include <pagedkv/kernels/divider.hpp>
#include <pagedkv/kernels/launchers.hpp>
#include <pagedkv/kernels/platform.hpp>
#include <pagedkv/storage/view.hpp>

#include <bit>
#include <cstdint>
#include <type_traits>

namespace pagedkv::kernels {

/// The exponent of a power of two.
template <int N>
inline constexpr std::int32_t exponent_of = std::countr_zero(static_cast<std::uint32_t>(N));

/// The distribution of rows (the numbers of one token and head) over workgroups: each takes whole tokens and assigns
/// every row a group of neighbouring lanes; each lane takes the same `N` neighbouring numbers of the key and of the
/// value.
struct row_spread {
  std::int32_t num_tokens = 0;
  std::int32_t num_heads = 0;
  std::int32_t head_dim = 0;    // numbers
  std::int32_t lanes_log2 = 0;  // lanes per row; up to 5, so that no group crosses a wave
  std::int32_t tokens_per_workgroup = 1;
  divider<std::int32_t> heads;

  /// Lanes that share a row.
  [[nodiscard]] PAGEDKV_DEVICE std::int32_t lanes_per_row() const { return 1 << lanes_log2; }
  /// The exponent of the numbers that the lanes of a row take at once, `N` each.
  template <int N>
  [[nodiscard]] PAGEDKV_DEVICE std::int32_t numbers_log2() const {
    return lanes_log2 + exponent_of<N>;
  }
  /// Groups of lanes in a workgroup; the group of this lane, and its place there.
  [[nodiscard]] PAGEDKV_DEVICE std::int32_t num_groups() const { return row_workgroup_size >> lanes_log2; }
  [[nodiscard]] PAGEDKV_DEVICE std::int32_t group() const {
    return static_cast<std::int32_t>(local_index().x) >> lanes_log2;
  }
  [[nodiscard]] PAGEDKV_DEVICE std::int32_t lane() const {
    return static_cast<std::int32_t>(local_index().x) & (lanes_per_row() - 1);
  }
};

/// Distributes rows so that no lane is idle.
[[nodiscard]] inline row_spread spread_rows(std::int32_t num_tokens, std::int32_t num_heads, std::int32_t head_dim,
                                            std::int32_t numbers_per_lane) {
  const auto chunks = static_cast<std::uint32_t>((head_dim + numbers_per_lane - 1) / numbers_per_lane);
  const auto lanes_log2 = chunks >= 32 ? 5 : static_cast<std::int32_t>(std::bit_width(chunks - 1));
  const auto num_groups = row_workgroup_size >> lanes_log2;
  const auto tokens_per_workgroup = num_groups > num_heads ? num_groups / num_heads : 1;
  return {num_tokens, num_heads, head_dim, lanes_log2, tokens_per_workgroup, divider<std::int32_t>(num_heads)};
}

/// Workgroups that cover all rows: x counts tokens; z counts the rounds per token if there are more heads than groups
/// in a workgroup.
[[nodiscard]] inline launch_shape cover_rows(const row_spread& spread) {
  const auto covering = [](std::int32_t all, std::int32_t each) {
    return static_cast<std::uint32_t>((all + each - 1) / each);
  };
  return {{covering(spread.num_tokens, spread.tokens_per_workgroup), 1,
           covering(spread.num_heads, row_workgroup_size >> spread.lanes_log2)},
          {row_workgroup_size}};
}

/// Calls `launch_with(width, spread, shape)` with the numbers per lane that the alignment permits: `Most`, or one.
/// Fails for more tokens than one launch takes.
template <int Most, class Launch>
[[nodiscard]] runtime::status launch_rows(bool aligned, std::int64_t num_tokens, std::int32_t num_heads,
                                          std::int32_t head_dim, Launch launch_with) {
  if (num_tokens == 0 || num_tokens > max_tokens_per_launch) {
    return num_tokens == 0 ? runtime::success : runtime::error_invalid_value;
  }
  const auto launch_width = [&](auto width) {
    const auto spread = spread_rows(static_cast<std::int32_t>(num_tokens), num_heads, head_dim, width);
    return launch_with(width, spread, cover_rows(spread));
  };
  return aligned && head_dim % Most == 0 ? launch_width(std::integral_constant<int, Most>{})
                                         : launch_width(std::integral_constant<int, 1>{});
}

/// The row that a lane works on.
struct grid_row {
  std::int32_t token = -1;  // -1 on lanes without a row, which take part in shuffles only: these need the whole wave
  std::int32_t head = 0;

  /// A token to form pointers with on every lane, see `points_on_every_lane`.
  [[nodiscard]] PAGEDKV_DEVICE std::int32_t token_or_first() const { return token < 0 ? 0 : token; }
};

/// The row of this lane.
[[nodiscard]] PAGEDKV_DEVICE inline grid_row find_row(const row_spread& spread) {
  const auto [in_workgroup, in_round] = spread.heads.split(spread.group());
  const auto token = workgroup_index().x * static_cast<std::uint32_t>(spread.tokens_per_workgroup) +
                     static_cast<std::uint32_t>(in_workgroup);
  const auto head = static_cast<std::int32_t>(workgroup_index().z) * spread.num_groups() + in_round;
  if (in_workgroup >= spread.tokens_per_workgroup || token >= static_cast<std::uint32_t>(spread.num_tokens) ||
      head >= spread.num_heads) {
    return {};
  }
  return {static_cast<std::int32_t>(token), head};
}

/// `index` strides, in 64 bits. Faster on devices than the product of two 64-bit numbers.
[[nodiscard]] PAGEDKV_DEVICE inline std::int64_t stride_over(std::int32_t index, std::int64_t stride) {
  return static_cast<std::int64_t>(std::uint64_t{static_cast<std::uint32_t>(index)} *
                                   static_cast<std::uint64_t>(stride));
}

/// The numbers per lane and access if the alignment permits: as many as one store holds. Wider loads do not hurt;
/// stores with gaps between the lanes' bytes do.
template <class To>
inline constexpr auto numbers_per_lane = numbers_in_vector<typename To::storage>;

/// The address of a scale that lies in block storage, or a static scale itself. The scales of an unscaled element are
/// not accessed.
template <class Element>
using scale_place = std::conditional_t<has_static_scales<Element>, float, float*>;

/// Addresses of the numbers of one token and head, and their scales.
template <class Storage, class Scale = float*>
struct row_pair {
  Storage* key = nullptr;
  Storage* value = nullptr;
  Scale key_scale = {};
  Scale value_scale = {};
};

/// The rows of an element in block storage.
template <class Element>
using stored_row_pair = row_pair<typename Element::storage, scale_place<Element>>;

/// The scale at an index among those that the engine gives; 1 where there are none.
[[nodiscard]] PAGEDKV_DEVICE inline float load_static_scale(const float* scales, std::int32_t index) {
  return scales == nullptr ? 1.0F : load(scales + index);
}

/// The rows of one token and head in block storage.
template <class Element>
[[nodiscard]] PAGEDKV_DEVICE stored_row_pair<Element> rows_in_block(const block_storage_view& view, std::int32_t layer,
                                                                    std::int64_t block, std::int32_t offset,
                                                                    std::int32_t head) {
  using storage = typename Element::storage;
  check(block >= 0 && block < view.num_blocks, "block within the storage");
  // The numbers of one layer of one block are indexed with 31 bits: strides inside it take half the registers.
  const auto within = [=](std::int64_t token_stride, std::int64_t head_stride) {
    return offset * static_cast<std::int32_t>(token_stride) + head * static_cast<std::int32_t>(head_stride);
  };
  auto* const start = view.block(layer, 0) + stride_over(static_cast<std::int32_t>(block), view.block_stride);
  const auto number = within(view.token_stride, view.head_stride);
  auto rows = stored_row_pair<Element>{reinterpret_cast<storage*>(start) + number,
                                       reinterpret_cast<storage*>(start + view.value_offset) + number};
  if constexpr (Element::scaled) {
    const auto scale = within(view.scale_token_stride, view.scale_head_stride);
    rows.key_scale = reinterpret_cast<float*>(start + view.key_scale_offset) + scale;
    rows.value_scale = reinterpret_cast<float*>(start + view.value_scale_offset) + scale;
  } else if constexpr (has_static_scales<Element>) {
    rows.key_scale = load_static_scale(view.static_scales, view.static_key_index(layer, head));
    rows.value_scale = load_static_scale(view.static_scales, view.static_value_index(layer, head));
  }
  return rows;
}

/// The scale of a row that was stored; 1 for unscaled elements.
template <class Element>
[[nodiscard]] PAGEDKV_DEVICE float load_scale(const scale_place<Element>& place) {
  if constexpr (Element::scaled) {
    return load(place);
  } else if constexpr (has_static_scales<Element>) {
    return place;
  } else {
    return 1.0F;
  }
}

/// `N` numbers of `Element` as float32.
template <class Element, int N>
[[nodiscard]] PAGEDKV_DEVICE vector<float, N> decode(const vector<typename Element::storage, N>& stored, float scale) {
  auto numbers = vector<float, N>{};
  if constexpr (N % 2 == 0 && requires { Element::decode_two(stored.values, scale, numbers.values); }) {
    for (auto i = 0; i < N; i += 2) {
      Element::decode_two(stored.values + i, scale, numbers.values + i);
    }
  } else {
    for (auto i = 0; i < N; ++i) {
      numbers.values[i] = Element::decode(stored.values[i], scale);
    }
  }
  return numbers;
}

/// Whether a device encodes four numbers of `Element` to a word. Passed on as single bytes, these would be taken apart
/// again.
template <class Element, int N>
inline constexpr bool encodes_words = N % 8 == 0 && requires(const float* numbers) {
  Element::encode_four(numbers, 1.0F);
};

/// `N` numbers of `Element`, and float32 as such numbers.
template <class Element, int N>
using encoded_numbers = std::conditional_t<encodes_words<Element, N>, vector<std::uint32_t, (N + 3) / 4>,
                                           vector<typename Element::storage, N>>;
template <class Element, int N>
[[nodiscard]] PAGEDKV_DEVICE encoded_numbers<Element, N> encode(const vector<float, N>& numbers, float scale) {
  auto stored = encoded_numbers<Element, N>{};
  if constexpr (encodes_words<Element, N>) {
    for (auto i = 0; i < N; i += 4) {
      stored.values[i / 4] = Element::encode_four(numbers.values + i, scale);
    }
  } else if constexpr (N % 2 == 0 && requires { Element::encode_two(numbers.values, scale, stored.values); }) {
    for (auto i = 0; i < N; i += 2) {
      Element::encode_two(numbers.values + i, scale, stored.values + i);
    }
  } else {
    for (auto i = 0; i < N; ++i) {
      stored.values[i] = Element::encode(numbers.values[i], scale);
    }
  }
  return stored;
}

/// Stores numbers, or the words that hold them.
template <class Storage, class T, int N>
PAGEDKV_DEVICE void store_numbers(Storage* to, const vector<T, N>& numbers) {
  if constexpr (sizeof(T) == sizeof(Storage)) {
    store_vector<N>(to, numbers);
  } else {
    store_vector<N>(reinterpret_cast<T*>(to), numbers);
  }
}

/// Whether vectors of `N` numbers of `Storage` are aligned at every row's start.
template <class Storage, int N>
[[nodiscard]] bool aligned_rows(const token_rows<Storage>& rows) noexcept {
  constexpr auto numbers = std::int64_t{alignof(vector<Storage, N>) / sizeof(Storage)};
  return reinterpret_cast<std::uintptr_t>(rows.data) % alignof(vector<Storage, N>) == 0 &&
         rows.token_stride % numbers == 0 && rows.head_stride % numbers == 0;
}

template <class Storage, int N>
[[nodiscard]] bool aligned_rows(const block_storage_view& view) noexcept {
  constexpr auto bytes = std::int64_t{alignof(vector<Storage, N>)};
  constexpr auto numbers = bytes / static_cast<std::int64_t>(sizeof(Storage));
  return reinterpret_cast<std::uintptr_t>(view.base) % static_cast<std::uintptr_t>(bytes) == 0 &&
         view.block_stride % bytes == 0 && view.layer_stride % bytes == 0 && view.value_offset % bytes == 0 &&
         view.token_stride % numbers == 0 && view.head_stride % numbers == 0;
}

}  // namespace pagedkv::kernels
