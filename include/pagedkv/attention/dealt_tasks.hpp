#pragma once

#include <pagedkv/attention/plan_layout.hpp>
#include <pagedkv/attention/shares.hpp>

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

namespace pagedkv {

/// Deals the tasks of prompts to shares, whole and in their order, each to the share that has the least work so far.
/// Workgroups then read the keys of few sequences at a time, which the second-level cache holds, and merge nothing. Only
/// the constructor allocates.
class attention_task_dealer {
 public:
  explicit attention_task_dealer(const attention_shape& shape)
      : task_overhead_(attention_task_overhead(shape)),
        share_with_(shape.deals_tasks ? num_loads : 0),
        next_share_(static_cast<std::size_t>(shape.deals_tasks ? shape.num_shares : 0)),
        last_task_(next_share_.size()) {}

  /// Writes the first task of each share, and for each task the one after it in its share, or -1. A task's number counts
  /// those of all rows. False, and nothing of use written, if there are no shares or no room, if rows have unlike numbers
  /// of tasks, or if a share would get a tenth more than the mean. Linear in the number of tasks.
  [[nodiscard]] bool deal(std::span<const attention_row> rows, std::span<attention_share> shares,
                          std::span<std::int32_t> following) noexcept {
    if (next_share_.empty() || rows.empty() || !has_equal_rows(rows, following.size())) {
      return false;
    }
    begin(rows);
    std::ranges::fill(shares, attention_share{static_cast<std::int32_t>(rows.size()), 0, 0, 0});
    auto number = std::int32_t{0};
    auto total = std::int64_t{0};
    for (auto row = std::size_t{0}; row < rows.size(); ++row) {
      const auto cost = cost_of(rows[row]);
      total += cost * rows[row].num_tasks;
      for (auto task = 0; task < rows[row].num_tasks; ++task, ++number) {
        const auto share = take_least(cost);
        if (last_task_[share] < 0) {
          shares[share] = {static_cast<std::int32_t>(row), task, attention_share::dealt, 0};
        } else {
          following[static_cast<std::size_t>(last_task_[share])] = number;
        }
        last_task_[share] = number;
        following[static_cast<std::size_t>(number)] = -1;
      }
    }
    return largest_ * static_cast<std::int64_t>(next_share_.size()) * 10 <= total * 11;
  }

 private:
  static constexpr auto num_loads = std::size_t{4096};

  [[nodiscard]] static bool has_equal_rows(std::span<const attention_row> rows, std::size_t most_tasks) noexcept {
    const auto num_tasks = rows[0].num_tasks;
    return rows.size() * static_cast<std::size_t>(num_tasks) <= most_tasks &&
           std::ranges::all_of(rows, [&](const attention_row& row) { return row.num_tasks == num_tasks; });
  }

  /// All shares have no work.
  void begin(std::span<const attention_row> rows) noexcept {
    auto longest = std::int32_t{0};
    for (const auto& row : rows) {
      longest = std::max(longest, row.num_tiles);
    }
    shift_ = 0;
    while ((longest + task_overhead_) >> shift_ >= static_cast<std::int32_t>(num_loads)) {
      ++shift_;
    }
    std::ranges::fill(share_with_, -1);
    for (auto share = next_share_.size(); share > 0; --share) {
      put(0, static_cast<std::int32_t>(share) - 1);
    }
    std::ranges::fill(last_task_, -1);
    least_ = 0;
    largest_ = 0;
  }

  /// Less than `num_loads`.
  [[nodiscard]] std::int64_t cost_of(const attention_row& row) const noexcept {
    return std::max((row.num_tiles + task_overhead_) >> shift_, 1);
  }

  void put(std::int64_t load, std::int32_t share) noexcept {
    auto& first = share_with_[static_cast<std::size_t>(load) % num_loads];
    next_share_[static_cast<std::size_t>(share)] = first;
    first = share;
  }

  /// The share with the least work, which gets more. Loads differ by less than `num_loads`, so a ring holds them.
  [[nodiscard]] std::size_t take_least(std::int64_t cost) noexcept {
    while (share_with_[static_cast<std::size_t>(least_) % num_loads] < 0) {
      ++least_;
    }
    auto& first = share_with_[static_cast<std::size_t>(least_) % num_loads];
    const auto share = first;
    first = next_share_[static_cast<std::size_t>(share)];
    put(least_ + cost, share);
    largest_ = std::max(largest_, least_ + cost);
    return static_cast<std::size_t>(share);
  }

  std::int32_t task_overhead_;
  std::int32_t shift_ = 0;  // of tiles, in the unit of loads
  std::int64_t least_ = 0;
  std::int64_t largest_ = 0;
  std::vector<std::int32_t> share_with_;  // by load: the first of a list; -1: none
  std::vector<std::int32_t> next_share_;  // in that list
  std::vector<std::int32_t> last_task_;   // of each share
};

}  // namespace pagedkv
