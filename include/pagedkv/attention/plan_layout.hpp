#pragma once

#include <pagedkv/attention/attention.hpp>
#include <pagedkv/core/host_device.hpp>
#include <pagedkv/core/ids.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace pagedkv {

/// Tokens that kernels process together: the unit of work sharing.
inline constexpr std::int32_t attention_tile = 16;

/// Tiles of a block in a list: they end with their block.
[[nodiscard]] constexpr std::int32_t attention_tiles_of_block(std::int32_t block_size) noexcept {
  return (block_size + attention_tile - 1) / attention_tile;
}

/// The first token that the query at a position sees; 0 for a query before the first token. `window`: as in
/// `attention_options::window`, of any size.
[[nodiscard]] PAGEDKV_HOST_DEVICE constexpr std::int32_t first_seen_token(std::int32_t position,
                                                                          std::int32_t window) noexcept {
  return window > 0 && position >= window ? position - window + 1 : 0;
}

/// A row of the batch, or a shared prefix, as kernels read it. Its tasks are numbered by KV head, then by column tile.
/// A column is a pair of query token and query head; each task reads all visible tokens.
struct attention_row {
  std::int32_t first_index = 0;  // index of its first block in `indices`
  std::int32_t num_tokens = 0;
  std::int32_t first_query = 0;  // its first query token; of a shared prefix: index of an `attention_prefix_query`
  std::int32_t num_queries = 1;
  // The first tile that its first query sees, or after a shared prefix. With lists, tiles are counted among those of
  // all listed blocks; each KV head's own list follows that of the head before.
  std::int32_t first_tile = 0;
  std::int32_t num_tiles = 1;   // at least one, so that an empty sequence gets zeros
  std::int32_t num_tasks = 1;
  std::int32_t num_column_tiles = 1;
};

/// The start of one share; it ends where the next one starts. Tiles are counted from the row's first.
/// Or the first of the whole tasks that a workgroup is dealt; a list says which task follows which.
struct attention_share {
  static constexpr std::int32_t dealt = -1;  // as a tile

  std::int32_t row = 0;
  std::int32_t task = 0;
  std::int32_t tile = 0;
  std::int32_t first_partial = 0;  // index of its first partial result; whole tasks write none
};

/// A task in several pieces, and the partial results of these.
struct attention_merge {
  std::int32_t row = 0;
  std::int32_t task = 0;
  std::int32_t first_partial = 0;
  std::int32_t num_partials = 0;
};

/// More partial results than these are merged by a whole workgroup.
inline constexpr std::int32_t merged_by_group = 4;

static_assert(sizeof(attention_row) == 32 && sizeof(attention_share) == 16 && sizeof(attention_merge) == 16,
              "kernels read these as vectors of int32");

/// Query tokens that a row of a plan may have. A longer chunk of a prompt becomes several rows, each of which ends at
/// its own last token, so that none reads tokens that all of its queries do not see.
[[nodiscard]] constexpr std::int32_t queries_per_row(const attention_shape& shape) noexcept {
  return shape.shares_tasks() ? std::max(1, shape.columns / shape.group_size) : largest_attention_tree;
}

/// Rows of a plan: those of the batch, and those that chunks of prompts are divided into.
[[nodiscard]] constexpr std::int32_t most_planned_rows(const attention_shape& shape) noexcept {
  return shape.max_rows + shape.max_query_tokens / queries_per_row(shape);
}

/// A query of a row that reads a shared prefix; the queries of such a row belong to several sequences.
struct attention_prefix_query {
  std::int32_t token = 0;     // index among the queries of the batch
  std::int32_t position = 0;  // in its own sequence
};

/// The partial results of a shared prefix that a merge adds to its task's own. Counted apart from those; zeros where
/// the task has no shared prefix.
struct attention_prefix_results {
  std::int32_t first_partial = 0;
  std::int32_t num_partials = 0;
  std::int32_t first_column = 0;  // of the task, among the columns of the prefix
  std::int32_t unused = 0;
};

static_assert(sizeof(attention_prefix_query) == 8 && sizeof(attention_prefix_results) == 16,
              "kernels read these as vectors of int32");

/// Sizes of the parts of a plan. A list of the large merges follows in memory.
struct attention_counts {
  std::int32_t num_rows = 0;
  std::int32_t num_merges = 0;
  std::int32_t num_large = 0;
  std::int32_t num_prefixes = 0;
  std::int32_t joined_shares = 1;  // neighbouring shares whose results may be one; see `attention_shape`
  std::int32_t used_columns = 1;  // of a task, at most
  std::int32_t num_entries = 0;   // of the batch's block tables; 0 unless the shape has expanded blocks
};

static_assert(sizeof(attention_counts) <= 32, "the words of rows start there");

/// Offsets of the parts of a plan, in bytes from its start. All plans of a shape have the same offsets, so that a
/// captured graph can read one plan after the other.
struct attention_plan_layout {
  std::int32_t max_partials = 0;
  std::int32_t max_merges = 0;
  std::int32_t max_large = 0;
  std::int32_t max_tasks = 0;     // that can be dealt
  std::int32_t max_prefixes = 0;  // rows that read shared prefixes
  std::int32_t max_prefix_queries = 0;
  std::int32_t max_prefix_partials = 0;
  std::int64_t own_columns = 0;  // columns of partial results that are not of shared prefixes; these follow
  std::int64_t num_columns = 0;  // of all partial results
  std::size_t rows = 0;
  std::size_t shares = 0;
  std::size_t merges = 0;
  std::size_t large = 0;
  std::size_t prefixes = 0;  // rows
  std::size_t prefix_shares = 0;
  std::size_t prefix_queries = 0;
  std::size_t prefix_results = 0;  // one for each merge
  std::size_t following = 0;       // for each dealt task, the number of the next one of its share
  std::size_t bytes = 0;

  explicit attention_plan_layout(const attention_shape& shape) noexcept {
    const auto after = [](std::size_t start, std::int32_t count, std::size_t each) {
      return (start + static_cast<std::size_t>(count) * each + 15) / 16 * 16;
    };
    const auto shares_prefixes = shape.may_share_prefixes();
    const auto tasks_of_row = (shape.group_size + shape.columns - 1) / shape.columns * shape.num_kv_heads;
    max_partials = shape.max_partials > 0
                       ? shape.max_partials
                       : 2 * shape.num_shares + (shares_prefixes ? shape.max_rows * tasks_of_row : 0);
    // A merge has at least two partial results, of which all but one may be of a shared prefix.
    max_merges = shares_prefixes ? max_partials : max_partials / 2;
    max_large = shares_prefixes ? max_merges : max_partials / (merged_by_group + 1);
    max_tasks = shape.deals_tasks ? most_planned_rows(shape) * tasks_of_row : 0;
    own_columns = std::int64_t{max_partials} * shape.columns;
    if (shares_prefixes) {
      max_prefixes = std::max(1, 2 * shape.prefix_shares / shape.num_kv_heads);  // two tasks for each share
      max_prefix_queries = max_prefixes * (shape.prefix_columns / shape.group_size);
      max_prefix_partials = shape.prefix_shares + max_prefixes * shape.num_kv_heads;
    }
    num_columns = own_columns + std::int64_t{max_prefix_partials} * shape.prefix_columns;
    rows = after(0, 1, sizeof(attention_counts));
    shares = after(rows, most_planned_rows(shape), sizeof(attention_row));
    merges = after(shares, shape.num_shares + 1, sizeof(attention_share));
    large = after(merges, max_merges, sizeof(attention_merge));
    prefixes = after(large, max_large, sizeof(std::int32_t));
    prefix_shares = after(prefixes, max_prefixes, sizeof(attention_row));
    prefix_queries = after(prefix_shares, shares_prefixes ? shape.prefix_shares + 1 : 0, sizeof(attention_share));
    prefix_results = after(prefix_queries, max_prefix_queries, sizeof(attention_prefix_query));
    following = after(prefix_results, shares_prefixes ? max_merges : 0, sizeof(attention_prefix_results));
    bytes = after(following, max_tasks, sizeof(std::int32_t));
  }
};

/// Offsets of the parts of the working memory for plans of a shape, in bytes from its start. Partial results are first.
struct attention_workspace_layout {
  std::size_t expanded_ids = 0;     // of the expanded blocks, for each entry of the batch's block tables
  std::size_t expanded_blocks = 0;  // one for each entry
  std::size_t bytes = 0;

  /// `value_dim`: numbers of a value, and of an output.
  attention_workspace_layout(const attention_shape& shape, std::int32_t value_dim) noexcept {
    const auto columns = static_cast<std::size_t>(attention_plan_layout(shape).num_columns);
    bytes = columns * (static_cast<std::size_t>(value_dim + 3) / 4 * 4 + 2) * sizeof(float);
    if (shape.expanded_blocks > 0) {
      const auto aligned = [](std::size_t end) { return (end + 255) / 256 * 256; };
      const auto num_blocks = static_cast<std::size_t>(shape.expanded_blocks);
      expanded_ids = aligned(bytes);
      expanded_blocks = aligned(expanded_ids + num_blocks * sizeof(block_id));
      bytes = expanded_blocks + num_blocks * static_cast<std::size_t>(shape.expanded_block_bytes);
    }
  }
};

/// Size of the working memory for plans of this shape, in bytes. `value_dim`: numbers of a value, and of an output.
[[nodiscard]] inline std::size_t attention_workspace_bytes(const attention_shape& shape,
                                                           std::int32_t value_dim) noexcept {
  return attention_workspace_layout(shape, value_dim).bytes;
}

}  // namespace pagedkv
