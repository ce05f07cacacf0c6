#pragma once

#include <pagedkv/core/storage_formats.hpp>
#include <pagedkv/kernels/attention/expand.hpp>
#include <pagedkv/kernels/attention/group.hpp>
#include <pagedkv/kernels/attention/latent.hpp>
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

/// `shares`: of a workgroup; `lanes`: of a share.
[[nodiscard]] inline launch_shape attention_launch(std::int32_t num_shares, int shares, int lanes) {
  auto shape = launch_shape{};
  shape.grid.x = static_cast<std::uint32_t>((num_shares + shares - 1) / shares);
  shape.workgroup.x = static_cast<std::uint32_t>(shares * lanes);
  return shape;
}

template <class Element, class Numbers, int HeadDim, int Tiles, class Matrix>
[[nodiscard]] runtime::status launch_matrix_attention(const attention_call& call, runtime::stream stream) {
  constexpr auto geometry = attention_geometry::of<Element>(HeadDim, Tiles);
  using parts = attend_parts<Element, Numbers, HeadDim, Tiles, Matrix, geometry.stages, geometry.shares>;
  auto launched = attention_launch(call.plan.num_shares, geometry.shares, parts::waves * Matrix::lanes);
  const auto joined = call.plan.joined_shares;
  if (joined != 1 && (!parts::joins || joined != geometry.shares)) {
    return runtime::error_invalid_value;
  }
  launched.dynamic_shared_bytes = static_cast<std::size_t>(parts::shared_bytes);
  return launch_following<attend_kernel<Element, Numbers, HeadDim, Tiles, Matrix, geometry.stages, geometry.shares>>(
      launched, stream, call, divider<std::int32_t>(call.view.block_size));
}

template <class Element, class Numbers>
[[nodiscard]] runtime::status launch_plain_attention(const attention_call& call, runtime::stream stream) {
  using storage = typename Element::storage;
  constexpr auto chunk = vector_bytes / static_cast<int>(sizeof(storage));
  const auto aligned_like = [](const block_storage_view& view) {
    return view.head_dim % chunk == 0 && aligned_rows<storage, chunk>(view);
  };
  const auto aligned = aligned_like(call.view) && aligned_like(call.view.values_alone());
  const auto launch_with = [&](auto head_dim, auto general) {
    constexpr auto shares = plain_attention_geometry.shares;
    return launch<plain_attend_kernel<Element, Numbers, decltype(head_dim)::value, decltype(general)::value, shares>>(
        attention_launch(call.plan.num_shares, shares, current_wave_size()), stream, call,
        divider<std::int32_t>(call.view.block_size), aligned);
  };
  if constexpr (!packs_tokens<Element>) {
    if (!call.view.has_own_values() && call.view.head_dim <= largest_attention_dim && call.tree_masks == nullptr) {
      return for_head_dim(call.view.head_dim, [&](auto head_dim) { return launch_with(head_dim, std::false_type{}); });
    }
  }
  return launch_with(std::integral_constant<int, general_plain_dim<Element>>{}, std::true_type{});
}

/// Calls `use` with the dimensions of keys and values of the kernel whose workgroups share tasks.
template <class Element, class Use>
[[nodiscard]] runtime::status for_group_dims(std::int32_t key_dim, std::int32_t value_dim, Use use) {
  const auto dims = group_dims_for<Element>(key_dim, value_dim);
  if constexpr (sizeof(typename Element::storage) == 2) {
    if (dims.keys == 64) {
      return use(std::integral_constant<int, 64>{}, std::integral_constant<int, 64>{});
    }
    if (dims.keys == 192) {
      return use(std::integral_constant<int, 192>{}, std::integral_constant<int, 128>{});
    }
    if (dims.keys == 256) {
      return use(std::integral_constant<int, 256>{}, std::integral_constant<int, 256>{});
    }
  }
  return use(std::integral_constant<int, 128>{}, std::integral_constant<int, 128>{});
}

template <class Element, class Numbers>
[[nodiscard]] runtime::status launch_group_attention(const attention_call& call, runtime::stream stream) {
  return for_group_dims<Element>(call.view.head_dim, call.output.dim, [&](auto key_dim, auto value_dim) {
    return with_matrix_of_device([&](auto matrix) {
      using matrix_type = decltype(matrix);
      constexpr auto keys = decltype(key_dim)::value;
      constexpr auto values = decltype(value_dim)::value;
      constexpr auto waves = group_lanes / matrix_type::lanes;
      constexpr auto tiles = matrix_type::columns == 8 && values <= 128 ? 2 : 1;
      if (call.lists.exist() && !group_takes_lists(matrix_type::lanes == 64)) {
        return runtime::error_invalid_value;
      }
      if constexpr (keys <= matrix_type::largest_dim) {
        constexpr auto kernel = group_attend_kernel<Element, Numbers, keys, values, tiles, matrix_type, waves>;
        const auto shared_bytes = prefill_shared_bytes<kernel, Element, keys, values>();
        const auto workgroups = shared_bytes > 0 ? 1 : group_walk<matrix_type, values>::workgroups(call.plan);
        auto shape =
            attention_launch(call.plan.num_shares * workgroups, 1, prefill_lanes<Element, keys, values>(shared_bytes));
        shape.dynamic_shared_bytes = shared_bytes;
        return launch_following<kernel>(shape, stream, call, divider<std::int32_t>(call.view.block_size));
      } else {
        return runtime::error_invalid_value;
      }
    });
  });
}

template <class Element, class Numbers>
[[nodiscard]] runtime::status launch_latent_attention(const attention_call& call, std::int32_t columns,
                                                      runtime::stream stream) {
  return with_matrix_of_device([&](auto matrix) {
    using matrix_type = decltype(matrix);
    if constexpr (is_latent_element<Element> && matrix_type::columns == 8) {
      constexpr auto kernel = latent_attend_kernel<Element, Numbers, matrix_type>;
      const auto shared_bytes = latent_shared_bytes<kernel, Element>();
      const auto num_workgroups = call.plan.num_shares * (columns / latent_columns);
      auto shape = attention_launch(num_workgroups, 1, latent_lanes<Element>(shared_bytes));
      shape.dynamic_shared_bytes = shared_bytes;
      return launch_following<kernel>(shape, stream, call, divider<std::int32_t>(call.view.block_size), columns);
    } else {
      return runtime::error_invalid_value;
    }
  });
}

template <class Element, class Numbers>
[[nodiscard]] runtime::status launch_wave_attention(const attention_call& call, std::int32_t columns,
                                                    runtime::stream stream) {
  return for_head_dim(call.view.head_dim, [&](auto head_dim) {
    return with_matrix(columns, [&](auto tiles, auto matrix) {
      constexpr auto dim = decltype(head_dim)::value;
      if constexpr (dim <= decltype(matrix)::largest_dim) {
        return launch_matrix_attention<Element, Numbers, dim, decltype(tiles)::value, decltype(matrix)>(call, stream);
      } else {
        return runtime::error_invalid_value;
      }
    });
  });
}

/// Whether there are kernels with matrix instructions for rows of the element, of any length.
template <class Element>
inline constexpr bool multiplies_matrices = sizeof(typename Element::storage) < 4 && !packs_tokens<Element>;

template <class Element, class Numbers>
[[nodiscard]] runtime::status launch_attention(const attention_call& call, const attention_shape& shape,
                                               runtime::stream stream) {
  using enum kernel_kind;
  if (shape.kernel == plain) {
    return launch_plain_attention<Element, Numbers>(call, stream);
  }
  if constexpr (packs_tokens<Element>) {
    return shape.kernel == latent ? launch_latent_attention<Element, Numbers>(call, shape.columns, stream)
                                  : runtime::error_invalid_value;
  } else if constexpr (multiplies_matrices<Element>) {
    return shape.kernel == waves    ? launch_wave_attention<Element, Numbers>(call, shape.columns, stream)
           : shape.kernel == groups ? launch_group_attention<Element, Numbers>(call, stream)
                                    : launch_latent_attention<Element, Numbers>(call, shape.columns, stream);
  }
  return runtime::error_invalid_value;
}

/// Reads the prefixes that sequences share. Their partial results follow those of the sequences.
template <class Element, class Numbers>
[[nodiscard]] runtime::status launch_prefix_attention(const attention_call& call, const attention_plan& plan,
                                                      runtime::stream stream) {
  if constexpr (multiplies_matrices<Element>) {
    auto planned = call;
    planned.plan = attention_plan_view::of_prefixes(plan);
    const auto own_columns = attention_plan_layout(plan.shape).own_columns;
    planned.partials += own_columns * call.partial_stride;
    planned.partial_sums += own_columns * 2;
    planned.tree_masks = nullptr;
    return launch_group_attention<Element, Numbers>(planned, stream);
  }
  return runtime::error_invalid_value;
}

/// Merges the partial results of what was launched before.
template <class Numbers>
[[nodiscard]] runtime::status launch_merge(const attention_call& planned, const attention_plan& plan,
                                           std::int32_t max_columns, runtime::stream stream) {
  const auto layout = attention_plan_layout(plan.shape);
  // Without prefixes, a share begins one merge at most. Workgroups loop, so fewer suffice for more: also for a batch
  // with more queries in a row than that of the call when a graph was captured.
  const auto used_columns = std::min(max_columns, plan.shape.columns);
  const auto max_merges = plan.shape.may_share_prefixes() && !plan.launches_prefixes()
                              ? std::min(layout.max_merges, plan.shape.num_shares)
                              : layout.max_merges;
  const auto merges = max_merges * used_columns;
  auto shape = launch_shape{};
  shape.grid.x = static_cast<std::uint32_t>(std::clamp(merges / merge_groups, 1, most_merging_workgroups));
  shape.workgroup.x = static_cast<std::uint32_t>(merge_lanes * merge_groups);
  const auto launch_kernel = [&](auto head_dim) {
    constexpr auto dim = decltype(head_dim)::value;
    return plan.launches_prefixes() ? launch_following<merge_kernel<Numbers, dim, true>>(
                                          shape, stream, planned, plan.shape.columns)
                                    : launch_following<merge_kernel<Numbers, dim, false>>(
                                          shape, stream, planned, plan.shape.columns);
  };
  return planned.output.dim > largest_attention_dim ? launch_kernel(std::integral_constant<int, largest_value_dim>{})
                                                    : for_head_dim(planned.output.dim, launch_kernel);
}

template <class Element, class Numbers>
[[nodiscard]] runtime::status decode_attention(const attention_call& call, const attention_plan& plan,
                                               std::int32_t max_columns, runtime::stream stream) {
  auto planned = call;
  planned.plan = attention_plan_view::of(plan);
  auto launched = launch_attention<Element, Numbers>(planned, plan.shape, stream);
  // Second, so that its workgroups need not wait: the first has waited for all earlier kernels.
  if (launched == runtime::success && plan.launches_prefixes()) {
    launched = launch_prefix_attention<Element, Numbers>(call, plan, stream);
  }
  return launched == runtime::success ? launch_merge<Numbers>(planned, plan, max_columns, stream) : launched;
}

template <class Element, class Numbers>
[[nodiscard]] runtime::status attend_in_groups(const attention_call& call, const attention_plan& plan,
                                               std::int32_t max_columns, runtime::stream stream) {
  auto planned = call;
  planned.plan = attention_plan_view::of(plan);
  const auto launched = launch_group_attention<Element, Numbers>(planned, stream);
  return launched == runtime::success ? launch_merge<Numbers>(planned, plan, max_columns, stream) : launched;
}

}  // namespace pagedkv::kernels
