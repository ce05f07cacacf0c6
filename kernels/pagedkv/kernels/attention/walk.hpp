#pragma once

#include <pagedkv/kernels/attention/call.hpp>
#include <pagedkv/kernels/attention/launcher.hpp>
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

/// Whether a share that ends where another one starts has no work.
[[nodiscard]] PAGEDKV_DEVICE inline bool is_empty(const attention_share& share, const attention_share& next) {
  return share.row == next.row && share.task == next.task && share.tile == next.tile;
}

[[nodiscard]] PAGEDKV_DEVICE inline attention_merge load_merge(const attention_merge* merge) {
  const auto words = load_vector<4>(reinterpret_cast<const std::int32_t*>(merge));
  return {words.values[0], words.values[1], words.values[2], words.values[3]};
}

/// The position of tiles that a list skips: before every token that a query sees.
inline constexpr std::int32_t skipped_tokens = -(1 << 30);

/// The first token of a tile, which is counted like a row's `first_tile`: among the tiles of the sequence, or with
/// lists among those of all listed blocks. `row`: as in a walk.
[[nodiscard]] PAGEDKV_INLINED_DEVICE std::int32_t first_token_of(const attention_call& call, const attention_row& row,
                                                                 std::int32_t tile) {
  if (!call.lists.exist()) {
    return tile * attention_tile;
  }
  if (row.num_tokens <= 0) {
    return skipped_tokens;
  }
  // Few branches: each would take scalar registers, of which some kernels have none left.
  const auto last = row.first_tile + row.num_tiles - 1;
  const auto [entry, tile_of_block] = call.lists.tiles_of_block.split(tile < last ? tile : last);
  const auto block = load(call.lists.blocks + entry);
  const auto token = static_cast<std::int64_t>(block) * call.view.block_size + tile_of_block * attention_tile;
  return tile > last || block < 0 || token >= row.num_tokens ? skipped_tokens : static_cast<std::int32_t>(token);
}

/// The token to read at a place among the tiles of a row, counted like those. A token that no query of the row sees,
/// outside of `first` to `last`, is replaced by the nearest one that is seen, so that no stale NaN enters. Negative:
/// none, because a list skips the tile.
[[nodiscard]] PAGEDKV_DEVICE inline std::int32_t token_to_read(const attention_call& call, const attention_row& row,
                                                               std::int32_t place, std::int32_t first,
                                                               std::int32_t last) {
  auto wanted = place;
  auto skipped = false;
  if (call.lists.exist()) {
    const auto start = first_token_of(call, row, place / attention_tile);
    skipped = start > last || start + attention_tile <= first;
    wanted = start + place % attention_tile;
  }
  const auto seen = wanted < first ? first : wanted;
  return skipped ? skipped_tokens : (seen > last ? last : seen);
}

/// A run of tiles of one task.
struct attention_piece {
  attention_row row;  // with lists of KV heads, its first tile is that of the task's head
  std::int32_t row_index;
  std::int32_t task;     // index in the row
  std::int32_t tile;     // first tile of the piece, among the row's visible tiles
  std::int32_t end;      // of the piece; before its start if the window has passed all of it since the plan was made
  std::int32_t partial;  // index of the partial result, if the piece is not a whole task
  bool whole;            // the piece is all of its task
};

/// Iterates over the pieces of a share.
class attention_walk : public attention_piece {
 public:
  bool done;

  PAGEDKV_DEVICE attention_walk(const attention_call& call, std::int32_t share)
      : call_(call), last_(load_share(call.plan.shares + share + 1)) {
    const auto start = load_share(call.plan.shares + share);
    row_index = start.row;
    task = start.task;
    tile = start.tile;
    partial = start.first_partial;
    done = is_empty(start, last_);
    if (!done) {
      begin_task(call);
      find_end(call.plan);
    }
  }

  /// The first token of a tile of the row. `call`: that of the walk.
  [[nodiscard]] PAGEDKV_INLINED_DEVICE std::int32_t first_token(const attention_call& call,
                                                                std::int32_t tile_of_row) const {
    return of_lane(first_token_of(call, row, row.first_tile + tile_of_row));
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

  /// Other shares join the piece, from a tile on up to the end of their task.
  PAGEDKV_DEVICE void extend_to_end(std::int32_t first_tile) {
    whole = first_tile == 0 && !has_other_pieces(read_again(call_).plan);
  }

  PAGEDKV_DEVICE void next_piece() {
    const auto& call = read_again(call_);
    const auto& plan = call.plan;
    partial += whole ? 0 : 1;
    tile = end;
    if (in_last_task() && tile >= end_of_task()) {
      done = true;
    } else if (tile >= row.num_tiles) {
      next_task(call);
    }
    if (!done) {
      find_end(plan);
    }
  }

 protected:
  PAGEDKV_DEVICE void begin_task(const attention_call& call) {
    row = load_row(call.plan.rows + row_index);
    if (call.lists.kind == listed_blocks::of_heads) {
      row.first_tile += task / row.num_column_tiles * row.num_tiles;
    }
  }

 private:
  [[nodiscard]] PAGEDKV_DEVICE bool in_last_task() const { return row_index == last_.row && task == last_.task; }

  [[nodiscard]] PAGEDKV_DEVICE std::int32_t end_of_task() const {
    return in_last_task() && last_.tile < row.num_tiles ? last_.tile : row.num_tiles;
  }

  PAGEDKV_DEVICE void next_task(const attention_call& call) {
    tile = 0;
    ++task;
    if (task == row.num_tasks) {
      task = 0;
      ++row_index;
    }
    done = in_last_task() && last_.tile == 0;
    if (!done && (task == 0 || call.lists.kind == listed_blocks::of_heads)) {
      begin_task(call);
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

/// One of the workgroups that have a share together, one or two. Latent vectors are one KV head, so tasks are tiles of
/// columns only. Shifts, unlike divisions, need no registers of lanes.
class latent_workgroup {
 public:
  /// `columns`: of a task.
  explicit PAGEDKV_DEVICE latent_workgroup(std::int32_t columns)
      : number_(static_cast<std::int32_t>(workgroup_index().x)), shift_(columns > latent_columns ? 1 : 0) {}

  [[nodiscard]] PAGEDKV_DEVICE std::int32_t share() const { return number_ >> shift_; }

  /// Among those of the share.
  [[nodiscard]] PAGEDKV_DEVICE std::int32_t index() const { return number_ & shift_; }

  /// A piece as if its columns that are this workgroup's were those of a task.
  [[nodiscard]] PAGEDKV_DEVICE attention_piece part_of(const attention_piece& piece) const {
    auto part = piece;
    part.row.num_column_tiles <<= shift_;
    part.task = (piece.task << shift_) + index();
    part.partial = (piece.partial << shift_) + index();
    return part;
  }

 private:
  std::int32_t number_;
  std::int32_t shift_;
};

/// A walk over tasks that may be dealt.
class attention_task_walk : public attention_walk {
 public:
  PAGEDKV_DEVICE attention_task_walk(const attention_call& call, std::int32_t share)
      : attention_walk(call, share), call_(call), dealt_(!done && tile == attention_share::dealt) {
    if (dealt_) {
      begin_whole(call);
    }
  }

  PAGEDKV_DEVICE void next_piece() {
    if (!dealt_) {
      attention_walk::next_piece();
      return;
    }
    done = next_ < 0;
    if (!done) {
      const auto& call = read_again(call_);
      row_index = next_ / row.num_tasks;  // all rows have as many
      task = next_ - row_index * row.num_tasks;
      begin_task(call);
      begin_whole(call);
    }
  }

 private:
  PAGEDKV_DEVICE void begin_whole(const attention_call& call) {
    const auto* const plan = reinterpret_cast<const std::byte*>(call.plan.counts);
    const auto* const following = reinterpret_cast<const std::int32_t*>(plan + call.plan.following);
    next_ = load(following + row_index * row.num_tasks + task);
    tile = 0;
    end = row.num_tiles;
    partial = 0;
    whole = true;
  }

  const attention_call& call_;
  bool dealt_;
  std::int32_t next_ = -1;  // number of the share's next task; negative: none
};

}  // namespace pagedkv::kernels
