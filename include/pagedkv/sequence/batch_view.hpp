#pragma once

#include <pagedkv/core/error.hpp>
#include <pagedkv/core/ids.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace pagedkv {

/// What a batch copies of one sequence.
struct batch_row {
  sequence_id id{};
  std::uint32_t version = 0;  // of the block table's old entries
  std::int64_t num_tokens = 0;
  std::span<const block_id> blocks;
};

namespace detail {

/// What a row of a batch held last time.
struct known_row {
  sequence_id id{};
  std::uint32_t version = 0;
  std::int32_t num_blocks = -1;

  /// How many leading entries of the row's blocks are already in place.
  [[nodiscard]] std::size_t num_unchanged(const batch_row& row) const noexcept {
    const bool same = num_blocks >= 0 && id == row.id && version == row.version;
    return same ? static_cast<std::size_t>(num_blocks) : 0;
  }

  /// Whether the row is in place, its size included.
  [[nodiscard]] bool holds(const batch_row& row) const noexcept {
    return num_unchanged(row) == row.blocks.size() && std::cmp_equal(num_blocks, row.blocks.size());
  }

  void remember(const batch_row& row) noexcept {
    id = row.id;
    version = row.version;
    num_blocks = static_cast<std::int32_t>(row.blocks.size());
  }
};

/// Tokens in the last block: in [1, block_size], and 0 for an empty sequence.
[[nodiscard]] inline std::int32_t last_block_len(const batch_row& row, std::int32_t block_size) noexcept {
  return row.num_tokens == 0 ? 0 : static_cast<std::int32_t>((row.num_tokens - 1) % block_size + 1);
}

[[nodiscard]] inline error too_small(const char* what, std::size_t needed, std::size_t room) noexcept {
  return {error_code::limit_reached, what, static_cast<std::int64_t>(needed), static_cast<std::int64_t>(room)};
}

}  // namespace detail

/// The block tables of a batch as padded rows: `[row][max_blocks]` int32 ids, `no_block` behind the end and where a sliding
/// window dropped blocks; and the length of each sequence. Updating writes only entries that changed.
class padded_batch {
 public:
  /// Takes all memory that `update` will need.
  padded_batch(std::size_t max_rows, std::size_t max_blocks)
      : max_blocks_(max_blocks), known_(max_rows), tables_(max_rows * max_blocks, no_block), lengths_(max_rows) {}

  [[nodiscard]] std::size_t max_rows() const noexcept { return known_.size(); }
  [[nodiscard]] std::size_t row_stride() const noexcept { return max_blocks_; }
  [[nodiscard]] std::size_t num_rows() const noexcept { return num_rows_; }
  [[nodiscard]] std::span<const block_id> block_tables() const noexcept {
    return std::span{tables_}.first(num_rows_ * max_blocks_);
  }
  [[nodiscard]] std::span<const std::int32_t> lengths() const noexcept { return std::span{lengths_}.first(num_rows_); }

  /// `row_of(i)` describes row i. Errors: `limit_reached` when there is too little room; nothing is changed then.
  template <class RowOf>
  [[nodiscard]] result<void> update(std::size_t num_rows, std::int32_t /*block_size*/, RowOf&& row_of) noexcept {
    if (num_rows > max_rows()) {
      return detail::too_small("number of rows", num_rows, max_rows());
    }
    for (std::size_t i = 0; i < num_rows; ++i) {
      if (const auto size = row_of(i).blocks.size(); size > max_blocks_) {
        return detail::too_small("number of blocks in a row", size, max_blocks_);
      }
    }
    num_rows_ = num_rows;
    for (std::size_t i = 0; i < num_rows; ++i) {
      const batch_row row = row_of(i);
      lengths_[i] = static_cast<std::int32_t>(row.num_tokens);
      auto& known = known_[i];
      const auto unchanged = known.num_unchanged(row);
      const auto before = static_cast<std::size_t>(std::max(known.num_blocks, 0));
      if (unchanged != row.blocks.size() || before != unchanged) {
        const auto table = std::span{tables_}.subspan(i * max_blocks_, max_blocks_);
        std::ranges::copy(row.blocks.subspan(unchanged), table.begin() + static_cast<std::ptrdiff_t>(unchanged));
        if (before > row.blocks.size()) {
          std::ranges::fill(table.first(before).subspan(row.blocks.size()), no_block);
        }
        known.remember(row);
      }
    }
    return {};
  }

 private:
  std::size_t max_blocks_;
  std::size_t num_rows_ = 0;
  std::vector<detail::known_row> known_;
  std::vector<block_id> tables_;
  std::vector<std::int32_t> lengths_;
};

/// The block tables of a batch as compressed rows: row i is `indices[indptr[i]]` up to `indices[indptr[i + 1]]`, and its
/// length is `block_size * (blocks - 1) + last_block_len[i]`. All int32. Updating writes only entries that changed, and
/// shifts those behind a row that grew.
class compressed_batch {
 public:
  /// Takes all memory that `update` will need. `max_indices` counts the blocks of all rows together.
  compressed_batch(std::size_t max_rows, std::size_t max_indices)
      : known_(max_rows), indptr_(max_rows + 1), last_block_len_(max_rows), indices_(max_indices, no_block) {}

  [[nodiscard]] std::size_t max_rows() const noexcept { return known_.size(); }
  [[nodiscard]] std::size_t num_rows() const noexcept { return num_rows_; }
  [[nodiscard]] std::span<const std::int32_t> indptr() const noexcept { return std::span{indptr_}.first(num_rows_ + 1); }
  [[nodiscard]] std::span<const block_id> indices() const noexcept {
    return std::span{indices_}.first(static_cast<std::size_t>(indptr_[num_rows_]));
  }
  [[nodiscard]] std::span<const std::int32_t> last_block_len() const noexcept {
    return std::span{last_block_len_}.first(num_rows_);
  }

  /// `row_of(i)` describes row i. Errors: `limit_reached` when there is too little room; nothing is changed then.
  template <class RowOf>
  [[nodiscard]] result<void> update(std::size_t num_rows, std::int32_t block_size, RowOf&& row_of) noexcept {
    if (num_rows > max_rows()) {
      return detail::too_small("number of rows", num_rows, max_rows());
    }
    auto num_indices = std::size_t{0};
    for (std::size_t i = 0; i < num_rows; ++i) {
      num_indices += row_of(i).blocks.size();
    }
    if (num_indices > indices_.size()) {
      return detail::too_small("number of blocks in all rows", num_indices, indices_.size());
    }
    const auto first = update_lengths(num_rows, block_size, row_of);
    if (first < num_rows) {
      if (only_grew(first, num_rows, row_of)) {
        grow(first, num_rows, row_of);
      } else {
        rewrite(first, num_rows, row_of);
      }
    }
    num_rows_ = num_rows;
    return {};
  }

 private:
  /// Returns the first row whose entries changed.
  template <class RowOf>
  [[nodiscard]] std::size_t update_lengths(std::size_t num_rows, std::int32_t block_size, RowOf& row_of) {
    auto first_changed = num_rows;
    for (std::size_t i = 0; i < num_rows; ++i) {
      const batch_row row = row_of(i);
      last_block_len_[i] = detail::last_block_len(row, block_size);
      if (first_changed == num_rows && (i >= num_rows_ || !known_[i].holds(row))) {
        first_changed = i;
      }
    }
    return first_changed;
  }

  /// Whether the rows from `first` on are those of last time, none with other old entries, and perhaps more rows behind.
  template <class RowOf>
  [[nodiscard]] bool only_grew(std::size_t first, std::size_t num_rows, RowOf& row_of) const {
    for (std::size_t i = first; i < std::min(num_rows, num_rows_); ++i) {
      const batch_row row = row_of(i);
      if (known_[i].id != row.id || known_[i].version != row.version) {
        return false;
      }
    }
    return num_rows >= num_rows_;
  }

  /// From the last row to the first, since every row moves towards the end.
  template <class RowOf>
  void grow(std::size_t first, std::size_t num_rows, RowOf& row_of) {
    auto end = static_cast<std::size_t>(indptr_[first]);
    for (std::size_t i = first; i < num_rows; ++i) {
      end += row_of(i).blocks.size();
    }
    for (auto i = num_rows; i > first; --i) {
      const batch_row row = row_of(i - 1);
      auto& known = known_[i - 1];
      const auto size = row.blocks.size();
      const auto unchanged = i > num_rows_ ? 0 : known.num_unchanged(row);
      const auto old_start = indices_.begin() + indptr_[i - 1];
      const auto start = indices_.begin() + static_cast<std::ptrdiff_t>(end - size);
      if (start != old_start && unchanged != 0) {
        std::move_backward(old_start, old_start + static_cast<std::ptrdiff_t>(unchanged),
                           start + static_cast<std::ptrdiff_t>(unchanged));
      }
      std::ranges::copy(row.blocks.subspan(unchanged), start + static_cast<std::ptrdiff_t>(unchanged));
      known.remember(row);
      indptr_[i] = static_cast<std::int32_t>(end);
      end -= size;
    }
  }

  template <class RowOf>
  void rewrite(std::size_t first, std::size_t num_rows, RowOf& row_of) {
    auto end = indices_.begin() + indptr_[first];
    for (std::size_t i = first; i < num_rows; ++i) {
      const batch_row row = row_of(i);
      end = std::ranges::copy(row.blocks, end).out;
      known_[i].remember(row);
      indptr_[i + 1] = static_cast<std::int32_t>(end - indices_.begin());
    }
  }

  std::size_t num_rows_ = 0;
  std::vector<detail::known_row> known_;
  std::vector<std::int32_t> indptr_;
  std::vector<std::int32_t> last_block_len_;
  std::vector<block_id> indices_;
};

}  // namespace pagedkv
