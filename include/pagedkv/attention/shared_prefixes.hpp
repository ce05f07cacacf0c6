#pragma once

#include <pagedkv/attention/plan_layout.hpp>
#include <pagedkv/core/ids.hpp>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

namespace pagedkv {

/// Rows of a batch, at most as many as have room among the columns of a prefix, and the tiles that all of them share.
struct attention_prefix_group {
  std::size_t first_member = 0;
  std::size_t num_members = 0;
  std::int32_t num_tiles = 0;
};

/// Finds prefixes that rows of a batch share, by the ids of their blocks. Every row has at most one prefix: where some
/// rows share more than others, the choice that saves more time. Only the constructor allocates.
class attention_prefix_finder {
 public:
  /// Throws `std::bad_alloc`.
  explicit attention_prefix_finder(const attention_shape& shape) : shape_(shape) {
    if (!shape.may_share_prefixes()) {
      return;
    }
    const auto max_rows = static_cast<std::size_t>(std::max(shape.max_rows, 1));
    most_queries_ = shape.prefix_columns / shape.group_size;
    least_tokens_ = (attention_prefix_costs::of_merge(1, shape.group_size) + 1) * attention_tile;
    table_.resize(std::bit_ceil(2 * max_rows));
    chains_.resize(max_rows);
    members_.reserve(max_rows);
    groups_.reserve(max_rows);
    buckets_.reserve(max_rows);
  }

  /// Linear in the number of rows, and in the number of ids that shared prefixes have in all rows.
  void find(std::span<const attention_row> rows, std::span<const block_id> indices) noexcept {
    rows_ = rows;
    indices_ = indices;
    members_.clear();
    groups_.clear();
    fill_table();
    auto saved = std::int64_t{0};
    for (const auto bucket : buckets_) {
      const auto first = members_.size();
      for (auto row = table_[bucket]; row != 0; row = chains_[static_cast<std::size_t>(row - 1)].next) {
        members_.push_back({0, row - 1});
      }
      saved += choose(first, members_.size(), 0, 0);
    }
    if (saved * shape_.num_kv_heads <= std::int64_t{shape_.prefix_costs.launch} * shape_.num_shares) {
      groups_.clear();
    }
  }

  [[nodiscard]] std::span<const attention_prefix_group> groups() const noexcept { return groups_; }

  /// The `i`-th row of a group.
  [[nodiscard]] std::int32_t row_of(const attention_prefix_group& group, std::size_t i) const noexcept {
    return members_[group.first_member + i].row;
  }

 private:
  static constexpr int most_levels = 16;  // of prefixes within prefixes

  struct member {
    std::int32_t key;
    std::int32_t row;

    friend auto operator<=>(const member&, const member&) = default;
  };

  /// Rows with equal keys; 1 is the first row, and 0 ends a chain.
  struct chain_link {
    std::int32_t key;
    std::int32_t next;
  };

  [[nodiscard]] const attention_row& row_of(const member& of) const noexcept {
    return rows_[static_cast<std::size_t>(of.row)];
  }

  /// The tokens of the blocks that all queries of a row see; at least one token stays the row's own. A block that is
  /// not full may be replaced, where sequences have been forked.
  [[nodiscard]] std::int64_t sharable(const attention_row& row) const noexcept {
    const auto seen = row.num_tokens - row.num_queries;
    return seen / shape_.block_size * shape_.block_size;
  }

  [[nodiscard]] std::int32_t block_at(const attention_row& row, std::int64_t position) const noexcept {
    return static_cast<std::int32_t>(
        indices_[static_cast<std::size_t>(row.first_index + position / shape_.block_size)]);
  }

  /// Groups rows by the block at the end of the shortest prefix that can pay: two rows with the same block there almost
  /// certainly share all blocks before it.
  void fill_table() noexcept {
    std::ranges::fill(table_, 0);
    buckets_.clear();
    const auto mask = table_.size() - 1;
    for (auto i = std::size_t{0}; i < rows_.size(); ++i) {
      const auto& row = rows_[i];
      if (sharable(row) < least_tokens_ || row.num_queries < 1 || row.num_queries > most_queries_) {
        continue;
      }
      const auto key = block_at(row, least_tokens_ - 1);
      auto bucket = (static_cast<std::uint32_t>(key) * 0x9e3779b1U >> 7) & mask;
      while (table_[bucket] != 0 && chains_[static_cast<std::size_t>(table_[bucket] - 1)].key != key) {
        bucket = (bucket + 1) & mask;
      }
      const auto before = table_[bucket];
      if (before != 0 && chains_[static_cast<std::size_t>(before - 1)].next == 0) {
        buckets_.push_back(bucket);
      }
      chains_[i] = {key, before};
      table_[bucket] = static_cast<std::int32_t>(i) + 1;
    }
  }

  /// The tokens that all of these rows share, of which they share `known`.
  [[nodiscard]] std::int64_t common_tokens(std::size_t begin, std::size_t end, std::int64_t known) const noexcept {
    const auto& first = row_of(members_[begin]);
    auto common = sharable(first);
    for (auto i = begin + 1; i < end; ++i) {
      const auto& row = row_of(members_[i]);
      common = std::min(common, sharable(row));
      const auto from = known / shape_.block_size;
      const auto num_blocks = (common + shape_.block_size - 1) / shape_.block_size - from;
      const auto* const a = indices_.data() + first.first_index + from;
      const auto* const b = indices_.data() + row.first_index + from;
      if (num_blocks > 0 && std::memcmp(a, b, static_cast<std::size_t>(num_blocks) * sizeof(block_id)) != 0) {
        common = (from + (std::mismatch(a, a + num_blocks, b).first - a)) * shape_.block_size;
      }
    }
    return common;
  }

  /// Divides rows into those that have room among the columns of one prefix. Calls `use` with those that save time.
  /// Returns the time.
  template <class Use>
  [[nodiscard]] std::int64_t divide(std::size_t begin, std::size_t end, std::int32_t tiles, Use use) const noexcept {
    auto all = std::int64_t{0};
    while (begin < end) {
      auto last = begin;
      auto saved = -std::int64_t{shape_.prefix_costs.tile} * tiles;
      for (auto queries = row_of(members_[last]).num_queries; queries <= most_queries_;) {
        const auto& row = row_of(members_[last]);
        saved += std::int64_t{row.num_column_tiles} * tiles -
                 attention_prefix_costs::of_merge(row.num_queries, shape_.group_size);
        if (++last == end) {
          break;
        }
        queries += row_of(members_[last]).num_queries;
      }
      if (saved > 0) {
        use(begin, last);
        all += saved;
      }
      begin = last;
    }
    return all;
  }

  /// Chooses between one prefix for all of these rows, which share `known` tokens, and longer ones for some of them.
  /// Returns the time that this saves for each KV head.
  [[nodiscard]] std::int64_t choose(std::size_t begin, std::size_t end, std::int64_t known, int level) noexcept {
    const auto common = common_tokens(begin, end, known);
    const auto num_groups = groups_.size();
    const auto of_some = level < most_levels ? choose_longer(begin, end, common, level) : 0;
    const auto tiles = static_cast<std::int32_t>(common / attention_tile);
    const auto of_all = divide(begin, end, tiles, [](std::size_t, std::size_t) {});
    if (of_all <= of_some) {
      return of_some;
    }
    groups_.resize(num_groups);
    return divide(begin, end, tiles, [&](std::size_t first, std::size_t last) {
      groups_.push_back({first, last - first, tiles});
    });
  }

  [[nodiscard]] std::int64_t choose_longer(std::size_t begin, std::size_t end, std::int64_t common,
                                           int level) noexcept {
    for (auto i = begin; i < end; ++i) {
      const auto& row = row_of(members_[i]);
      members_[i].key = sharable(row) > common ? block_at(row, common) : -1;
    }
    std::sort(members_.begin() + static_cast<std::ptrdiff_t>(begin),
              members_.begin() + static_cast<std::ptrdiff_t>(end));
    auto saved = std::int64_t{0};
    for (auto first = begin; first < end;) {
      const auto key = members_[first].key;
      auto last = first + 1;
      while (last < end && members_[last].key == key) {
        ++last;
      }
      if (last - first > 1 && key >= 0) {
        saved += choose(first, last, common, level + 1);
      }
      first = last;
    }
    return saved;
  }

  attention_shape shape_;
  std::int32_t most_queries_ = 0;
  std::int64_t least_tokens_ = 0;
  std::span<const attention_row> rows_;
  std::span<const block_id> indices_;
  std::vector<std::int32_t> table_;   // by hash: the last row with the key, counted from 1; 0: none
  std::vector<chain_link> chains_;    // [row]
  std::vector<std::size_t> buckets_;  // those with several rows
  std::vector<member> members_;
  std::vector<attention_prefix_group> groups_;
};

}  // namespace pagedkv
