#pragma once

#include <pagedkv/attention/shares.hpp>
#include <pagedkv/core/result.hpp>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <type_traits>

namespace pagedkv {

/// Describes the sequences of a batch as the rows of a plan. Does not allocate.
class attention_row_describer {
 public:
  /// `rows`: where the descriptions are written.
  attention_row_describer(const attention_shape& shape, std::span<attention_row> rows) noexcept
      : shape_(shape), rows_(rows) {}

  /// Errors: `limit_reached` when there is no room for another row, a row with tree masks has more than
  /// `largest_attention_tree` queries, or lists have 2^31 tokens together; `invalid_argument` for lists that are not
  /// those of the shape, or not as `attention_lists` says. The rows have no meaning then.
  [[nodiscard]] result<void> describe(const attention_batch& batch) noexcept {
    if (const auto checked = check_trees(batch); !checked) {
      return checked;
    }
    if (const auto checked = check_lists(batch); !checked) {
      return checked;
    }
    if (shape_.max_query_tokens > 0 && !batch.query_indptr.empty()) {
      return describe_chunks(batch);
    }
    if (batch.num_rows() > rows_.size()) {
      return error{error_code::limit_reached, "number of rows, more than the planner was made for,",
                   static_cast<std::int64_t>(batch.num_rows()), static_cast<std::int64_t>(rows_.size())};
    }
    num_rows_ = batch.num_rows();
    // Most batches have neither; the loop for them has no branches.
    if (shape_.lists != listed_blocks::none) {
      describe_listed(batch);
    } else if (batch.query_indptr.empty() && shape_.window <= 0) {
      describe_each(batch, std::false_type{}, std::false_type{});
    } else if (batch.query_indptr.empty()) {
      describe_each(batch, std::false_type{}, std::true_type{});
    } else {
      describe_each(batch, std::true_type{}, std::true_type{});
    }
    return {};
  }

  [[nodiscard]] std::size_t num_rows() const noexcept { return num_rows_; }
  /// Tiles of all tasks, their overhead included.
  [[nodiscard]] std::int64_t num_tiles() const noexcept { return num_tiles_; }
  /// Whether each row still has the tasks that the row at its place had before.
  [[nodiscard]] bool same_tasks() const noexcept { return same_tasks_; }

 private:
  [[nodiscard]] static std::int32_t column_tiles(const attention_shape& shape, std::int32_t num_queries) noexcept {
    return std::max((num_queries * shape.group_size + shape.columns - 1) / shape.columns, 1);
  }

  /// Rows for chunks of prompts.
  [[nodiscard]] result<void> describe_chunks(const attention_batch& batch) noexcept {
    const auto step = queries_per_row(shape_);
    auto used = std::size_t{0};
    num_tiles_ = 0;
    for (auto i = std::size_t{0}; i < batch.num_rows(); ++i) {
      const auto first = batch.query_indptr[i];
      const auto num_queries = batch.query_indptr[i + 1] - first;
      const auto index = batch.indptr[i];
      const auto num_blocks = batch.indptr[i + 1] - index;
      const auto num_tokens = num_blocks == 0 ? 0 : (num_blocks - 1) * shape_.block_size + batch.last_block_len[i];
      const auto whole = num_queries <= std::max(step, largest_attention_tree);
      // The last rows read the most tokens; they come first, so that no wave begins with them at the end.
      for (auto end = num_queries; end > 0;) {
        const auto begin = whole ? 0 : (end - 1) / step * step;
        if (used == rows_.size()) {
          return error{error_code::limit_reached,
                       "number of rows and query tokens, more than the planner was made for,",
                       static_cast<std::int64_t>(used) + 1, static_cast<std::int64_t>(rows_.size())};
        }
        rows_[used] = make_row(index, num_tokens - num_queries + end, first + begin, end - begin);
        set_list(batch, i, rows_[used++]);
        num_tiles_ += std::int64_t{rows_[used - 1].num_tiles + task_overhead_} * rows_[used - 1].num_tasks;
        end = begin;
      }
    }
    num_rows_ = used;
    same_tasks_ = false;
    return {};
  }

  [[nodiscard]] attention_row make_row(std::int32_t first_index, std::int32_t num_tokens, std::int32_t first_query,
                                       std::int32_t num_queries) const noexcept {
    auto row = attention_row{};
    row.first_index = first_index;
    row.num_tokens = std::max(num_tokens, 0);
    row.first_query = first_query;
    row.num_queries = num_queries;
    row.first_tile = first_seen_token(num_tokens - num_queries, shape_.window) / attention_tile;
    row.num_tiles = std::max((num_tokens + attention_tile - 1) / attention_tile - row.first_tile, 1);
    row.num_column_tiles = column_tiles(shape_, num_queries);
    row.num_tasks = row.num_column_tiles * shape_.num_kv_heads;
    return row;
  }

  /// With a list, tiles are those of its blocks. A row that reads none is like an empty sequence.
  void set_list(const attention_batch& batch, std::size_t index, attention_row& row) const noexcept {
    if (shape_.lists == listed_blocks::none) {
      return;
    }
    const auto tiles_of_block = attention_tiles_of_block(shape_.block_size);
    const auto num_entries = batch.lists.indptr[index + 1] - batch.lists.indptr[index];
    row.first_tile = batch.lists.indptr[index] * tiles_of_block;
    row.num_tiles = std::max(num_entries / shape_.lists_of_row() * tiles_of_block, 1);
    row.num_tokens = num_entries == 0 ? 0 : row.num_tokens;
  }

  void describe_listed(const attention_batch& batch) noexcept {
    num_tiles_ = 0;
    same_tasks_ = true;
    for (auto i = std::size_t{0}; i < num_rows_; ++i) {
      const auto before = rows_[i];
      const auto index = batch.indptr[i];
      const auto num_blocks = batch.indptr[i + 1] - index;
      const auto num_tokens = num_blocks == 0 ? 0 : (num_blocks - 1) * shape_.block_size + batch.last_block_len[i];
      const auto first_query = batch.query_indptr.empty() ? static_cast<std::int32_t>(i) : batch.query_indptr[i];
      const auto num_queries = batch.query_indptr.empty() ? 1 : batch.query_indptr[i + 1] - first_query;
      auto& row = rows_[i];
      row = make_row(index, num_tokens, first_query, num_queries);
      set_list(batch, i, row);
      same_tasks_ = same_tasks_ && row.num_tasks == before.num_tasks && row.num_tiles >= before.num_tiles;
      num_tiles_ += std::int64_t{row.num_tiles + task_overhead_} * row.num_tasks;
    }
  }

  [[nodiscard]] result<void> check_lists(const attention_batch& batch) const noexcept {
    const auto& lists = batch.lists;
    if (lists.kind != shape_.lists) {
      return error{error_code::invalid_argument,
                   "kind of attention_batch.lists, which is not that of the plan's shape,",
                   static_cast<std::int64_t>(lists.kind), static_cast<std::int64_t>(shape_.lists)};
    }
    if (const auto checked = validate(lists, batch.num_rows(), shape_.lists_of_row()); !checked) {
      return checked;
    }
    const auto num_tokens = static_cast<std::int64_t>(lists.indptr.empty() ? 0 : lists.indptr.back()) *
                            attention_tiles_of_block(shape_.block_size) * attention_tile;
    constexpr auto most_tokens = std::int64_t{std::numeric_limits<std::int32_t>::max()};
    if (num_tokens > most_tokens) {
      return error{error_code::limit_reached, "tokens of attention_batch.lists", num_tokens, most_tokens};
    }
    return {};
  }

  /// Errors: a row whose tree has more tokens than a mask has bits.
  [[nodiscard]] static result<void> check_trees(const attention_batch& batch) noexcept {
    for (auto i = std::size_t{0}; !batch.tree_masks.empty() && i + 1 < batch.query_indptr.size(); ++i) {
      const auto num_queries = batch.query_indptr[i + 1] - batch.query_indptr[i];
      if (num_queries > largest_attention_tree) {
        return error{error_code::limit_reached, "queries of a row with tree masks", num_queries,
                     largest_attention_tree};
      }
    }
    return {};
  }

  /// `Several`: each row has its own number of queries.
  template <class Several, class Windowed>
  void describe_each(const attention_batch& batch, Several, Windowed) noexcept {
    // Local copies, because a store may alias any member and would force the compiler to reload it.
    const auto shape = shape_;
    const auto column_tiles_of_one = column_tiles_of_one_;
    const auto task_overhead = task_overhead_;
    const auto end = num_rows_;
    auto* const rows = rows_.data();
    auto num_tiles = std::int64_t{0};
    auto changed = false;
    auto index = end == 0 ? 0 : batch.indptr.front();
    for (auto i = std::size_t{0}; i < end; ++i) {
      const auto before = rows[i];
      auto& row = rows[i];
      const auto next = batch.indptr[i + 1];
      const auto num_tokens = next == index ? 0 : (next - index - 1) * shape.block_size + batch.last_block_len[i];
      auto num_queries = std::int32_t{1};
      auto num_column_tiles = column_tiles_of_one;
      if constexpr (Several::value) {
        num_queries = batch.query_indptr[i + 1] - batch.query_indptr[i];
        num_column_tiles = column_tiles(shape, num_queries);
      }
      auto first_tile = std::int32_t{0};
      if constexpr (Windowed::value) {
        first_tile = first_seen_token(num_tokens - num_queries, shape.window) / attention_tile;
      }
      row.first_index = index;
      row.num_tokens = num_tokens;
      row.first_query = Several::value ? batch.query_indptr[i] : static_cast<std::int32_t>(i);
      row.num_queries = num_queries;
      row.first_tile = first_tile;
      row.num_tiles = std::max((num_tokens + attention_tile - 1) / attention_tile - first_tile, 1);
      if constexpr (Several::value) {
        row.num_tiles = num_queries == 0 ? 1 : row.num_tiles;
      }
      row.num_column_tiles = num_column_tiles;
      row.num_tasks = num_column_tiles * shape.num_kv_heads;
      // A window leaves at most one tile per update: a row that shrinks by more is a different row.
      changed = changed || row.num_tasks != before.num_tasks || row.num_tiles + 1 < before.num_tiles;
      num_tiles += std::int64_t{row.num_tiles + task_overhead} * row.num_tasks;
      index = next;
    }
    num_tiles_ = num_tiles;
    same_tasks_ = !changed;
  }

  attention_shape shape_;
  std::int32_t column_tiles_of_one_ = column_tiles(shape_, 1);
  std::int32_t task_overhead_ = attention_task_overhead(shape_);
  std::span<attention_row> rows_;
  std::size_t num_rows_ = 0;
  std::int64_t num_tiles_ = 0;
  bool same_tasks_ = false;
};

}  // namespace pagedkv
