#pragma once

#include <pagedkv/attention/attention.hpp>
#include <pagedkv/attention/plan_layout.hpp>
#include <pagedkv/core/ids.hpp>
#include <pagedkv/kernels/divider.hpp>
#include <pagedkv/storage/view.hpp>

#include <cstdint>

namespace pagedkv::kernels {

/// The types that queries and outputs may have. Distinguished at run time, because each piece accesses them only once.
enum class number_type : std::int32_t { float32, float16, bfloat16 };

/// Rows of queries or outputs.
struct number_rows {
  void* data = nullptr;
  std::int64_t token_stride = 0;
  std::int64_t head_stride = 0;
  number_type type = number_type::float32;
  std::int32_t dim = 0;  // numbers of a row
  bool aligned = false;  // rows start at multiples of 16 bytes and are a multiple of 16 numbers long
};

/// A plan in memory that kernels read.
struct attention_plan_view {
  const attention_row* rows = nullptr;
  const attention_share* shares = nullptr;  // num_shares + 1
  const attention_merge* merges = nullptr;
  const attention_counts* counts = nullptr;
  const std::int32_t* large = nullptr;   // indices of the large merges
  std::int32_t num_shares = 0;
  std::int32_t split_tiles = 0;  // pieces end at multiples of this
  std::int32_t joined_shares = 1;  // in some plans of the shape
  std::int32_t following = 0;     // bytes from `counts` to the list of dealt tasks
  const attention_prefix_query* prefix_queries = nullptr;    // [query]; null unless the plan is that of shared prefixes
  const attention_prefix_results* prefix_results = nullptr;  // [merge]; null if no prefix is shared
  std::int32_t prefix_columns = 0;
  std::int32_t columns = 0;              // of a task
  std::int64_t first_prefix_column = 0;  // among the columns of all partial results

  [[nodiscard]] static attention_plan_view of(const attention_plan& plan) {
    const auto layout = attention_plan_layout(plan.shape);
    auto view = attention_plan_view{};
    view.counts = reinterpret_cast<const attention_counts*>(plan.words);
    view.rows = reinterpret_cast<const attention_row*>(plan.words + layout.rows);
    view.shares = reinterpret_cast<const attention_share*>(plan.words + layout.shares);
    view.merges = reinterpret_cast<const attention_merge*>(plan.words + layout.merges);
    view.large = reinterpret_cast<const std::int32_t*>(plan.words + layout.large);
    view.following = static_cast<std::int32_t>(layout.following);
    view.num_shares = plan.shape.num_shares;
    view.columns = plan.shape.columns;
    view.split_tiles = plan.shape.split_tokens > 0 ? plan.shape.split_tokens / attention_tile : 1 << 30;
    view.joined_shares = plan.shape.split_tokens > 0 ? 1 : plan.shape.joined_shares;
    if (plan.launches_prefixes()) {
      view.prefix_results = reinterpret_cast<const attention_prefix_results*>(plan.words + layout.prefix_results);
      view.prefix_columns = plan.shape.prefix_columns;
      view.first_prefix_column = layout.own_columns;
    }
    return view;
  }

  /// The part of a plan that reads shared prefixes.
  [[nodiscard]] static attention_plan_view of_prefixes(const attention_plan& plan) {
    const auto layout = attention_plan_layout(plan.shape);
    auto view = attention_plan_view{};
    view.rows = reinterpret_cast<const attention_row*>(plan.words + layout.prefixes);
    view.shares = reinterpret_cast<const attention_share*>(plan.words + layout.prefix_shares);
    view.prefix_queries = reinterpret_cast<const attention_prefix_query*>(plan.words + layout.prefix_queries);
    view.num_shares = plan.shape.prefix_shares;
    view.columns = plan.shape.prefix_columns;
    view.split_tiles = 1 << 30;
    return view;
  }
};

/// The blocks that rows read; see `attention_lists`.
struct attention_lists_view {
  listed_blocks kind = listed_blocks::none;
  const std::int32_t* blocks = nullptr;
  divider<std::int32_t> tiles_of_block;

  [[nodiscard]] PAGEDKV_HOST_DEVICE bool exist() const { return kind != listed_blocks::none; }
};

/// The arguments that the kernels of one call share.
struct attention_call {
  block_storage_view view;
  std::int32_t layer = 0;
  std::int32_t group_size = 1;
  const block_id* indices = nullptr;
  number_rows queries;
  number_rows output;
  float* log_sum_exp = nullptr;
  std::int32_t num_query_heads = 0;
  float scale = 1.0F;
  float soft_cap = 0.0F;
  std::int32_t window = 0;
  const float* alibi_slopes = nullptr;
  const float* sinks = nullptr;
  float* partials = nullptr;      // [partial][column][partial_stride], not yet divided by the sum
  float* partial_sums = nullptr;  // [partial][column][2]: reference and sum, in base 2
  std::int32_t partial_stride = 0;
  attention_plan_view plan;
  const std::uint32_t* tree_masks = nullptr;  // [query token]
  attention_lists_view lists;
};

}  // namespace pagedkv::kernels
