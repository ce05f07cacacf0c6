#pragma once

#include <pagedkv/core/ids.hpp>
#include <pagedkv/core/result.hpp>
#include <pagedkv/detail/runs.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace pagedkv {

/// The facts about one sequence that a batch copies.
struct batch_row {
  sequence_id id{};
  std::uint32_t version = 0;  // of the block table's old entries
  std::int64_t num_tokens = 0;
  std::span<const block_id> blocks;
};

/// The rows of a batch as of the last update and as of the next one. `visit_row(i, use)` calls `use(row)` while no
/// other thread changes that row's sequence; it may fail.
class batch_rows {
 public:
  struct row {
    sequence_id id{};
    std::uint32_t version = 0;
    std::uint32_t num_blocks = 0;
    std::int64_t num_tokens = 0;
  };

  explicit batch_rows(std::size_t max_rows) : current_(max_rows), next_(max_rows) {}

  [[nodiscard]] std::size_t max_rows() const noexcept { return current_.size(); }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] const row& current(std::size_t i) const noexcept { return current_[i]; }
  [[nodiscard]] const row& next(std::size_t i) const noexcept { return next_[i]; }
  /// Blocks of the longest of the next rows, and of all of them.
  [[nodiscard]] std::size_t most_blocks() const noexcept { return most_blocks_; }
  [[nodiscard]] std::size_t num_blocks() const noexcept { return num_blocks_; }

  /// Collects all rows without changing the current ones. Errors: `limit_reached` for too many rows, and those of
  /// `visit_row`.
  template <class VisitRow>
  [[nodiscard]] result<void> collect(std::size_t num_rows, VisitRow& visit_row) noexcept {
    if (num_rows > max_rows()) {
      return too_small("number of rows, more than the batch was made for,", num_rows, max_rows());
    }
    auto most_blocks = std::size_t{0};
    auto num_blocks = std::size_t{0};
    for (std::size_t i = 0; i < num_rows; ++i) {
      auto visited = visit_row(i, [&](const batch_row& seen) -> result<void> {
        next_[i] = {seen.id, seen.version, static_cast<std::uint32_t>(seen.blocks.size()), seen.num_tokens};
        most_blocks = std::max(most_blocks, seen.blocks.size());
        num_blocks += seen.blocks.size();
        return {};
      });
      if (!visited) {
        return visited;
      }
    }
    most_blocks_ = most_blocks;
    num_blocks_ = num_blocks;
    return {};
  }

  /// Number of leading entries of row i that are the same as at the last update.
  [[nodiscard]] std::size_t num_unchanged(std::size_t i) const noexcept {
    return keeps_entries(i) ? std::min(current_[i].num_blocks, next_[i].num_blocks) : 0;
  }

  [[nodiscard]] bool is_unchanged(std::size_t i) const noexcept {
    return keeps_entries(i) && current_[i].num_blocks == next_[i].num_blocks;
  }

  /// Whether the rows from `first` on keep all their entries.
  [[nodiscard]] bool only_grew(std::size_t first, std::size_t num_rows) const noexcept {
    for (auto i = first; i < std::min(num_rows, size_); ++i) {
      if (current_[i].id != next_[i].id || num_unchanged(i) != current_[i].num_blocks) {
        return false;
      }
    }
    return true;
  }

  /// Copies the changed entries of row i. Errors: `sequence_busy` when the row differs from the collected one.
  template <class VisitRow>
  [[nodiscard]] result<void> copy_changed(std::size_t i, VisitRow& visit_row, block_id* destination) const noexcept {
    return visit_row(i, [&](const batch_row& seen) -> result<void> {
      if (seen.version != next_[i].version || seen.blocks.size() < next_[i].num_blocks) {
        return error{error_code::sequence_busy, "id of a sequence that another thread has changed",
                     static_cast<std::int64_t>(seen.id)};
      }
      const auto unchanged = num_unchanged(i);
      const auto changed = seen.blocks.first(next_[i].num_blocks).subspan(unchanged);
      copy_run(changed, std::span{destination + unchanged, changed.size()});
      return {};
    });
  }

  void accept(std::size_t num_rows) noexcept {
    std::swap(current_, next_);
    size_ = num_rows;
  }
  void forget() noexcept { forget_from(0); }
  void forget_from(std::size_t first) noexcept { size_ = std::min(size_, first); }

  [[nodiscard]] static error too_small(const char* what, std::size_t needed, std::size_t room) noexcept {
    return {error_code::limit_reached, what, static_cast<std::int64_t>(needed), static_cast<std::int64_t>(room)};
  }

 private:
  /// Whether row i is of the same sequence as before, whose old entries have not changed.
  [[nodiscard]] bool keeps_entries(std::size_t i) const noexcept {
    return i < size_ && current_[i].id == next_[i].id && current_[i].version == next_[i].version;
  }

  std::size_t size_ = 0;
  std::size_t most_blocks_ = 0;
  std::size_t num_blocks_ = 0;
  std::vector<row> current_;
  std::vector<row> next_;
};

}  // namespace pagedkv
