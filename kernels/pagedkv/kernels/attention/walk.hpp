#pragma once

#include <pagedkv/kernels/attention/call.hpp>
#include <pagedkv/kernels/platform.hpp>

namespace pagedkv::kernels {

[[nodiscard]] PAGEDKV_DEVICE inline attention_row load_row(const attention_row* row) {
  const auto* const words = reinterpret_cast<const std::int32_t*>(row);
  const auto low = load_vector<4>(words);
  const auto high = load_vector<4>(words + 4);
  return {low.values[0],  low.values[1],  low.values[2],  low.values[3],
          high.values[0], high.values[1], high.values[2], high.values[3]};
}

[[nodiscard]] PAGEDKV_DEVICE inline attention_share load_share(const attention_share* share) {
  const auto* const words = reinterpret_cast<const std::int32_t*>(share);
  const auto low = load_vector<4>(words);
  return {low.values[0], low.values[1], low.values[2], low.values[3]};
}

[[nodiscard]] PAGEDKV_DEVICE inline attention_merge load_merge(const attention_merge* merge) {
  const auto words = load_vector<4>(reinterpret_cast<const std::int32_t*>(merge));
  return {words.values[0], words.values[1], words.values[2], words.values[3]};
}

/// Iterates over the pieces of one wave's work: a piece is a run of tiles of one task.
class attention_walk {
 public:
  attention_row row;
  std::int32_t row_index;
  std::int32_t task;     // index in the row
  std::int32_t tile;     // first tile of the piece, among the row's visible tiles
  std::int32_t end;      // of the piece; before its start if the window has passed all of it since the plan was made
  std::int32_t partial;  // index of the partial result, if the piece is not a whole task
  bool whole;            // the piece is all of its task
  bool done;

  PAGEDKV_DEVICE attention_walk(const attention_call& call, std::int32_t share)
      : call_(call), last_(load_share(call.plan.shares + share + 1)) {
    const auto start = load_share(call.plan.shares + share);
    row_index = start.row;
    task = start.task;
    tile = start.tile;
    partial = start.first_partial;
    done = start.row == last_.row && start.task == last_.task && start.tile == last_.tile;
    if (!done) {
      row = load_row(call.plan.rows + row_index);
      find_end(call.plan);
    }
  }

  /// Whether this is the share's only piece, but not a whole task.
  [[nodiscard]] PAGEDKV_DEVICE bool is_part_of_task() const {
    const auto last_of_row = task + 1 == row.num_tasks;
    const auto ends_share = in_last_task() || (last_.tile == 0 && last_.row == row_index + (last_of_row ? 1 : 0) &&
                                               last_.task == (last_of_row ? 0 : task + 1));
    return !done && !whole && ends_share;
  }

  /// Whether the share ends before its last task does.
  [[nodiscard]] PAGEDKV_DEVICE bool leaves_task() const { return in_last_task(); }

  /// Other waves join the piece up to the end of their task.
  PAGEDKV_DEVICE void extend_to_end() { whole = tile == 0 && !has_other_pieces(read_again(call_).plan); }

  PAGEDKV_DEVICE void next_piece() {
    const auto& plan = read_again(call_).plan;
    partial += whole ? 0 : 1;
    tile = end;
    if (in_last_task() && tile >= end_of_task()) {
      done = true;
    } else if (tile >= row.num_tiles) {
      next_task(plan);
    }
    if (!done) {
      find_end(plan);
    }
  }

 private:
  [[nodiscard]] PAGEDKV_DEVICE bool in_last_task() const { return row_index == last_.row && task == last_.task; }

  [[nodiscard]] PAGEDKV_DEVICE std::int32_t end_of_task() const {
    return in_last_task() && last_.tile < row.num_tiles ? last_.tile : row.num_tiles;
  }

  PAGEDKV_DEVICE void next_task(const attention_plan_view& plan) {
    tile = 0;
    ++task;
    if (task == row.num_tasks) {
      task = 0;
      ++row_index;
    }
    done = in_last_task() && last_.tile == 0;
    if (!done && task == 0) {
      row = load_row(plan.rows + row_index);
    }
  }

  PAGEDKV_DEVICE void find_end(const attention_plan_view& plan) {
    const auto split_end = (tile / plan.split_tiles + 1) * plan.split_tiles;
    const auto task_end = end_of_task();
    end = split_end < task_end ? split_end : task_end;
    whole = tile == 0 && !in_last_task() && row.num_tiles <= plan.split_tiles && !has_other_pieces(plan);
  }

  /// Whether the row is a shared prefix or has one. Without windows, tiles before the first are a shared prefix's.
  [[nodiscard]] PAGEDKV_DEVICE bool has_other_pieces(const attention_plan_view& plan) const {
    return plan.prefix_queries != nullptr || (plan.prefix_results != nullptr && row.first_tile > 0);
  }

  const attention_call& call_;
  attention_share last_;
};

}  // namespace pagedkv::kernels
