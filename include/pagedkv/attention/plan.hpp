#pragma once

#include <pagedkv/attention/plan_layout.hpp>
#include <pagedkv/attention/rows.hpp>
#include <pagedkv/attention/shared_prefixes.hpp>
#include <pagedkv/attention/shares.hpp>
#include <pagedkv/core/result.hpp>

#include <algorithm>
#include <cassert>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <vector>

namespace pagedkv {

/// The parts of a plan, for tools that show one. They change with the next plan.
struct attention_plan_parts {
  std::span<const attention_row> rows;  // [row of the plan]
  std::span<const attention_share> shares;  // [share + 1]
  // [task, counted in all rows], if the first share's tile is `attention_share::dealt`: the next one of its share, or
  // -1
  std::span<const std::int32_t> following_tasks;
  std::span<const attention_merge> merges;  // [merge of partial results]
  std::int32_t joined_shares = 1;           // neighbouring shares that have one result of a task; 1: each has its own
  std::span<const attention_row> prefixes;  // [shared prefix], in the order of the plan
  std::span<const attention_share> prefix_shares;  // [workgroup + 1]
  std::span<const attention_prefix_query> prefix_queries;  // [query of a shared prefix]
  std::span<const attention_prefix_results> prefix_results;  // [merge]; empty if no prefixes are shared
};

/// Divides the attention of a batch into shares of equal numbers of tiles, across the borders of sequences and heads.
/// The words that kernels read are at fixed addresses. Only the constructor allocates; not thread-safe.
///
/// With `split_tokens`, a sequence is divided at multiples of it, whatever else is in the batch: its results then have
/// the same bits in every batch.
///
/// With `prefix_columns`, sequences whose block tables start with the same blocks share the read of these, where that
/// saves time by `attention_prefix_costs`: another launch reads them for many queries at once, and the merge adds its
/// partial results to those of each sequence.
class attention_planner {
 public:
  /// Throws `std::bad_alloc`.
  explicit attention_planner(const attention_shape& shape)
      : shape_(shape),
        layout_(shape),
        memory_(new (std::align_val_t{16}) std::byte[layout_.bytes]),
        counts_(new (memory_.get()) attention_counts),
        rows_(part_at<attention_row>(layout_.rows, most_planned_rows(shape))),
        shares_(part_at<attention_share>(layout_.shares, shape.num_shares + 1)),
        merges_(part_at<attention_merge>(layout_.merges, layout_.max_merges)),
        large_(part_at<std::int32_t>(layout_.large, layout_.max_large)),
        prefixes_(part_at<attention_row>(layout_.prefixes, layout_.max_prefixes)),
        prefix_shares_(
            part_at<attention_share>(layout_.prefix_shares, shape.may_share_prefixes() ? shape.prefix_shares + 1 : 0)),
        prefix_queries_(part_at<attention_prefix_query>(layout_.prefix_queries, layout_.max_prefix_queries)),
        prefix_results_(part_at<attention_prefix_results>(layout_.prefix_results,
                                                          shape.may_share_prefixes() ? layout_.max_merges : 0)),
        following_(part_at<std::int32_t>(layout_.following, layout_.max_tasks)),
        task_dealer_(shape),
        row_describer_(shape, rows_),
        prefix_finder_(shape) {
    if (shape.may_share_prefixes()) {
      members_.reserve(rows_.size());
      member_of_row_.resize(rows_.size());
      results_of_tasks_.resize(prefixes_.size() * static_cast<std::size_t>(shape.num_kv_heads));
    }
  }

  /// The shape that the constructor was given. Constant time.
  [[nodiscard]] const attention_shape& shape() const noexcept { return shape_; }

  /// The words that kernels read; copy them to memory that kernels can access. Constant time.
  [[nodiscard]] std::span<const std::byte> bytes() const noexcept { return {memory_.get(), layout_.bytes}; }

  /// Prefixes that sequences of the latest batch share. Without any, `attention_plan::with_prefixes` may be false.
  /// Constant time.
  [[nodiscard]] std::size_t num_prefixes() const noexcept { return prefixes().size(); }

  /// The division of the latest batch, as `bytes` holds it. Constant time.
  [[nodiscard]] attention_plan_parts parts() const noexcept {
    return {.rows = rows(),
            .shares = shares_,
            .following_tasks = following_,
            .merges = merges_.first(static_cast<std::size_t>(counts_->num_merges)),
            .joined_shares = counts_->joined_shares,
            .prefixes = prefixes(),
            .prefix_shares = prefix_shares_,
            .prefix_queries = prefix_queries_,
            .prefix_results = prefix_results_};
  }

  /// Makes a new plan. The spans of the batch are host memory, but for `lists.blocks`, of which only the size is read;
  /// `indices` may be empty if prefixes need not be shared. Linear in the rows, in query tokens, in the shape's shares
  /// and in partial results; where tasks are dealt, in the tasks. Where prefixes are shared, O(n log n) in the rows,
  /// and linear in the ids that their prefixes have in all of them. Errors: `limit_reached` when rows, partial results
  /// or block tables that are expanded exceed the shape's limits, a row with tree masks has more than
  /// `largest_attention_tree` queries, or lists have 2^31 tokens together; `invalid_argument` for lists that are not
  /// those of the shape, or not as `attention_lists` says. The plan is empty then.
  [[nodiscard]] result<void> plan(const attention_batch& batch) noexcept {
    if (auto described = describe_rows(batch); !described) {
      return described;
    }
    share_prefixes(batch);
    return share_out();
  }

  /// Updates the plan for the same sequences in the same order, some tokens later: the borders of shares stay, and
  /// shares grow or shrink with their rows until they differ by a sixteenth. Then, and when rows were added or removed,
  /// makes a new plan; so it does when a row has become shorter than its shared prefix. Call `plan` instead after a
  /// sequence was cut there and continued, or replaced by another one. New prefixes are found by a new plan only.
  /// Linear in the rows; where shares are made anew, also in these and in partial results. A new plan costs what `plan`
  /// does. Errors: those of `plan`.
  [[nodiscard]] result<void> update(const attention_batch& batch) noexcept {
    const auto same_rows = batch.num_rows() == num_rows() && shape_.split_tokens == 0 && shape_.max_query_tokens == 0;
    if (!same_rows) {
      return plan(batch);
    }
    if (auto described = describe_rows(batch); !described) {
      return described;
    }
    if (!keep_prefixes(batch)) {
      return plan(batch);
    }
    const auto grown = num_tiles_ - planned_tiles_;
    if (row_describer_.same_tasks() && grown >= -planned_tiles_ / 16 && grown <= planned_tiles_ / 16) {
      return {};
    }
    return share_out();
  }

 private:
  /// A row that has a shared prefix.
  struct prefix_member {
    std::int32_t row = 0;
    std::int32_t prefix = 0;
    std::int32_t first_query = 0;  // among the prefix's
    std::int32_t num_queries = 0;
  };

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
  [[nodiscard]] std::span<const attention_row> rows() const noexcept { return rows_.first(num_rows()); }
  [[nodiscard]] std::span<const attention_row> prefixes() const noexcept {
    return prefixes_.first(static_cast<std::size_t>(counts_->num_prefixes));
  }

  /// Makes the plan empty.
  [[nodiscard]] error refuse(const error& reason) noexcept {
    *counts_ = {};
    std::ranges::fill(shares_, attention_share{});
    std::ranges::fill(prefix_shares_, attention_share{});
    members_.clear();
    return reason;
  }

  [[nodiscard]] result<void> describe_rows(const attention_batch& batch) noexcept {
    const auto num_entries = shape_.expanded_blocks == 0 || batch.num_rows() == 0 ? 0 : batch.indptr.back();
    if (num_entries > shape_.expanded_blocks) {
      return refuse({error_code::limit_reached, "last entry of attention_batch.indptr, with blocks that are expanded,",
                     num_entries, shape_.expanded_blocks});
    }
    if (const auto described = row_describer_.describe(batch); !described) {
      return refuse(described.error());
    }
    counts_->num_rows = static_cast<std::int32_t>(row_describer_.num_rows());
    counts_->num_entries = num_entries;
    counts_->used_columns = batch.query_indptr.empty() ? std::min(shape_.group_size, shape_.columns) : shape_.columns;
    num_tiles_ = row_describer_.num_tiles();
    return {};
  }

  [[nodiscard]] result<void> share_out() noexcept {
    planned_tiles_ = num_tiles_;
    if (deals_tasks()) {
      counts_->joined_shares = 1;
      counts_->num_merges = 0;
      counts_->num_large = 0;
      return {};
    }
    const auto num_shares = share_attention_tiles(shape_, rows(), num_tiles_, shares_);
    counts_->joined_shares = planned_joined_shares(shape_, rows(), num_tiles_, num_shares);
    return number_partials();
  }

  /// Tasks in step with each other are not dealt: their keys stay in the second-level cache anyway.
  [[nodiscard]] bool deals_tasks() noexcept {
    const auto most = most_shares(shape_, num_tiles_, shape_.num_shares);
    return shape_.deals_tasks && shape_.split_tokens == 0 && whole_tasks_of_share(shape_, rows(), most) == 0 &&
           task_dealer_.deal(rows(), shares_, following_);
  }

  [[nodiscard]] result<void> number_partials() noexcept {
    counts_->num_merges = 0;
    counts_->num_large = 0;
    const auto numbered = !members_.empty()          ? number_with_prefixes()
                          : shape_.split_tokens == 0 ? number_by_share()
                                                     : number_by_split();
    if (numbered > layout_.max_partials) {
      return refuse({error_code::limit_reached, "partial results of attention", numbered, layout_.max_partials});
    }
    return {};
  }

  /// Numbers the pieces, which end at the ends of shares.
  [[nodiscard]] std::int64_t number_by_share() noexcept {
    auto partials = std::int32_t{0};
    auto merge = attention_merge{};
    const auto joined = joined_attention_shares(counts_->joined_shares, rows(), shares_);
    for (auto i = std::size_t{0}; i + 1 < shares_.size(); ++i) {
      auto& start = shares_[i];
      const auto& end = shares_[i + 1];
      start.first_partial = partials;
      const auto same_task = start.row == end.row && start.task == end.task;
      if ((same_task && start.tile == end.tile) || joined.joins_previous(i)) {
        continue;
      }
      if (start.tile > 0) {
        ++merge.num_partials;
        ++partials;
      }
      if (end.tile > 0 && (!same_task || (start.tile == 0 && !joined.covers_task(i)))) {
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

  /// Numbers the pieces. Of a row with a shared prefix, every task has partial results.
  [[nodiscard]] std::int64_t number_with_prefixes() noexcept {
    auto partials = std::int32_t{0};
    auto merge = attention_merge{};
    const auto joined = joined_attention_shares(counts_->joined_shares, rows(), shares_);
    auto share_index = std::size_t{0};
    for_each_attention_piece(
        rows(), shares_,
        [&](attention_share& share) {
          share.first_partial = partials;
          share_index = static_cast<std::size_t>(&share - shares_.data());
        },
        [&](std::int32_t index, std::int32_t task, std::int32_t tile, std::int32_t end) {
          const auto& row = rows_[static_cast<std::size_t>(index)];
          const auto whole = tile == 0 && (end == row.num_tiles || joined.covers_task(share_index));
          if ((whole && row.first_tile == 0) || joined.joins_previous(share_index)) {
            return;
          }
          if (tile == 0) {
            add(merge);
            merge = {index, task, partials, 0};
          }
          ++merge.num_partials;
          ++partials;
        });
    add(merge);
    return partials;
  }

  /// Where there is no room, the partial results are more than the limit, too, and the plan is refused.
  void add(const attention_merge& merge) noexcept {
    const auto index = static_cast<std::size_t>(counts_->num_merges);
    if (merge.num_partials == 0 || index == merges_.size()) {
      return;
    }
    ++counts_->num_merges;
    auto num_partials = merge.num_partials;
    if (!prefix_results_.empty()) {
      prefix_results_[index] = prefix_results_of(merge);
      num_partials += prefix_results_[index].num_partials;
    }
    if (num_partials > merged_by_group && static_cast<std::size_t>(counts_->num_large) < large_.size()) {
      large_[static_cast<std::size_t>(counts_->num_large++)] = static_cast<std::int32_t>(index);
    }
    merges_[index] = merge;
  }

  [[nodiscard]] attention_prefix_results prefix_results_of(const attention_merge& merge) const noexcept {
    const auto& row = rows_[static_cast<std::size_t>(merge.row)];
    if (members_.empty() || row.first_tile == 0) {
      return {};
    }
    const auto& member = members_[static_cast<std::size_t>(member_of_row_[static_cast<std::size_t>(merge.row)])];
    const auto head = merge.task / row.num_column_tiles;
    auto results = results_of_tasks_[static_cast<std::size_t>(member.prefix * shape_.num_kv_heads + head)];
    results.first_column = member.first_query * shape_.group_size + merge.task % row.num_column_tiles * shape_.columns;
    return results;
  }

  /// Chooses prefixes, and plans them and their rows' own tiles.
  void share_prefixes(const attention_batch& batch) noexcept {
    members_.clear();
    num_member_tasks_ = 0;
    counts_->num_prefixes = 0;
    if (prefixes_.empty()) {
      return;
    }
    if (!batch.indices.empty()) {
      prefix_finder_.find(rows(), batch.indices);
      for (const auto& group : prefix_finder_.groups()) {
        add_prefix(group);
      }
    }
    auto num_tiles = std::int64_t{0};
    for (const auto& prefix : prefixes()) {
      num_tiles += std::int64_t{prefix.num_tiles + task_overhead_} * prefix.num_tasks;
    }
    auto unjoined = shape_;
    unjoined.joined_shares = 1;  // the kernel for prefixes is another one
    share_attention_tiles(unjoined, prefixes(), num_tiles, prefix_shares_);
    number_prefixes();
  }

  /// Adds a prefix if there is room for it, and for a partial result of each task of its rows.
  void add_prefix(const attention_prefix_group& group) noexcept {
    auto num_tasks = num_member_tasks_;
    for (auto i = std::size_t{0}; i < group.num_members; ++i) {
      num_tasks += rows_[static_cast<std::size_t>(prefix_finder_.row_of(group, i))].num_tasks;
    }
    const auto index = counts_->num_prefixes;
    if (static_cast<std::size_t>(index) == prefixes_.size() ||
        num_tasks > layout_.max_partials - 2 * shape_.num_shares) {
      return;
    }
    num_member_tasks_ = num_tasks;
    auto& prefix = prefixes_[static_cast<std::size_t>(index)];
    prefix = {};
    prefix.num_tokens = group.num_tiles * attention_tile;
    prefix.first_query = index * (shape_.prefix_columns / shape_.group_size);
    prefix.num_queries = 0;
    prefix.num_tiles = group.num_tiles;
    prefix.num_tasks = shape_.num_kv_heads;
    ++counts_->num_prefixes;
    for (auto i = std::size_t{0}; i < group.num_members; ++i) {
      const auto row = prefix_finder_.row_of(group, i);
      const auto num_queries = rows_[static_cast<std::size_t>(row)].num_queries;
      member_of_row_[static_cast<std::size_t>(row)] = static_cast<std::int32_t>(members_.size());
      members_.push_back({row, index, prefix.num_queries, num_queries});
      prefix.num_queries += num_queries;
      shorten(members_.back());
    }
  }

  /// Removes the tiles of its prefix from a row, and sets its queries in the prefix.
  void shorten(const prefix_member& member) noexcept {
    auto& row = rows_[static_cast<std::size_t>(member.row)];
    auto& prefix = prefixes_[static_cast<std::size_t>(member.prefix)];
    if (member.first_query == 0) {
      prefix.first_index = row.first_index;
    }
    row.first_tile = prefix.num_tiles;
    row.num_tiles -= prefix.num_tiles;
    num_tiles_ -= std::int64_t{prefix.num_tiles} * row.num_tasks;
    for (auto i = 0; i < member.num_queries; ++i) {
      prefix_queries_[static_cast<std::size_t>(prefix.first_query + member.first_query + i)] = {
          row.first_query + i, row.num_tokens - row.num_queries + i};
    }
  }

  /// Sets the prefixes of the plan in rows that have been described again. False if a row is too short for its prefix.
  [[nodiscard]] bool keep_prefixes([[maybe_unused]] const attention_batch& batch) noexcept {
    for (const auto& member : members_) {
      const auto& row = rows_[static_cast<std::size_t>(member.row)];
      const auto prefix_tokens = prefixes_[static_cast<std::size_t>(member.prefix)].num_tokens;
      if (row.num_queries != member.num_queries || row.num_tokens - row.num_queries < prefix_tokens) {
        return false;
      }
      shorten(member);
      assert(has_block_of_prefix(batch, member) && "a sequence of the plan, which has only grown");
    }
    return true;
  }

  /// Whether the last block of its prefix is the same as in the plan's other rows. To look at each would take longer
  /// than all else that an update does.
  [[nodiscard]] bool has_block_of_prefix(const attention_batch& batch, const prefix_member& member) const noexcept {
    const auto& prefix = prefixes_[static_cast<std::size_t>(member.prefix)];
    const auto block = (prefix.num_tokens - 1) / shape_.block_size;
    const auto& row = rows_[static_cast<std::size_t>(member.row)];
    return batch.indices.empty() || batch.indices[static_cast<std::size_t>(row.first_index + block)] ==
                                        batch.indices[static_cast<std::size_t>(prefix.first_index + block)];
  }

  /// Numbers the pieces of prefixes, all of which are partial results.
  void number_prefixes() noexcept {
    auto partials = std::int32_t{0};
    for_each_attention_piece(
        prefixes(), prefix_shares_, [&](attention_share& share) { share.first_partial = partials; },
        [&](std::int32_t prefix, std::int32_t task, std::int32_t tile, std::int32_t) {
          auto& results = results_of_tasks_[static_cast<std::size_t>(prefix * shape_.num_kv_heads + task)];
          if (tile == 0) {
            results = {partials, 0, 0, 0};
          }
          ++results.num_partials;
          ++partials;
        });
  }

  attention_shape shape_;
  attention_plan_layout layout_;
  std::unique_ptr<std::byte[], release_memory> memory_;
  std::int32_t task_overhead_ = attention_task_overhead(shape_);
  attention_counts* counts_;
  std::span<attention_row> rows_;
  std::span<attention_share> shares_;
  std::span<attention_merge> merges_;
  std::span<std::int32_t> large_;
  std::span<attention_row> prefixes_;
  std::span<attention_share> prefix_shares_;
  std::span<attention_prefix_query> prefix_queries_;
  std::span<attention_prefix_results> prefix_results_;
  std::span<std::int32_t> following_;
  attention_task_dealer task_dealer_;
  attention_row_describer row_describer_;
  attention_prefix_finder prefix_finder_;
  std::vector<prefix_member> members_;  // by prefix
  std::int64_t num_member_tasks_ = 0;
  std::vector<std::int32_t> member_of_row_;                 // index of a row in `members_`, if it has a prefix
  std::vector<attention_prefix_results> results_of_tasks_;  // [prefix][KV head]
  std::int64_t num_tiles_ = 0;                              // of all tasks, their overhead included
  std::int64_t planned_tiles_ = 0;                          // when shares were last made
};

}  // namespace pagedkv
