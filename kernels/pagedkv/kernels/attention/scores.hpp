#pragma once

#include <pagedkv/core/storage_formats.hpp>
#include <pagedkv/kernels/attention/call.hpp>
#include <pagedkv/kernels/attention/walk.hpp>
#include <pagedkv/kernels/platform.hpp>
#include <pagedkv/kernels/row.hpp>

#include <cmath>

namespace pagedkv::kernels {

inline constexpr float log2_e = 1.44269504088896340736F;
inline constexpr float ln_2 = 0.693147180559945309417F;

/// One query token and head of a task.
struct query_column {
  std::int32_t token = -1;  // index among the queries; -1: the column does not exist
  std::int32_t head = 0;
  std::int32_t position = 0;  // in the sequence

  [[nodiscard]] PAGEDKV_DEVICE bool exists() const { return token >= 0; }
};

[[nodiscard]] PAGEDKV_DEVICE inline query_column find_column(const attention_call& call, const attention_row& row,
                                                             std::int32_t task, std::int32_t column,
                                                             std::int32_t columns_per_task) {
  const auto kv_head = task / row.num_column_tiles;
  const auto of_kv_head = (task - kv_head * row.num_column_tiles) * columns_per_task + column;
  const auto query = of_kv_head / call.group_size;
  auto found = query_column{};
  if (query < row.num_queries) {
    found.token = row.first_query + query;
    found.head = kv_head * call.group_size + of_kv_head - query * call.group_size;
    found.position = row.num_tokens - row.num_queries + query;
  }
  return found;
}

/// Finds a column of a row that may be a shared prefix, whose queries belong to several sequences.
[[nodiscard]] PAGEDKV_DEVICE inline query_column find_shared_column(const attention_call& call,
                                                                    const attention_row& row, std::int32_t task,
                                                                    std::int32_t column,
                                                                    std::int32_t columns_per_task) {
  auto found = find_column(call, row, task, column, columns_per_task);
  if (call.plan.prefix_queries != nullptr && found.exists()) {
    const auto query = load_vector<2>(reinterpret_cast<const std::int32_t*>(call.plan.prefix_queries + found.token));
    found.token = query.values[0];
    found.position = query.values[1];
  }
  return found;
}

/// The static scales of a task's keys and values; 1 for elements without.
template <class Element>
[[nodiscard]] PAGEDKV_DEVICE float static_key_scale(const attention_call& call, const attention_piece& piece) {
  if constexpr (has_static_scales<Element>) {
    const auto head = piece.task / piece.row.num_column_tiles;
    return load_static_scale(call.view.static_scales, call.view.static_key_index(call.layer, head));
  } else {
    return 1.0F;
  }
}
template <class Element>
[[nodiscard]] PAGEDKV_DEVICE float static_value_scale(const attention_call& call, const attention_piece& piece) {
  if constexpr (has_static_scales<Element>) {
    const auto head = piece.task / piece.row.num_column_tiles;
    return load_static_scale(call.view.static_scales, call.view.static_value_index(call.layer, head));
  } else {
    return 1.0F;
  }
}

/// The rule for the scores of one column, in base 2.
struct score_rule {
  std::int32_t first_token = 0;
  std::int32_t last_token = -1;  // the query's own
  float slope = 0.0F;  // of the ALiBi bias

  [[nodiscard]] static PAGEDKV_DEVICE score_rule of(const attention_call& call, const query_column& column) {
    auto rule = score_rule{};
    if (column.exists()) {
      rule.last_token = column.position;
      rule.first_token = first_seen_token(column.position, call.window);
      rule.slope = call.alibi_slopes != nullptr ? load(call.alibi_slopes + column.head) * log2_e : 0.0F;
    }
    return rule;
  }

  [[nodiscard]] PAGEDKV_DEVICE float bias(std::int32_t token) const {
    return slope * static_cast<float>(token - last_token);
  }

  /// The score if the query sees the token, else minus infinity.
  [[nodiscard]] PAGEDKV_DEVICE float hide(float score, std::int32_t token) const {
    return token >= first_token && token <= last_token ? score : -INFINITY;
  }
};

/// The tokens of a tree of drafts that a query does not see.
struct hidden_branches {
  std::int32_t first_token = 0;  // of the tree
  std::uint32_t hidden = 0;      // a bit for each of its tokens

  [[nodiscard]] static PAGEDKV_DEVICE hidden_branches of(const attention_call& call, const attention_row& row,
                                                         const query_column& column) {
    auto branches = hidden_branches{};
    branches.first_token = row.num_tokens - row.num_queries;
    if (call.tree_masks != nullptr && column.exists()) {
      const auto own = std::uint32_t{1} << (column.position - branches.first_token);
      branches.hidden = ~(load(call.tree_masks + column.token) | own);
    }
    return branches;
  }

  [[nodiscard]] PAGEDKV_DEVICE bool hide(std::int32_t token) const {
    const auto in_tree = token - first_token;
    return in_tree >= 0 && in_tree < largest_attention_tree && (hidden >> in_tree & 1U) != 0;
  }
};

}  // namespace pagedkv::kernels
