#pragma once

#include <pagedkv/attention/plan_layout.hpp>

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

namespace pagedkv {

/// Reading the queries and writing the results of a task takes about the time of this many tiles.
[[nodiscard]] constexpr std::int32_t attention_task_overhead(const attention_shape& shape) noexcept {
  return shape.kernel == kernel_kind::latent ? 12 : (shape.shares_tasks() ? 32 : 4);
}

/// The same where a share starts inside a task. Counted for latent vectors only: with other kernels, that is not
/// measured.
[[nodiscard]] constexpr std::int32_t attention_piece_overhead(const attention_shape& shape) noexcept {
  return shape.kernel == kernel_kind::latent ? attention_task_overhead(shape) : 0;
}

/// A share has so many tiles at least, one of equal tasks about so many: reading them takes a wave less time than one
/// more partial result takes to merge. Kernels that join results have at least two tiles on the way from the start, so
/// a second one costs them little.
[[nodiscard]] constexpr std::int64_t fewest_share_tiles(const attention_shape& shape) noexcept {
  return shape.kernel != kernel_kind::waves || shape.split_tokens > 0 ? 1 : (shape.joined_shares > 1 ? 2 : 3);
}

/// Reading a share of so many tiles takes longer than merging its result.
inline constexpr std::int64_t tiles_of_long_share = 8;

/// The most shares that have as many.
[[nodiscard]] constexpr std::int64_t most_shares(const attention_shape& shape, std::int64_t num_tiles,
                                                 std::int64_t most) noexcept {
  return std::clamp<std::int64_t>(num_tiles / fewest_share_tiles(shape), 1, most);
}

/// A task with more shares has partial results that take long to merge.
[[nodiscard]] constexpr std::int64_t many_shares(const attention_shape& shape) noexcept {
  return shape.kernel == kernel_kind::latent ? 32 : 20;
}

namespace detail {

/// The tasks of all rows, and whether they are equally long, as many in each row.
struct counted_tasks {
  std::int64_t count = 0;
  std::int32_t num_tiles = 0;  // of the longest
  bool equal = true;

  explicit counted_tasks(std::span<const attention_row> rows) noexcept {
    for (const auto& row : rows) {
      equal = equal && row.num_tiles == rows[0].num_tiles && row.num_tasks == rows[0].num_tasks;
      count += row.num_tasks;
      num_tiles = std::max(num_tiles, row.num_tiles);
    }
    equal = equal && count > 0;
  }
};

/// Tiles of the largest of so many shares.
[[nodiscard]] constexpr std::int64_t largest_share(std::int64_t num_tiles, std::int64_t num_shares) noexcept {
  return (num_tiles + num_shares - 1) / num_shares;
}

/// The shares of each of equal tasks, at most `most` of all. Where shares join results, short ones are as few as have
/// no more tiles each. Many are a multiple of those that join results if there is room for it: a wave that joins none
/// would write a partial result alone.
[[nodiscard]] inline std::int64_t shares_of_task(const attention_shape& shape, const counted_tasks& tasks,
                                                 std::int64_t most) noexcept {
  const auto joined = std::int64_t{shape.joined_shares};
  const auto fewest = fewest_share_tiles(shape);
  auto each = std::min<std::int64_t>(most / tasks.count, (tasks.num_tiles + fewest - 1) / fewest);
  if (const auto tiles = largest_share(tasks.num_tiles, each); joined > 1 && tiles < tiles_of_long_share) {
    each = (tasks.num_tiles + tiles - 1) / tiles;
  }
  const auto more = (each + joined - 1) / joined * joined;
  return each > many_shares(shape) && more * tasks.count <= most ? more : each;
}

/// The number of shares, at most `most`. Slightly fewer if then no share ends inside one of several equal tasks: fewer
/// pieces save more time than the idle waves lose. Where shares join results, any fewer if then none is larger either.
/// `num_tiles`: as in `share_attention_tiles`.
[[nodiscard]] inline std::int64_t choose_num_shares(const attention_shape& shape, const counted_tasks& tasks,
                                                    std::int64_t num_tiles, std::int64_t most) noexcept {
  if (!tasks.equal) {
    return most_shares(shape, num_tiles, most);
  }
  const auto all_tiles = tasks.count * tasks.num_tiles;
  const auto busy = most_shares(shape, all_tiles, most);
  const auto tasks_each = (tasks.count + most - 1) / most;
  const auto even = tasks.count <= most             ? shares_of_task(shape, tasks, most) * tasks.count
                    : tasks.count % tasks_each == 0 ? tasks.count / tasks_each
                                                    : busy;
  const auto counted = tasks.count <= most ? num_tiles : all_tiles;
  const auto as_short = shape.joined_shares > 1 && largest_share(all_tiles, even) <= largest_share(counted, busy);
  return as_short || even * 10 >= busy * 9 ? even : busy;
}

/// Whether no share has parts of two of the tasks, nor one more task than others.
[[nodiscard]] inline bool are_divided(const counted_tasks& tasks, std::int64_t num_shares) noexcept {
  return tasks.equal && (num_shares % tasks.count == 0 || tasks.count % num_shares == 0);
}

/// Shares that start inside a task, at most.
[[nodiscard]] inline std::int64_t most_starts_inside(const counted_tasks& tasks, std::int64_t num_shares) noexcept {
  return are_divided(tasks, num_shares) ? std::max<std::int64_t>(num_shares - tasks.count, 0) : num_shares - 1;
}

/// The first position from there on where a share may start.
[[nodiscard]] inline attention_share start_at(const attention_row& row, std::int32_t index, std::int32_t task,
                                              std::int32_t tile, std::int32_t split_tokens) noexcept {
  if (split_tokens == 0) {
    return {index, task, tile, 0};
  }
  const auto split = split_tokens / attention_tile;
  const auto rounded = (tile + split - 1) / split * split;
  if (rounded < row.num_tiles) {
    return {index, task, rounded, 0};
  }
  return task + 1 < row.num_tasks ? attention_share{index, task + 1, 0, 0} : attention_share{index + 1, 0, 0, 0};
}

}  // namespace detail

/// Tasks of each share, of these rows, if prompts are about equally long and have so many tasks that shares of whole
/// ones lose little; else 0. Workgroups then read the keys of one head at about the same time, so that the second-level
/// cache holds them, and nothing has to be merged.
[[nodiscard]] inline std::int64_t whole_tasks_of_share(const attention_shape& shape,
                                                       std::span<const attention_row> rows,
                                                       std::int64_t most) noexcept {
  if (shape.max_query_tokens == 0 || shape.split_tokens > 0 || rows.empty()) {
    return 0;
  }
  auto num_tasks = std::int64_t{0};
  auto least = std::int64_t{rows[0].num_tiles};
  auto largest = least;
  for (const auto& row : rows) {
    num_tasks += row.num_tasks;
    least = std::min<std::int64_t>(least, row.num_tiles);
    largest = std::max<std::int64_t>(largest, row.num_tiles);
  }
  const auto each = (num_tasks + most - 1) / most;
  const auto keeps_step = each % shape.num_kv_heads == 0;
  const auto keeps_busy = num_tasks * 20 >= each * most * 19;
  return keeps_step && keeps_busy && least * 5 >= largest * 4 ? each : 0;
}

/// Gives each share `each` tasks of the rows; those that remain start after the last row.
inline void share_whole_tasks(std::span<const attention_row> rows, std::int64_t each,
                              std::span<attention_share> shares) noexcept {
  auto share = std::size_t{0};
  auto next = std::int64_t{0};  // the first task of the next share, counted from the start of the row
  for (auto i = std::size_t{0}; i < rows.size(); ++i) {
    for (; next < rows[i].num_tasks && share + 1 < shares.size(); next += each) {
      shares[share++] = {static_cast<std::int32_t>(i), static_cast<std::int32_t>(next), 0, 0};
    }
    next -= rows[i].num_tasks;
  }
  std::ranges::fill(shares.subspan(share), attention_share{static_cast<std::int32_t>(rows.size()), 0, 0, 0});
}

/// Whether the tasks of the rows have so many shares each that their partial results take long to merge.
[[nodiscard]] inline bool have_many_shares(const attention_shape& shape, std::span<const attention_row> rows,
                                           std::int64_t num_shares) noexcept {
  const auto many = many_shares(shape);
  auto num_tasks = std::int64_t{0};
  for (const auto& row : rows) {
    num_tasks += row.num_tasks;
    if (num_shares <= many * num_tasks) {
      return false;
    }
  }
  return true;
}

/// Divides the tiles of all tasks of the rows, which with their overhead are `num_tiles`, among all `shares` but the
/// last. That one, and those that remain empty, start after the last row. Returns how many were chosen, or with whole
/// tasks might have been. Linear in the number of rows and shares.
inline std::int64_t share_attention_tiles(const attention_shape& shape, std::span<const attention_row> rows,
                                          std::int64_t num_tiles, std::span<attention_share> shares) noexcept {
  auto most = static_cast<std::int64_t>(shares.size()) - 1;
  if (shape.kernel == kernel_kind::latent && have_many_shares(shape, rows, most_shares(shape, num_tiles, most))) {
    most = std::min(most, std::max<std::int64_t>(num_tiles / tiles_of_long_share, 1));
  }
  if (const auto each = whole_tasks_of_share(shape, rows, most_shares(shape, num_tiles, most)); each > 0) {
    share_whole_tasks(rows, each, shares);
    return most;
  }
  const auto tasks = detail::counted_tasks{rows};
  const auto num_shares = detail::choose_num_shares(shape, tasks, num_tiles, most);
  const auto piece_overhead = std::int64_t{attention_piece_overhead(shape)};
  // If tasks are divided, starts of pieces make no share longer than another.
  const auto counts_starts = piece_overhead > 0 || !detail::are_divided(tasks, num_shares);
  const auto task_overhead = counts_starts ? attention_task_overhead(shape) : 0;
  const auto all_tiles = num_tiles - tasks.count * (attention_task_overhead(shape) - task_overhead) +
                         piece_overhead * detail::most_starts_inside(tasks, num_shares);
  const auto each = all_tiles / num_shares;
  const auto rest = all_tiles % num_shares;
  auto share = std::size_t{0};
  auto next = std::int64_t{0};  // start of the next share, in tiles from the start of the row
  auto over = std::int64_t{0};  // and the remaining fraction of a tile, times the number of shares
  for (auto i = std::size_t{0}; i < rows.size(); ++i) {
    const auto& row = rows[i];
    const auto cost = std::int64_t{row.num_tiles + task_overhead};
    const auto all = cost * row.num_tasks;
    while (next < all && share + 1 < shares.size()) {
      const auto task = next / cost;
      const auto tile = static_cast<std::int32_t>(next - task * cost) - task_overhead;
      if (piece_overhead > 0) {
        next = tile <= 0 ? task * cost : next - piece_overhead;  // the share has the overhead of its first piece
      }
      shares[share++] = detail::start_at(row, static_cast<std::int32_t>(i), static_cast<std::int32_t>(task),
                                         std::max(tile, 0), shape.split_tokens);
      over += rest;
      next += each + (over >= num_shares ? 1 : 0);
      over -= over >= num_shares ? num_shares : 0;
    }
    next -= all;
  }
  std::ranges::fill(shares.subspan(share), attention_share{static_cast<std::int32_t>(rows.size()), 0, 0, 0});
  return num_shares;
}

/// Whether a share of these rows, up to the start of the next one, is one piece of a task.
[[nodiscard]] inline bool is_one_piece(std::span<const attention_row> rows, const attention_share& start,
                                       const attention_share& end) noexcept {
  if (start.row == end.row && start.task == end.task) {
    return start.tile < end.tile;
  }
  if (start.task + 1 == rows[static_cast<std::size_t>(start.row)].num_tasks) {
    return end.row == start.row + 1 && end.task == 0 && end.tile == 0;
  }
  return end.row == start.row && end.task == start.task + 1 && end.tile == 0;
}

/// Shares that join results in a plan of the rows, whose tiles with overhead are `num_tiles`, and which have
/// `num_shares`. Behind short shares, waiting for neighbours takes longer than merging a few more partial results.
[[nodiscard]] inline std::int32_t planned_joined_shares(const attention_shape& shape,
                                                        std::span<const attention_row> rows, std::int64_t num_tiles,
                                                        std::int64_t num_shares) noexcept {
  const auto long_shares = num_tiles >= tiles_of_long_share * most_shares(shape, num_tiles, shape.num_shares);
  const auto joins = long_shares || have_many_shares(shape, rows, num_shares);
  return shape.split_tokens == 0 && joins ? shape.joined_shares : 1;
}

/// Says which shares have one partial result together: neighbours in a workgroup that are pieces of one task.
class joined_attention_shares {
 public:
  /// `num_joined`: shares of a workgroup.
  joined_attention_shares(std::int32_t num_joined, std::span<const attention_row> rows,
                          std::span<const attention_share> shares) noexcept
      : num_joined_(static_cast<std::size_t>(num_joined)), rows_(rows), shares_(shares) {}

  /// Whether the share's result is part of the previous one's.
  [[nodiscard]] bool joins_previous(std::size_t i) const noexcept {
    return i % num_joined_ != 0 && shares_[i].tile > 0 && shares_[i - 1].row == shares_[i].row &&
           shares_[i - 1].task == shares_[i].task && is_one_piece(i - 1) && is_one_piece(i);
  }

  /// Whether the share and those that join it are one whole task. The share starts one.
  [[nodiscard]] bool covers_task(std::size_t i) const noexcept {
    const auto& start = shares_[i];
    auto end = i + 1;
    while (end % num_joined_ != 0 && shares_[end].tile > 0 && joins_previous(end)) {
      ++end;
    }
    return is_one_piece(end - 1) && (shares_[end].row != start.row || shares_[end].task != start.task);
  }

 private:
  [[nodiscard]] bool is_one_piece(std::size_t i) const noexcept {
    return pagedkv::is_one_piece(rows_, shares_[i], shares_[i + 1]);
  }

  std::size_t num_joined_;
  std::span<const attention_row> rows_;
  std::span<const attention_share> shares_;
};

/// Calls `visit(row, task, tile, end)` for each piece of each share, and `begin(share)` before the pieces of each.
template <class Begin, class Visit>
void for_each_attention_piece(std::span<const attention_row> rows, std::span<attention_share> shares, Begin begin,
                              Visit visit) noexcept {
  for (auto i = std::size_t{0}; i + 1 < shares.size(); ++i) {
    begin(shares[i]);
    const auto& last = shares[i + 1];
    auto at = shares[i];
    while (at.row != last.row || at.task != last.task || at.tile != last.tile) {
      const auto& row = rows[static_cast<std::size_t>(at.row)];
      const auto end = at.row == last.row && at.task == last.task ? last.tile : row.num_tiles;
      visit(at.row, at.task, at.tile, end);
      at.tile = end;
      if (at.tile == row.num_tiles) {
        at.tile = 0;
        ++at.task;
      }
      if (at.task == row.num_tasks) {
        at.task = 0;
        ++at.row;
      }
    }
  }
}

/// Deals the tasks of prompts to shares, whole and in their order, each to the share that has the least work so far.
/// Workgroups then read the keys of few sequences at a time, which the second-level cache holds, and merge nothing.
/// Only the constructor allocates.
class attention_task_dealer {
 public:
  explicit attention_task_dealer(const attention_shape& shape)
      : task_overhead_(attention_task_overhead(shape)),
        share_with_(shape.deals_tasks ? num_loads : 0),
        next_share_(static_cast<std::size_t>(shape.deals_tasks ? shape.num_shares : 0)),
        last_task_(next_share_.size()) {}

  /// Writes the first task of each share, and in `following`, for each task, the one after it in its share, or -1. A
  /// task's number counts those of all rows. False, and nothing of use written, if there are no shares or no room, if
  /// rows have unlike numbers of tasks, or if a share would get a tenth more than the mean. Linear in the number of
  /// tasks.
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
