#pragma once

#include <pagedkv/core/view.hpp>
#include <pagedkv/kernels/divider.hpp>
#include <pagedkv/kernels/platform.hpp>

#include <type_traits>

namespace pagedkv::kernels {

/// Every kernel over rows runs in workgroups of this many lanes.
inline constexpr auto row_workgroup_size = 256;

/// Rows (the numbers of one token and head) spread over groups of neighbouring lanes, each lane taking the same `N`
/// neighbouring numbers of the key and of the value.
struct row_spread {
  std::int64_t num_rows = 0;
  std::int32_t lanes_per_row = 1;  // a power of two up to 32, so that no group crosses a wave
  std::int32_t head_dim = 0;

  [[nodiscard]] __device__ std::int32_t rows_per_workgroup() const { return row_workgroup_size / lanes_per_row; }
  [[nodiscard]] __device__ std::int32_t lane() const {
    return static_cast<std::int32_t>(threadIdx.x) & (lanes_per_row - 1);
  }
  [[nodiscard]] __device__ std::int64_t first_row() const {
    return std::int64_t{blockIdx.x} * rows_per_workgroup() + static_cast<std::int32_t>(threadIdx.x) / lanes_per_row;
  }
  [[nodiscard]] __device__ std::int64_t rows_per_grid() const { return std::int64_t{gridDim.x} * rows_per_workgroup(); }
};

/// Spreads rows so that every lane has something to do, and the shape that covers them all, or as many as a grid holds.
struct row_launch {
  row_spread spread;
  launch_shape shape;
};

[[nodiscard]] inline row_launch plan_rows(std::int64_t num_rows, std::int32_t head_dim, std::int32_t numbers_per_lane) {
  constexpr auto max_workgroups = std::int64_t{1} << 20;
  const auto chunks = (head_dim + numbers_per_lane - 1) / numbers_per_lane;
  const auto lanes = chunks >= 32 ? 32 : static_cast<std::int32_t>(std::bit_ceil(static_cast<std::uint32_t>(chunks)));
  const auto rows_per_workgroup = row_workgroup_size / lanes;
  const auto workgroups = (num_rows + rows_per_workgroup - 1) / rows_per_workgroup;
  const auto grid = static_cast<std::uint32_t>(workgroups < max_workgroups ? workgroups : max_workgroups);
  return {{num_rows, lanes, head_dim}, {dim3(grid), dim3(row_workgroup_size)}};
}

/// Calls `launch_with(width, plan)` with as many numbers per lane as alignment permits: `Most`, or one.
template <int Most, class Launch>
[[nodiscard]] hipError_t launch_rows(bool aligned, std::int64_t num_rows, std::int32_t head_dim, Launch launch_with) {
  if (num_rows == 0) {
    return hipSuccess;
  }
  return aligned ? launch_with(std::integral_constant<int, Most>{}, plan_rows(num_rows, head_dim, Most))
                 : launch_with(std::integral_constant<int, 1>{}, plan_rows(num_rows, head_dim, 1));
}

/// Calls `visit(row)` on every lane for each row of its group, and as often on the lanes of a group that has run out,
/// with -1: shuffles need the whole wave.
template <class Visit>
__device__ void for_each_row(const row_spread& spread, Visit visit) {
  const auto in_workgroup = spread.first_row() - std::int64_t{blockIdx.x} * spread.rows_per_workgroup();
  for (auto row = spread.first_row(); row - in_workgroup < spread.num_rows; row += spread.rows_per_grid()) {
    visit(row < spread.num_rows ? row : -1);
  }
}

/// How many numbers a lane moves at once: 16 bytes of the wider of the two storage types, where alignment permits.
template <class To, class From>
inline constexpr auto numbers_per_lane =
    vector_bytes / static_cast<int>(sizeof(typename To::storage) > sizeof(typename From::storage)
                                        ? sizeof(typename To::storage)
                                        : sizeof(typename From::storage));

/// Where the numbers of one token and head lie. The scales of an unscaled element are not touched.
template <class Storage>
struct row_pair {
  Storage* key = nullptr;
  Storage* value = nullptr;
  float* key_scale = nullptr;
  float* value_scale = nullptr;
};

/// The rows of one token and head in block storage.
template <class Element>
[[nodiscard]] __device__ row_pair<typename Element::storage> rows_in_block(const block_storage_view& view,
                                                                           std::int32_t layer, std::int64_t block,
                                                                           std::int32_t offset, std::int32_t head) {
  using storage = typename Element::storage;
  check(layer >= 0 && layer < view.num_layers, "layer within the storage");
  check(block >= 0 && block < view.num_blocks, "block within the storage");
  // The numbers of one layer of one block are counted by 31 bits, so that strides inside it take half the registers.
  const auto within = [=](std::int64_t token_stride, std::int64_t head_stride) {
    return offset * static_cast<std::int32_t>(token_stride) + head * static_cast<std::int32_t>(head_stride);
  };
  auto* const start = view.block(layer, block);
  const auto number = within(view.token_stride, view.head_stride);
  auto rows = row_pair<storage>{reinterpret_cast<storage*>(start) + number,
                                reinterpret_cast<storage*>(start + view.value_offset) + number};
  if constexpr (Element::scaled) {
    const auto scale = within(view.scale_token_stride, view.scale_head_stride);
    rows.key_scale = reinterpret_cast<float*>(start + view.key_scale_offset) + scale;
    rows.value_scale = reinterpret_cast<float*>(start + view.value_scale_offset) + scale;
  }
  return rows;
}

/// `N` numbers of `Element` as float32.
template <class Element, int N>
[[nodiscard]] __device__ vector<float, N> decode(const vector<typename Element::storage, N>& stored, float scale) {
  auto numbers = vector<float, N>{};
  for (auto i = 0; i < N; ++i) {
    numbers.values[i] = Element::decode(stored.values[i], scale);
  }
  return numbers;
}

template <class Element, int N>
[[nodiscard]] __device__ vector<typename Element::storage, N> encode(const vector<float, N>& numbers, float scale) {
  auto stored = vector<typename Element::storage, N>{};
  for (auto i = 0; i < N; ++i) {
    stored.values[i] = Element::encode(numbers.values[i], scale);
  }
  return stored;
}

/// Whether vectors of `N` numbers of `Storage` may start wherever a row does.
template <class Storage, int N>
[[nodiscard]] bool aligned_rows(const token_rows<Storage>& rows) noexcept {
  return reinterpret_cast<std::uintptr_t>(rows.data) % (N * sizeof(Storage)) == 0 && rows.token_stride % N == 0 &&
         rows.head_stride % N == 0;
}

template <class Storage, int N>
[[nodiscard]] bool aligned_rows(const block_storage_view& view) noexcept {
  constexpr auto bytes = std::int64_t{N * sizeof(Storage)};
  return reinterpret_cast<std::uintptr_t>(view.base) % bytes == 0 && view.block_stride % bytes == 0 &&
         view.layer_stride % bytes == 0 && view.value_offset % bytes == 0 && view.token_stride % N == 0 &&
         view.head_stride % N == 0 && view.head_dim % N == 0;
}

}  // namespace pagedkv::kernels
