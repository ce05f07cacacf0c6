#pragma once

#include <pagedkv/kernels/attention/decode.hpp>
#include <pagedkv/kernels/attention/launcher.hpp>
#include <pagedkv/kernels/attention/merge.hpp>
#include <pagedkv/kernels/attention/plain.hpp>
#include <pagedkv/kernels/row.hpp>

#include <type_traits>

namespace pagedkv::kernels {

/// Calls `use` with the head dimension of the kernel.
template <class Use>
[[nodiscard]] runtime::status for_head_dim(std::int32_t head_dim, Use use) {
  if (head_dim <= 64) {
    return use(std::integral_constant<int, 64>{});
  }
  return head_dim <= 128 ? use(std::integral_constant<int, 128>{})
                         : use(std::integral_constant<int, largest_attention_dim>{});
}

[[nodiscard]] inline launch_shape attention_launch(std::int32_t num_shares, int waves, int lanes) {
  auto shape = launch_shape{};
  shape.grid.x = static_cast<std::uint32_t>((num_shares + waves - 1) / waves);
  shape.workgroup.x = static_cast<std::uint32_t>(waves * lanes);
  return shape;
}

template <class Element, class Numbers, int HeadDim, int Tiles, class Matrix>
[[nodiscard]] runtime::status launch_matrix_attention(const attention_call& call, runtime::stream stream) {
  using shape = tile_shape<Element, HeadDim, Matrix>;
  constexpr auto geometry = attention_geometry::of(shape::row_bytes, Element::scaled);
  auto launched = attention_launch(call.plan.num_shares, geometry.waves, Matrix::lanes);
  launched.dynamic_shared_bytes =
      static_cast<std::size_t>(geometry.waves * tiles_ahead<shape, Matrix, geometry.stages>::wave_bytes);
  return launch_following<attend_kernel<Element, Numbers, HeadDim, Tiles, Matrix, geometry.stages, geometry.waves>>(
      launched, stream, call, divider<std::int32_t>(call.view.block_size));
}

template <class Element, class Numbers>
[[nodiscard]] runtime::status launch_plain_attention(const attention_call& call, runtime::stream stream) {
  using storage = typename Element::storage;
  constexpr auto chunk = vector_bytes / static_cast<int>(sizeof(storage));
  const auto aligned = call.view.head_dim % chunk == 0 && aligned_rows<storage, chunk>(call.view);
  return for_head_dim(call.view.head_dim, [&](auto head_dim) {
    constexpr auto waves = plain_attention_geometry.waves;
    return launch<plain_attend_kernel<Element, Numbers, decltype(head_dim)::value, waves>>(
        attention_launch(call.plan.num_shares, waves, current_wave_size()), stream, call,
        divider<std::int32_t>(call.view.block_size), aligned);
  });
}

template <class Element, class Numbers>
[[nodiscard]] runtime::status launch_attention(const attention_call& call, std::int32_t columns,
                                               runtime::stream stream) {
  if (columns == 1) {
    return launch_plain_attention<Element, Numbers>(call, stream);
  }
  if constexpr (sizeof(typename Element::storage) < 4) {
    return for_head_dim(call.view.head_dim, [&](auto head_dim) {
      return with_matrix(columns, [&](auto tiles, auto matrix) {
        constexpr auto dim = decltype(head_dim)::value;
        // For the largest dimension, two matrices side by side need more registers than exist.
        if constexpr (dim <= decltype(matrix)::largest_dim && (dim <= 128 || decltype(tiles)::value == 1)) {
          return launch_matrix_attention<Element, Numbers, dim, decltype(tiles)::value, decltype(matrix)>(call, stream);
        } else {
          return runtime::error_invalid_value;
        }
      });
    });
  }
  return runtime::error_invalid_value;
}

template <class Element, class Numbers>
[[nodiscard]] runtime::status decode_attention(const attention_call& call, const attention_plan& plan,
                                               std::int32_t max_columns, runtime::stream stream) {
  auto planned = call;
  planned.plan = attention_plan_view::of(plan);
  const auto launched = launch_attention<Element, Numbers>(planned, plan.shape.columns, stream);
  if (launched != runtime::success) {
    return launched;
  }
  const auto layout = attention_plan_layout(plan.shape);
  const auto used_columns = std::min(max_columns, plan.shape.columns);
  const auto merges = layout.max_merges * used_columns;
  auto shape = launch_shape{};
  shape.grid.x = static_cast<std::uint32_t>(std::clamp(merges / merge_groups, 1, most_merging_workgroups));
  shape.workgroup.x = static_cast<std::uint32_t>(merge_lanes * merge_groups);
  return for_head_dim(call.view.head_dim, [&](auto head_dim) {
    return launch_following<merge_kernel<Numbers, decltype(head_dim)::value>>(
        shape, stream, planned, plan.shape.columns, used_columns);
  });
}

}  // namespace pagedkv::kernels
