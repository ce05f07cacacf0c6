#pragma once

#include <pagedkv/sequence/batch_rows.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

namespace pagedkv {

/// The block tables of a batch as padded rows: `[row][max_blocks]` int32 ids, with `no_block` after the end and where a
/// sliding window dropped blocks; and the length of each sequence. `update` writes only changed entries.
class padded_batch {
 public:
  /// Allocates all memory that `update` needs. Throws `std::bad_alloc` or `std::length_error`.
  padded_batch(std::size_t max_rows, std::size_t max_blocks)
      : max_blocks_(max_blocks),
        rows_(max_rows),
        tables_(product(max_rows, max_blocks), no_block),
        lengths_(max_rows) {}

  /// Entries from one row to the next; rows; tables; and tokens of each row, as the latest update left them. Constant
  /// time.
  [[nodiscard]] std::size_t row_stride() const noexcept { return max_blocks_; }
  [[nodiscard]] std::size_t num_rows() const noexcept { return rows_.size(); }
  [[nodiscard]] std::span<const block_id> block_tables() const noexcept {
    return std::span{tables_}.first(num_rows() * max_blocks_);
  }
  [[nodiscard]] std::span<const std::int32_t> lengths() const noexcept { return std::span{lengths_}.first(num_rows()); }

  /// `visit_row(i, use)` calls `use` with row `i` of `num_rows`. Linear in the rows, and in their new and changed
  /// entries. Errors: `limit_reached` when the capacity does not suffice, and those of `visit_row`; the batch is then
  /// unchanged. `sequence_busy` when another thread changes a sequence meanwhile; the batch is then empty.
  template <class VisitRow>
  [[nodiscard]] result<void> update(std::size_t num_rows, std::int32_t /*block_size*/, VisitRow&& visit_row) noexcept {
    if (auto collected = rows_.collect(num_rows, visit_row); !collected) {
      return collected;
    }
    if (const auto needed = rows_.most_blocks(); needed > max_blocks_) {
      return batch_rows::too_small("number of blocks in a row, more than the batch was made for,", needed, max_blocks_);
    }
    for (std::size_t i = 0; i < num_rows; ++i) {
      lengths_[i] = static_cast<std::int32_t>(rows_.next(i).num_tokens);
      if (auto updated = update_row(i, visit_row); !updated) {
        rows_.forget();
        std::ranges::fill(tables_, no_block);
        return updated;
      }
    }
    for (auto i = num_rows; i < rows_.size(); ++i) {
      clear(i, 0, rows_.current(i).num_blocks);
    }
    rows_.accept(num_rows);
    return {};
  }

 private:
  /// Saturates, so that a vector of that size is refused.
  [[nodiscard]] static std::size_t product(std::size_t a, std::size_t b) noexcept {
    auto exact = std::size_t{0};
    return __builtin_mul_overflow(a, b, &exact) ? std::numeric_limits<std::size_t>::max() : exact;
  }

  template <class VisitRow>
  [[nodiscard]] result<void> update_row(std::size_t i, VisitRow& visit_row) noexcept {
    const auto before = i < rows_.size() ? rows_.current(i).num_blocks : 0;
    const auto after = rows_.next(i).num_blocks;
    if (rows_.num_unchanged(i) != after) {
      if (auto copied = rows_.copy_changed(i, visit_row, tables_.data() + i * max_blocks_); !copied) {
        return copied;
      }
    }
    clear(i, after, before);
    return {};
  }

  void clear(std::size_t i, std::size_t first, std::size_t last) noexcept {
    if (first < last) {
      std::ranges::fill(std::span<block_id>(tables_).subspan(i * max_blocks_ + first, last - first), no_block);
    }
  }

  std::size_t max_blocks_;
  batch_rows rows_;
  std::vector<block_id> tables_;
  std::vector<std::int32_t> lengths_;
};

/// The block tables of a batch as compressed rows: row i is `indices[indptr[i]]` up to `indices[indptr[i + 1]]`, and
/// its length is `block_size * (blocks - 1) + last_block_len[i]`; all int32, with `no_block` where a sliding window
/// dropped blocks. `update` writes only changed entries, and shifts the rows after one that grew.
class compressed_batch {
 public:
  /// Allocates all memory that `update` needs. `max_indices` counts the blocks of all rows together.
  compressed_batch(std::size_t max_rows, std::size_t max_indices)
      : rows_(max_rows), indptr_(max_rows + 1), last_block_len_(max_rows), indices_(max_indices, no_block) {}

  /// Rows, and the arrays of the class comment, as the latest update left them. Constant time.
  [[nodiscard]] std::size_t num_rows() const noexcept { return rows_.size(); }
  [[nodiscard]] std::span<const std::int32_t> indptr() const noexcept {
    return std::span{indptr_}.first(num_rows() + 1);
  }
  [[nodiscard]] std::span<const block_id> indices() const noexcept {
    return std::span{indices_}.first(static_cast<std::size_t>(indptr_[num_rows()]));
  }
  /// Tokens in the last block of each row: in [1, block_size], 0 for an empty sequence. Constant time.
  [[nodiscard]] std::span<const std::int32_t> last_block_len() const noexcept {
    return std::span{last_block_len_}.first(num_rows());
  }

  /// Takes rows as `padded_batch::update` does. Linear in the rows, in their new and changed entries, and in entries
  /// behind a row that grew. Errors: those of `padded_batch::update`.
  template <class VisitRow>
  [[nodiscard]] result<void> update(std::size_t num_rows, std::int32_t block_size, VisitRow&& visit_row) noexcept {
    if (auto collected = rows_.collect(num_rows, visit_row); !collected) {
      return collected;
    }
    if (const auto needed = rows_.num_blocks(); needed > indices_.size()) {
      return batch_rows::too_small("number of blocks in all rows, more than the batch was made for,", needed,
                                   indices_.size());
    }
    for (std::size_t i = 0; i < num_rows; ++i) {
      last_block_len_[i] = length_of_last_block(rows_.next(i).num_tokens, block_size);
    }
    if (auto moved = move_rows(num_rows, visit_row); !moved) {
      rows_.forget();
      return moved;
    }
    rows_.accept(num_rows);
    return {};
  }

 private:
  [[nodiscard]] static std::int32_t length_of_last_block(std::int64_t num_tokens, std::int32_t block_size) noexcept {
    const auto before = static_cast<std::uint64_t>(num_tokens - 1);
    const auto size = static_cast<std::uint32_t>(block_size);
    // The usual length takes a division of 32 bits, which is faster.
    const auto last = before <= 0xffff'ffff ? static_cast<std::uint32_t>(before) % size : before % size;
    return num_tokens == 0 ? 0 : static_cast<std::int32_t>(last) + 1;
  }

  template <class VisitRow>
  [[nodiscard]] result<void> move_rows(std::size_t num_rows, VisitRow& visit_row) noexcept {
    auto first = std::size_t{0};
    while (first < num_rows && rows_.is_unchanged(first)) {
      ++first;
    }
    if (!rows_.only_grew(first, num_rows)) {
      rows_.forget_from(first);
    }
    // Rows that grew only shift entries towards the end, so in the order from last to first none is overwritten too
    // early.
    auto end = rows_.num_blocks();
    for (auto i = num_rows; i > first;) {
      if (rows_.is_unchanged(i - 1)) {
        end = move_unchanged(first, i, end);
        continue;
      }
      --i;
      const auto start = end - rows_.next(i).num_blocks;
      shift(static_cast<std::size_t>(indptr_[i]), start, rows_.num_unchanged(i));
      if (auto copied = rows_.copy_changed(i, visit_row, indices_.data() + start); !copied) {
        return copied;
      }
      indptr_[i + 1] = static_cast<std::int32_t>(end);
      end = start;
    }
    return {};
  }

  /// Moves the unchanged rows before row `i` as one, so that they end at `end`. Sets `i` to the first of them, and
  /// returns the entry where it starts.
  [[nodiscard]] std::size_t move_unchanged(std::size_t first, std::size_t& i, std::size_t end) noexcept {
    const auto old_end = static_cast<std::size_t>(indptr_[i]);
    const auto distance = static_cast<std::int32_t>(end - old_end);
    for (; i > first && rows_.is_unchanged(i - 1); --i) {
      indptr_[i] += distance;
    }
    const auto old_start = static_cast<std::size_t>(indptr_[i]);
    const auto start = end - (old_end - old_start);
    shift(old_start, start, old_end - old_start);
    return start;
  }

  void shift(std::size_t from, std::size_t to, std::size_t count) noexcept {
    if (from != to && count != 0) {
      const auto source = indices_.begin() + static_cast<std::ptrdiff_t>(from);
      std::move_backward(source, source + static_cast<std::ptrdiff_t>(count),
                         indices_.begin() + static_cast<std::ptrdiff_t>(to + count));
    }
  }

  batch_rows rows_;
  std::vector<std::int32_t> indptr_;
  std::vector<std::int32_t> last_block_len_;
  std::vector<block_id> indices_;
};

}  // namespace pagedkv
