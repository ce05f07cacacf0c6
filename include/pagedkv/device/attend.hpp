#pragma once

#include <pagedkv/attention/plan.hpp>
#include <pagedkv/core/storage_formats.hpp>
#include <pagedkv/device/checks.hpp>
#include <pagedkv/device/device.hpp>
#include <pagedkv/kernels/attention/launcher.hpp>
#include <pagedkv/policy/element/bfloat16.hpp>
#include <pagedkv/policy/element/concept.hpp>
#include <pagedkv/policy/element/float16.hpp>
#include <pagedkv/policy/element/float32.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#if defined(PAGEDKV_COMPILES_KERNELS)
  #include <pagedkv/kernels/attention/attend.hpp>
#endif

namespace pagedkv::hip {

/// The number types that attention kernels support: those of queries and outputs, and those that matrix instructions
/// multiply.
struct attention_numbers {
  using single = float32;
  using half = float16;
  using brain = bfloat16;

  /// Numbers of eight bits, int8 included, are exact in binary16.
  template <class Element>
  using of_products = std::conditional_t<std::is_same_v<Element, bfloat16>, bfloat16, float16>;
};

/// Whether rows of keys and values start at multiples of 16 bytes and have lengths that are: matrix instructions need
/// this.
template <element Element>
[[nodiscard]] bool aligned_for_attention(const block_storage_view& view) noexcept {
  constexpr auto size = std::int64_t{sizeof(typename Element::storage)};
  const auto aligned = [](std::int64_t bytes) { return bytes % 16 == 0; };
  const auto rows_aligned = [&](const block_storage_view& rows) {
    return aligned(rows.token_stride * size) && aligned(rows.head_stride * size) && aligned(rows.head_dim * size);
  };
  return aligned(view.block_stride) && aligned(view.layer_stride) && aligned(view.value_offset) &&
         rows_aligned(view.keys_alone()) && rows_aligned(view.values_alone()) &&
         reinterpret_cast<std::uintptr_t>(view.base) % 16 == 0;
}

/// The batches that a plan is made for.
struct attention_use {
  std::int32_t max_rows = 1;          // with elements of 8 bits and more than 128 numbers, `columns` depends on it
  std::int32_t max_queries = 1;       // query tokens of a row
  std::int32_t max_query_tokens = 0;  // of a batch of chunks of prompts; 0: decoding
  bool with_trees = false;            // batches have tree masks
  bool shares_prefixes = false;       // plans may let sequences share the read of a prefix
  listed_blocks lists = listed_blocks::none;  // as in `attention_batch::lists`
  std::int32_t window = 0;                    // that of the options of each call, as in `attention_options::window`
  // Entries of a batch's block tables, of all rows, that the workspace has room for as bfloat16: each call expands
  // their blocks once, and its queries read the copy. For prompts over int8 and float8. 0: queries read the blocks as
  // they are stored. Ignored where this cannot be, so that engines ask on every device alike: for decoding, other
  // elements, latent vectors, rows of no multiple of 8 numbers or that do not start at multiples of 8 bytes, layouts
  // without strides, lists that the kernel does not take, and without matrix instructions for bfloat16 rows of this
  // length. `attention_shape::expanded_blocks` is 0 then.
  std::int32_t max_expanded_blocks = 0;
};

/// Whether the kernel whose workgroups share tasks supports the storage.
template <element Element>
[[nodiscard]] bool has_group_attention(const runtime::device_properties& device,
                                       const block_storage_view& view) noexcept {
  const auto dims = kernels::group_dims_for<Element>(view.head_dim, view.dim_of_values());
  return kernels::has_matrix_attention<Element>(device, dims.keys) && aligned_for_attention<Element>(view) &&
         view.head_dim <= dims.keys && view.dim_of_values() <= dims.values;
}

/// The view of blocks of 16-bit numbers that stand for those of a storage: one layer, heads before tokens, no gaps.
/// `base`: null, where only strides matter.
[[nodiscard]] inline block_storage_view expanded_view(const block_storage_view& view, std::int32_t num_blocks,
                                                      std::byte* base = nullptr) noexcept {
  constexpr auto number_bytes = std::int64_t{2};
  const auto rows = std::int64_t{view.block_size} * view.num_kv_heads;
  auto expanded = block_storage_view{};
  expanded.base = base;
  expanded.num_blocks = num_blocks;
  expanded.num_layers = 1;
  expanded.block_size = view.block_size;
  expanded.num_kv_heads = view.num_kv_heads;
  expanded.head_dim = view.head_dim;
  expanded.token_stride = view.head_dim;
  expanded.head_stride = std::int64_t{view.block_size} * view.head_dim;
  expanded.value_dim = view.value_dim;
  expanded.value_token_stride = view.value_dim;
  expanded.value_head_stride = std::int64_t{view.block_size} * view.value_dim;
  expanded.value_offset = rows * view.head_dim * number_bytes;
  const auto end = expanded.value_offset + rows * view.dim_of_values() * number_bytes;
  expanded.block_stride = (end + 255) / 256 * 256;
  expanded.layer_stride = expanded.block_stride * num_blocks;
  return expanded;
}

/// Whether kernels expand these blocks: keys and values are rows that start at multiples of 8 bytes and are multiples
/// of 8 numbers long.
template <element Element>
[[nodiscard]] bool can_expand(const block_storage_view& view) noexcept {
  if constexpr (kernels::is_expandable<Element>) {
    const auto aligned = [](std::int64_t bytes) { return bytes % 8 == 0; };
    const auto rows_aligned = [&](const block_storage_view& rows) {
      return aligned(rows.token_stride) && aligned(rows.head_stride) && aligned(rows.head_dim);
    };
    return view.strided() && !view.is_latent() && aligned(view.block_stride) && aligned(view.layer_stride) &&
           aligned(view.value_offset) && rows_aligned(view.keys_alone()) && rows_aligned(view.values_alone()) &&
           reinterpret_cast<std::uintptr_t>(view.base) % 8 == 0;
  }
  return false;
}

/// The shape of attention plans for this storage on a device: `kernel`, `columns`, `num_shares` and `joined_shares`
/// follow from the device, the storage and the use, the other members from the arguments. Constant time. Errors:
/// `backend_failure` when the device does not exist.
///
/// Prefixes are shared only where matrix instructions multiply keys with many columns: plain arithmetic, and the
/// products of latent vectors, take longer than the read that sharing would save.
template <element Element>
[[nodiscard]] result<attention_shape> attention_shape_on(int device, const block_storage_view& view,
                                                         std::int32_t group_size, const attention_use& use) {
  auto properties = runtime::device_properties{};
  const auto known = runtime::get_device_properties(&properties, device);
  if (known != runtime::success) {
    return to_result(known, "the properties of a device").error();
  }
  if constexpr (kernels::is_expandable<Element>) {
    if (use.max_expanded_blocks > 0 && use.max_query_tokens > 0 && can_expand<Element>(view)) {
      const auto expanded = expanded_view(view, use.max_expanded_blocks);
      auto shape = attention_shape_on<attention_numbers::brain>(device, expanded, group_size, use);
      if (shape && shape->kernel == kernel_kind::groups) {
        shape->expanded_blocks = use.max_expanded_blocks;
        shape->expanded_block_bytes = expanded.block_stride;
        return shape;
      }
    }
  }
  auto shape = attention_shape{};
  shape.block_size = view.block_size;
  shape.num_kv_heads = view.num_kv_heads;
  shape.group_size = group_size;
  shape.window = use.window;
  shape.max_rows = use.max_rows;
  shape.max_query_tokens = use.max_query_tokens;
  shape.lists = use.lists;
  // Tiles of a list end with their block, which matrix instructions do not do.
  const auto divides_blocks = use.lists == listed_blocks::none || view.block_size % attention_tile == 0;
  auto geometry = kernels::plain_attention_geometry;
  auto workgroups_of_share = 1;
  shape.kernel = kernel_kind::plain;
  shape.columns = 1;
  if (!divides_blocks) {
    // plain arithmetic
  } else if (view.is_latent() && view.head_dim > kernels::largest_attention_dim) {
    if (aligned_for_attention<Element>(view) &&
        kernels::has_latent_attention<Element>(properties, view.head_dim, view.dim_of_values())) {
      geometry = {1, 1, kernels::latent_residency};
      shape.kernel = kernel_kind::latent;
      workgroups_of_share = kernels::latent_workgroups(group_size);
      shape.columns = kernels::latent_columns * workgroups_of_share;
    }
  } else if (view.has_own_values() || use.with_trees || use.max_query_tokens > 0) {
    const auto takes_lists = kernels::group_takes_lists(properties.matrices == runtime::matrix_instructions::mfma);
    if (has_group_attention<Element>(properties, view) && (use.lists == listed_blocks::none || takes_lists)) {
      geometry = {1, 1, kernels::group_residency(properties.matrices)};
      shape.kernel = kernel_kind::groups;
      shape.columns =
          kernels::group_columns(properties, kernels::group_dims_for<Element>(view.head_dim, view.dim_of_values()));
      shape.deals_tasks = use.max_query_tokens > 0 && kernels::group_takes_dealt_tasks(properties.matrices);
    }
  } else if (kernels::has_matrix_attention<Element>(properties, view.head_dim) &&
             aligned_for_attention<Element>(view)) {
    const auto dim = view.head_dim <= 64 ? 64 : (view.head_dim <= 128 ? 128 : kernels::largest_attention_dim);
    const auto mma = properties.matrices == runtime::matrix_instructions::mma;
    const auto wide = group_size * use.max_queries > 8 &&
                      kernels::has_wide_tasks<Element>(dim, std::int64_t{use.max_rows} * view.num_kv_heads);
    const auto tiles = mma && wide ? 2 : 1;
    geometry = kernels::attention_geometry::of<Element>(dim, tiles);
    shape.kernel = kernel_kind::waves;
    shape.columns = !mma || tiles > 1 ? 16 : 8;
    shape.joined_shares = mma ? geometry.shares : 1;
  }
  const auto num_workgroups = properties.num_processors * geometry.residency;
  shape.num_shares = std::max(num_workgroups / workgroups_of_share, 1) * geometry.shares;
  const auto multiplies_columns = shape.kernel == kernel_kind::waves || shape.kernel == kernel_kind::groups;
  if (use.shares_prefixes && multiplies_columns && has_group_attention<Element>(properties, view)) {
    shape.prefix_columns =
        kernels::group_columns(properties, kernels::group_dims_for<Element>(view.head_dim, view.dim_of_values()));
    shape.prefix_shares = properties.num_processors * kernels::group_residency(properties.matrices);
    if (sizeof(typename Element::storage) == 1) {
      shape.prefix_costs = kernels::prefix_costs_of_bytes(properties);
    }
  }
  return shape;
}

/// The shape for decoding without trees. `max_queries`: query tokens of a row. Constant time.
template <element Element>
[[nodiscard]] result<attention_shape> attention_shape_on(int device, const block_storage_view& view,
                                                         std::int32_t group_size, std::int32_t max_rows,
                                                         std::int32_t max_queries = 1) {
  return attention_shape_on<Element>(device, view, group_size, attention_use{max_rows, max_queries, 0, false, false});
}

/// Rows as kernels read or write them.
template <element Input, class Number>
[[nodiscard]] kernels::number_rows describe_rows(const token_rows<Number>& rows, std::int32_t dim) noexcept {
  constexpr auto size = std::int64_t{sizeof(Number)};
  auto described = kernels::number_rows{};
  described.data = const_cast<typename Input::storage*>(rows.data);
  described.token_stride = rows.token_stride;
  described.head_stride = rows.head_stride;
  described.type = Input::name == float32::name ? kernels::number_type::float32
                                                : (Input::name == float16::name ? kernels::number_type::float16
                                                                                : kernels::number_type::bfloat16);
  described.dim = dim;
  described.aligned = reinterpret_cast<std::uintptr_t>(rows.data) % 16 == 0 && rows.token_stride * size % 16 == 0 &&
                      rows.head_stride * size % 16 == 0 && dim % 16 == 0;
  return described;
}

/// Attention over a copy of the blocks in 16-bit numbers, which it makes first.
template <element Element>
[[nodiscard]] runtime::status attend_expanded(kernels::attention_call call, const attention_plan& plan,
                                              std::int32_t max_columns, runtime::stream stream) {
  using brain = attention_numbers::brain;
  const auto layout = attention_workspace_layout(plan.shape, call.output.dim);
  auto expansion = kernels::block_expansion{};
  expansion.from = call.view;
  expansion.layer = call.layer;
  expansion.indices = call.indices;
  expansion.to = expanded_view(call.view, plan.shape.expanded_blocks, plan.workspace + layout.expanded_blocks);
  expansion.ids = reinterpret_cast<block_id*>(plan.workspace + layout.expanded_ids);
  const auto expanded = kernels::expand_blocks<Element, brain>(expansion, plan, stream);
  if (expanded != runtime::success) {
    return expanded;
  }
  call.view = expansion.to;
  call.layer = 0;
  call.indices = expansion.ids;
  return kernels::attend_in_groups<brain, attention_numbers>(call, plan, max_columns, stream);
}

/// Checks that plan and storage fit the call. Constant time. Errors: `invalid_argument`.
template <element Element>
[[nodiscard]] result<void> check_attention(const block_storage_view& view, std::int32_t layer,
                                           const attention_batch& batch, std::int32_t num_heads,
                                           const attention_options& options) noexcept {
  const auto& shape = batch.plan.shape;
  if (layer < 0 || layer >= view.num_layers) {
    return pagedkv::detail::bad_index("layer", layer, view.num_layers);
  }
  if (!view.strided()) {
    return error{error_code::invalid_argument,
                 "numbers in a piece of the layout, of which attention needs a strided one: nhd or hnd,",
                 view.key_pieces.piece, 0};
  }
  if (const auto checked = check_strides(view); !checked) {
    return checked;
  }
  if (const auto checked = validate(options); !checked) {
    return checked;
  }
  const auto latent = shape.kernel == kernel_kind::latent;
  if (latent && (!view.is_latent() || view.head_dim != kernels::largest_plain_dim ||
                 view.dim_of_values() != kernels::largest_value_dim)) {
    return error{error_code::invalid_argument, "latent vectors in the storage, for which attention_batch.plan was made,",
                 0, 1};
  }
  const auto plain = shape.kernel == kernel_kind::plain;
  const auto long_rows = plain || latent;
  const auto longest_key = long_rows ? kernels::largest_plain_dim : kernels::largest_attention_dim;
  if (view.head_dim > longest_key) {
    return error{error_code::invalid_argument, "head_dim of the storage, for attention,", view.head_dim, longest_key};
  }
  const auto longest_value = long_rows ? kernels::largest_value_dim : kernels::largest_attention_dim;
  if (view.dim_of_values() > longest_value) {
    return error{error_code::invalid_argument, "value_dim of the storage, for attention,", view.dim_of_values(),
                 longest_value};
  }
  if (batch.plan.words == nullptr || batch.plan.workspace == nullptr) {
    return error{error_code::invalid_argument, "attention_batch.plan.words or .workspace, which is null,", 0};
  }
  if (shape.block_size != view.block_size) {
    return error{error_code::invalid_argument, "block_size of attention_batch.plan, which is not the storage's,",
                 shape.block_size, view.block_size};
  }
  if (shape.num_kv_heads != view.num_kv_heads) {
    return error{error_code::invalid_argument, "num_kv_heads of attention_batch.plan, which is not the storage's,",
                 shape.num_kv_heads, view.num_kv_heads};
  }
  if (shape.window != options.window) {
    return error{error_code::invalid_argument, "window of attention_batch.plan, which is not that of the options,",
                 shape.window, options.window};
  }
  if (shape.lists != batch.lists.kind) {
    return error{error_code::invalid_argument, "kind of the lists of attention_batch.plan, which is not the batch's,",
                 static_cast<std::int64_t>(shape.lists), static_cast<std::int64_t>(batch.lists.kind)};
  }
  if (shape.lists != listed_blocks::none && !plain && view.block_size % attention_tile != 0) {
    return error{error_code::invalid_argument,
                 "kernel of attention_batch.plan, which reads no lists of blocks whose size no tile divides,",
                 static_cast<std::int64_t>(shape.kernel), 0};
  }
  if (num_heads != shape.num_kv_heads * shape.group_size) {
    return error{error_code::invalid_argument, "num_heads of the queries, which are not those of attention_batch.plan,",
                 num_heads, std::int64_t{shape.num_kv_heads} * shape.group_size};
  }
  const auto expands = shape.expanded_blocks > 0;
  const auto expanded_bytes =
      can_expand<Element>(view) ? expanded_view(view, shape.expanded_blocks).block_stride : std::int64_t{0};
  if (expands && shape.expanded_block_bytes != expanded_bytes) {
    return error{error_code::invalid_argument,
                 "expanded_block_bytes of attention_batch.plan, which are not those of the storage's blocks,",
                 shape.expanded_block_bytes, expanded_bytes};
  }
  const auto any_alignment = expands || (plain && !packs_tokens<Element>);
  if (!any_alignment && !aligned_for_attention<Element>(view)) {
    return error{error_code::invalid_argument,
                 "kernel of attention_batch.plan, which reads no keys and values that are not aligned,",
                 static_cast<std::int64_t>(shape.kernel), 0};
  }
  if (shape.kernel == kernel_kind::waves && (view.has_own_values() || !batch.tree_masks.empty())) {
    return error{error_code::invalid_argument,
                 "kernel of attention_batch.plan, which takes no tree masks, nor values unlike keys,",
                 static_cast<std::int64_t>(shape.kernel), static_cast<std::int64_t>(kernel_kind::groups)};
  }
  return {};
}

/// Enqueues attention of the batch's queries over one layer's blocks, by the plan in the batch. `Input` and `Output`
/// are unscaled elements. All memory that the call points at is device-accessible and stays valid until the work is
/// done. The plan must have been made for this batch, with the same rows and lengths; otherwise debug builds of the
/// kernels stop. All plans of a shape use equal launches, so a captured graph may be replayed after
/// `attention_planner::update` has written new words to the same address. Blocks before every query's window are not
/// read.
///
/// float32 is exact to its rounding. Other elements use matrix instructions where the library supports those of the
/// device: queries and probabilities are rounded to bfloat16 over bfloat16, to float16 over float16 and elements of 8
/// bits, and accumulated in float32. Over elements of 8 bits, Hopper's products of warpgroups round them to bfloat16,
/// and values times the scales of tokens. There, numbers of V with a token's scale below 2^-64 count as zeros, and a
/// NaN in a token that only some of a row's queries see reaches all of the row's results. Expanded blocks
/// (`attention_use::max_expanded_blocks`) are bfloat16: keys and values times their scales are rounded to it.
///
/// Rows above 256 numbers use plain arithmetic, except latent vectors of 576 numbers on NVIDIA, in 16-bit elements or
/// packed tokens, which products read as bfloat16. Packed tokens start at multiples of 16 bytes.
///
/// Constant time for the caller; on the device, linear in the tokens that each query reads, times its heads.
///
/// Errors, before anything is enqueued: `invalid_argument` for a layer, a number of heads, a negative window or cap,
/// keys above 576 or values above 512 numbers, rows of queries or results of another shape, or a plan that does not
/// fit; `backend_failure` when the launch fails.
template <element Element, element Input = float32, element Output = Input>
  requires(is_unscaled<Input> && is_unscaled<Output>)
[[nodiscard]] result<void> attend(const block_storage_view& view, std::int32_t layer, const attention_batch& batch,
                                  const token_rows<const typename Input::storage>& queries,
                                  const attention_output<typename Output::storage>& output,
                                  const attention_options& options, runtime::stream stream) noexcept {
  if (const auto checked = check_attention<Element>(view, layer, batch, queries.num_heads, options); !checked) {
    return checked;
  }
  if (batch.num_rows() == 0) {
    return {};
  }
  const auto num_queries = batch.query_indptr.empty() ? static_cast<std::int64_t>(batch.num_rows())
                                                      : std::int64_t{batch.query_indptr.back()};
  if (const auto checked = validate(view, queries, output.rows, num_queries); !checked) {
    return checked;
  }
  const auto layout = attention_plan_layout(batch.plan.shape);
  auto call = kernels::attention_call{};
  call.view = view;
  call.layer = layer;
  call.group_size = batch.plan.shape.group_size;
  call.indices = batch.indices.data();
  call.queries = describe_rows<Input>(queries, view.head_dim);
  call.output = describe_rows<Output>(output.rows, view.dim_of_values());
  call.log_sum_exp = output.log_sum_exp;
  call.num_query_heads = queries.num_heads;
  call.scale = options.scale == 0.0f ? 1.0f / std::sqrt(static_cast<float>(view.head_dim)) : options.scale;
  call.soft_cap = options.soft_cap;
  call.window = options.window;
  call.alibi_slopes = options.alibi_slopes;
  call.sinks = options.sinks;
  call.tree_masks = batch.tree_masks.empty() ? nullptr : batch.tree_masks.data();
  call.lists = {batch.lists.kind, batch.lists.blocks.data(),
                kernels::divider<std::int32_t>(attention_tiles_of_block(view.block_size))};
  call.partial_stride = (view.dim_of_values() + 3) / 4 * 4;
  call.partials = reinterpret_cast<float*>(batch.plan.workspace);
  call.partial_sums = call.partials + layout.num_columns * call.partial_stride;
  // Without a number of queries per row, each row has one query, and a task has no more columns than heads. This sizes
  // a grid; the plan says how many columns there are.
  const auto max_columns = batch.query_indptr.empty() ? call.group_size : batch.plan.shape.columns;
  if constexpr (kernels::is_expandable<Element>) {
    if (batch.plan.shape.expanded_blocks > 0) {
      return to_result(attend_expanded<Element>(call, batch.plan, max_columns, stream), "launch of attention");
    }
  }
  return to_result(kernels::decode_attention<Element, attention_numbers>(call, batch.plan, max_columns, stream),
                   "launch of attention");
}

}  // namespace pagedkv::hip
