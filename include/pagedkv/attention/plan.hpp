#pragma once

#include <pagedkv/attention/attention.hpp>
#include <pagedkv/core/error.hpp>
#include <pagedkv/core/result.hpp>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <type_traits>
#include <vector>

namespace pagedkv {

/// Tokens that kernels process together: the unit of work sharing.
inline constexpr std::int32_t attention_tile = 16;

/// A row of the batch as kernels read it. Its tasks are numbered by KV head, then by column tile. A column is a pair of
/// query token and query head; each task reads all visible tokens.
struct attention_row {
  std::int32_t first_index = 0;  // index of its first block in `indices`
  std::int32_t num_tokens = 0;
  std::int32_t first_query = 0;  // its first query token
  std::int32_t num_queries = 1;
  std::int32_t first_tile = 0;  // the first tile that its first query sees
  std::int32_t num_tiles = 1;   // at least one, so that an empty sequence gets zeros
  std::int32_t num_tasks = 1;
  std::int32_t num_column_tiles = 1;
};

/// The start of one wave's work; it ends at the start of the next wave's work. Tiles are counted from the row's first.
struct attention_share {
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
  constexpr auto tile_columns = 32;
  return shape.columns < tile_columns ? largest_attention_tree : std::max(1, shape.columns / shape.group_size);
}

/// Rows of a plan: those of the batch, and those that chunks of prompts are divided into.
[[nodiscard]] constexpr std::int32_t most_planned_rows(const attention_shape& shape) noexcept {
  return shape.max_rows + shape.max_query_tokens / queries_per_row(shape);
}

/// Number of merges in a plan; a list of the large ones follows in memory.
struct attention_counts {
  std::int32_t num_rows = 0;
  std::int32_t num_merges = 0;
  std::int32_t num_large = 0;
  std::int32_t unused = 0;
};

/// Offsets of the parts of a plan, in bytes from its start. All plans of a shape have the same offsets, so that a
/// captured graph can read one plan after the other.
struct attention_plan_layout {
  std::int32_t max_partials = 0;
  std::int32_t max_merges = 0;
  std::int32_t max_large = 0;
  std::size_t rows = 0;
  std::size_t shares = 0;
  std::size_t merges = 0;
  std::size_t large = 0;
  std::size_t bytes = 0;

  explicit attention_plan_layout(const attention_shape& shape) noexcept {
    const auto after = [](std::size_t start, std::int32_t count, std::size_t each) {
      return (start + static_cast<std::size_t>(count) * each + 15) / 16 * 16;
    };
    max_partials = shape.max_partials > 0 ? shape.max_partials : 2 * shape.num_shares;
    max_merges = max_partials / 2;  // a merge has at least two partial results
    max_large = max_partials / (merged_by_group + 1);
    rows = sizeof(attention_counts);
    shares = after(rows, most_planned_rows(shape), sizeof(attention_row));
    merges = after(shares, shape.num_shares + 1, sizeof(attention_share));
    large = after(merges, max_merges, sizeof(attention_merge));
    bytes = after(large, max_large, sizeof(std::int32_t));
  }
};

/// Size of the working memory for plans of this shape, in bytes. `value_dim`: numbers of a value, and of an output.
[[nodiscard]] inline std::size_t attention_workspace_bytes(const attention_shape& shape,
                                                           std::int32_t value_dim) noexcept {
  const auto columns =
      static_cast<std::size_t>(attention_plan_layout(shape).max_partials) * static_cast<std::size_t>(shape.columns);
  return columns * (static_cast<std::size_t>(value_dim + 3) / 4 * 4 + 2) * sizeof(float);
}

/// Shares the attention of a batch among waves: an equal number of tiles for each, across the borders of sequences and
/// heads. The words that kernels read are at fixed addresses. Only the constructor allocates; not thread-safe.
///
/// With `split_tokens`, a sequence is divided at multiples of it, whatever else is in the batch: its results then have
/// the same bits in every batch.
class attention_planner {
 public:
  /// Throws `std::bad_alloc`.
  explicit attention_planner(const attention_shape& shape)
      : shape_(shape),
        layout_(shape),
        memory_(new(std::align_val_t{16}) std::byte[layout_.bytes]),
        counts_(new(memory_.get()) attention_counts),
        rows_(part_at<attention_row>(layout_.rows, most_planned_rows(shape))),
        shares_(part_at<attention_share>(layout_.shares, shape.num_shares + 1)),
        merges_(part_at<attention_merge>(layout_.merges, layout_.max_merges)),
        large_(part_at<std::int32_t>(layout_.large, layout_.max_large)) {}

  [[nodiscard]] const attention_shape& shape() const noexcept { return shape_; }

  /// The words that kernels read; copy them to memory that kernels can access.
  [[nodiscard]] std::span<const std::byte> bytes() const noexcept { return {memory_.get(), layout_.bytes}; }

  [[nodiscard]] std::span<const attention_row> rows() const noexcept { return rows_.first(num_rows()); }
  [[nodiscard]] std::span<const attention_share> shares() const noexcept { return shares_; }
  [[nodiscard]] std::span<const attention_merge> merges() const noexcept {
    return merges_.first(static_cast<std::size_t>(counts_->num_merges));
  }

  /// Makes a new plan. The spans of the batch are host memory. Errors: `limit_reached` when rows or partial results
  /// exceed the shape's limits, or a row with tree masks has more than `largest_attention_tree` queries; the plan is
  /// empty then.
  [[nodiscard]] result<void> plan(const attention_batch& batch) noexcept {
    if (auto described = describe_rows(batch); !described) {
      return described;
    }
    planned_tiles_ = num_tiles_;
    share_out();
    return number_partials();
  }

  /// Updates the plan for the same sequences in the same order, some tokens later: the borders of shares stay, and
  /// shares grow or shrink with their rows until they differ by a sixteenth. Then, and when rows were added or removed,
  /// makes a new plan.
  [[nodiscard]] result<void> update(const attention_batch& batch) noexcept {
    const auto same_rows =
        batch.num_rows() == num_rows() && shape_.split_tokens == 0 && shape_.max_query_tokens == 0;
    if (!same_rows) {
      return plan(batch);
    }
    if (auto described = describe_rows(batch); !described) {
      return described;
    }
    const auto grown = num_tiles_ - planned_tiles_;
    if (same_tasks_ && grown >= -planned_tiles_ / 16 && grown <= planned_tiles_ / 16) {
      return {};
    }
    planned_tiles_ = num_tiles_;
    share_out();
    return number_partials();
  }

 private:
  // Reading the query and writing the result of a task takes about the time of this many tiles.
  static constexpr std::int32_t task_overhead = 1;

  struct release_memory {
    void operator()(std::byte* memory) const noexcept { ::operator delete[](memory, std::align_val_t{16}); }
  };

  template <class T>
  [[nodiscard]] std::span<T> part_at(std::size_t start, std::int32_t count) {
    auto* const first = memory_.get() + start;
    for (auto i = std::int32_t{0}; i < count; ++i) {
      new (first + static_cast<std::size_t>(i) * sizeof(T)) T{};
    }
    return {std::launder(reinterpret_cast<T*>(first)), static_cast<std::size_t>(count)};
  }

  [[nodiscard]] std::size_t num_rows() const noexcept { return static_cast<std::size_t>(counts_->num_rows); }

  [[nodiscard]] error too_small(const char* subject, std::int64_t needed, std::int64_t room) noexcept {
    *counts_ = {};
    std::ranges::fill(shares_, attention_share{});
    return {error_code::limit_reached, subject, needed, room};
  }

  [[nodiscard]] static std::int32_t column_tiles(const attention_shape& shape, std::int32_t num_queries) noexcept {
    return (num_queries * shape.group_size + shape.columns - 1) / shape.columns;
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
          return too_small("number of rows and query tokens", static_cast<std::int64_t>(used) + 1,
                           static_cast<std::int64_t>(rows_.size()));
        }
        rows_[used++] = make_row(index, num_tokens - num_queries + end, first + begin, end - begin);
        num_tiles_ += std::int64_t{rows_[used - 1].num_tiles + task_overhead} * rows_[used - 1].num_tasks;
        end = begin;
      }
    }
    counts_->num_rows = static_cast<std::int32_t>(used);
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
    const auto first_token = num_tokens - num_queries - shape_.window + 1;
    row.first_tile = shape_.window > 0 && first_token > 0 ? first_token / attention_tile : 0;
    row.num_tiles = std::max((num_tokens + attention_tile - 1) / attention_tile - row.first_tile, 1);
    row.num_column_tiles = column_tiles(shape_, num_queries);
    row.num_tasks = row.num_column_tiles * shape_.num_kv_heads;
    return row;
  }

  /// Errors: a row whose tree has more tokens than a mask has bits.
  [[nodiscard]] result<void> check_trees(const attention_batch& batch) noexcept {
    for (auto i = std::size_t{0}; !batch.tree_masks.empty() && i + 1 < batch.query_indptr.size(); ++i) {
      const auto num_queries = batch.query_indptr[i + 1] - batch.query_indptr[i];
      if (num_queries > largest_attention_tree) {
        return too_small("queries of a row with tree masks", num_queries, largest_attention_tree);
      }
    }
    return {};
  }

  [[nodiscard]] result<void> describe_rows(const attention_batch& batch) noexcept {
    if (const auto checked = check_trees(batch); !checked) {
      return checked;
    }
    if (shape_.max_query_tokens > 0 && !batch.query_indptr.empty()) {
      return describe_chunks(batch);
    }
    if (batch.num_rows() > rows_.size()) {
      return too_small("number of rows", static_cast<std::int64_t>(batch.num_rows()),
                       static_cast<std::int64_t>(rows_.size()));
    }
    counts_->num_rows = static_cast<std::int32_t>(batch.num_rows());
    // Most batches have neither; the loop for them has no branches.
    if (batch.query_indptr.empty() && shape_.window <= 0) {
      describe_each(batch, std::false_type{}, std::false_type{});
    } else if (batch.query_indptr.empty()) {
      describe_each(batch, std::false_type{}, std::true_type{});
    } else {
      describe_each(batch, std::true_type{}, std::true_type{});
    }
    return {};
  }

  /// `Several`: each row has its own number of queries.
  template <class Several, class Windowed>
  void describe_each(const attention_batch& batch, Several, Windowed) noexcept {
    // Local copies, because a store may alias any member and would force the compiler to reload it.
    const auto shape = shape_;
    const auto column_tiles_of_one = column_tiles_of_one_;
    const auto end = num_rows();
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
        const auto first_token = num_tokens - num_queries - shape.window + 1;
        first_tile = shape.window > 0 && first_token > 0 ? first_token / attention_tile : 0;
      }
      row.first_index = index;
      row.num_tokens = num_tokens;
      row.first_query = Several::value ? batch.query_indptr[i] : static_cast<std::int32_t>(i);
      row.num_queries = num_queries;
      row.first_tile = first_tile;
      row.num_tiles = std::max((num_tokens + attention_tile - 1) / attention_tile - first_tile, 1);
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

  /// The number of shares. Slightly fewer than the waves if then no share ends inside one of several equal tasks: fewer
  /// pieces save more time than the idle waves lose.
  [[nodiscard]] std::int64_t choose_num_shares() const noexcept {
    const auto most = std::int64_t{shape_.num_shares};
    auto num_tasks = std::int64_t{0};
    for (const auto& row : rows()) {
      if (row.num_tiles != rows_[0].num_tiles || row.num_tasks != rows_[0].num_tasks) {
        return most;
      }
      num_tasks += row.num_tasks;
    }
    if (num_tasks == 0) {
      return most;
    }
    const auto tasks_each = (num_tasks + most - 1) / most;
    const auto even = num_tasks <= most             ? most / num_tasks * num_tasks
                      : num_tasks % tasks_each == 0 ? num_tasks / tasks_each
                                                    : most;
    return even * 10 >= most * 9 ? even : most;
  }

  void share_out() noexcept {
    const auto num_shares = choose_num_shares();
    const auto each = num_tiles_ / num_shares;
    const auto rest = num_tiles_ % num_shares;
    auto share = std::size_t{0};
    auto next = std::int64_t{0};  // start of the next share, in tiles from the start of the row
    auto over = std::int64_t{0};  // and the remaining fraction of a tile, times the number of shares
    for (auto i = std::size_t{0}; i < num_rows(); ++i) {
      const auto& row = rows_[i];
      const auto cost = std::int64_t{row.num_tiles + task_overhead};
      const auto all = cost * row.num_tasks;
      while (next < all && share + 1 < shares_.size()) {
        const auto task = next / cost;
        const auto tile = static_cast<std::int32_t>(next - task * cost) - task_overhead;
        shares_[share++] = start_at(i, static_cast<std::int32_t>(task), std::max(tile, 0));
        over += rest;
        next += each + (over >= num_shares ? 1 : 0);
        over -= over >= num_shares ? num_shares : 0;
      }
      next -= all;
    }
    std::ranges::fill(shares_.subspan(share), attention_share{counts_->num_rows, 0, 0, 0});
  }

  /// The first position from there on where a share may start.
  [[nodiscard]] attention_share start_at(std::size_t row, std::int32_t task, std::int32_t tile) const noexcept {
    const auto index = static_cast<std::int32_t>(row);
    if (shape_.split_tokens == 0) {
      return {index, task, tile, 0};
    }
    const auto split = shape_.split_tokens / attention_tile;
    const auto rounded = (tile + split - 1) / split * split;
    if (rounded < rows_[row].num_tiles) {
      return {index, task, rounded, 0};
    }
    return task + 1 < rows_[row].num_tasks ? attention_share{index, task + 1, 0, 0}
                                           : attention_share{index + 1, 0, 0, 0};
  }

  [[nodiscard]] result<void> number_partials() noexcept {
    counts_->num_merges = 0;
    counts_->num_large = 0;
    const auto numbered = shape_.split_tokens == 0 ? number_by_share() : number_by_split();
    if (numbered > layout_.max_partials) {
      return too_small("partial results of attention", numbered, layout_.max_partials);
    }
    return {};
  }

  /// Numbers the pieces, which end at the ends of shares.
  [[nodiscard]] std::int64_t number_by_share() noexcept {
    auto partials = std::int32_t{0};
    auto merge = attention_merge{};
    for (auto i = std::size_t{0}; i + 1 < shares_.size(); ++i) {
      auto& start = shares_[i];
      const auto& end = shares_[i + 1];
      start.first_partial = partials;
      const auto same_task = start.row == end.row && start.task == end.task;
      if (same_task && start.tile == end.tile) {
        continue;
      }
      if (start.tile > 0) {
        ++merge.num_partials;
        ++partials;
      }
      if (end.tile > 0 && (!same_task || start.tile == 0)) {
        add(merge);
        merge = {end.row, end.task, partials, 1};
        ++partials;
      }
    }
    add(merge);
    return partials;
  }

  /// Numbers the pieces; every task longer than one split has several. Continues counting past the limit.
  [[nodiscard]] std::int64_t number_by_split() noexcept {
    const auto split = shape_.split_tokens / attention_tile;
    auto partials = std::int64_t{0};
    auto share = std::size_t{0};
    for (auto i = std::size_t{0}; i < num_rows(); ++i) {
      const auto& row = rows_[i];
      const auto pieces = row.num_tiles > split ? (row.num_tiles + split - 1) / split : 0;
      for (; share < shares_.size() && shares_[share].row == static_cast<std::int32_t>(i); ++share) {
        auto& start = shares_[share];
        start.first_partial = static_cast<std::int32_t>(partials + std::int64_t{start.task} * pieces +
                                                        (pieces > 0 ? start.tile / split : 0));
      }
      if (partials + std::int64_t{row.num_tasks} * pieces <= layout_.max_partials) {
        for (auto task = std::int32_t{0}; pieces > 0 && task < row.num_tasks; ++task) {
          add({static_cast<std::int32_t>(i), task, static_cast<std::int32_t>(partials) + task * pieces, pieces});
        }
      }
      partials += std::int64_t{row.num_tasks} * pieces;
    }
    return partials;
  }

  void add(const attention_merge& merge) noexcept {
    if (merge.num_partials == 0) {
      return;
    }
    if (merge.num_partials > merged_by_group) {
      large_[static_cast<std::size_t>(counts_->num_large++)] = counts_->num_merges;
    }
    merges_[static_cast<std::size_t>(counts_->num_merges++)] = merge;
  }

  attention_shape shape_;
  attention_plan_layout layout_;
  std::unique_ptr<std::byte[], release_memory> memory_;
  std::int32_t column_tiles_of_one_ = column_tiles(shape_, 1);
  attention_counts* counts_;
  std::span<attention_row> rows_;
  std::span<attention_share> shares_;
  std::span<attention_merge> merges_;
  std::span<std::int32_t> large_;
  std::int64_t num_tiles_ = 0;      // of all tasks, their overhead included
  std::int64_t planned_tiles_ = 0;  // when shares were last made
  bool same_tasks_ = false;         // the tasks are those of when shares were last made
};

}  // namespace pagedkv
