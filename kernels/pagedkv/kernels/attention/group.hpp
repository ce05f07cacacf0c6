#pragma once

#include <pagedkv/kernels/attention/fragment_piece.hpp>
#include <pagedkv/kernels/attention/group_tiles.hpp>
#include <pagedkv/kernels/attention/launcher.hpp>
#include <pagedkv/kernels/attention/matrix_piece.hpp>
#include <pagedkv/kernels/attention/tile_reader.hpp>
#include <pagedkv/kernels/attention/warpgroup_prefill.hpp>

#include <cstdint>
#include <type_traits>

namespace pagedkv::kernels {

/// The last pieces of a workgroup's shares. Neighbours with pieces of one task put their states into shared memory, and
/// write one result together. Where two waves have a share, each does so with those of its columns. For plans with
/// `joined_shares`.
template <class State, int Shares>
class joined_pieces {
  static constexpr auto state_bytes = static_cast<std::size_t>(State::bytes_of_state);

 public:
  /// Bytes of shared memory that a wave needs for it.
  static constexpr int bytes_needed = static_cast<int>(state_bytes) + 32;

  /// `first_byte`: of the shared memory that the wave of the first share has, and no longer needs; `share_bytes`: from
  /// there to that of the next share.
  PAGEDKV_DEVICE joined_pieces(int share, int lane, int first_byte, int share_bytes)
      : share_(share), lane_(lane), first_byte_(first_byte), share_bytes_(share_bytes) {}

  /// Every wave calls this. `joins`: its last piece is part of a task and has not been finished.
  PAGEDKV_DEVICE void finish(State& state, attention_walk& walk, bool joins) const {
    if (joins) {
      state.put_state(walk, state_of(share_));
    }
    if (lane_ == 0) {
      const auto place = place_of(share_);
      place[0] = joins ? walk.row_index : -1;
      place[1] = joins ? walk.task : -1;
      place[2] = joins && walk.leaves_task() ? 1 : 0;
      place[3] = walk.tile;
      place[4] = walk.partial;
    }
    barrier();
    if (!joins) {
      return;
    }
    auto first = share_;
    auto end = share_ + 1;
    PAGEDKV_UNROLL
    for (auto share = 0; share < Shares; ++share) {
      const auto other = Shares - 1 - share;
      first = has_task(other, walk) && other == first - 1 ? other : first;
      end = has_task(share, walk) && share == end ? share + 1 : end;
    }
    const std::int32_t goes_on = place_of(end - 1)[2];
    const std::int32_t tile = place_of(first)[3];
    walk.partial = place_of(first)[4];
    if (goes_on == 0) {
      walk.extend_to_end(tile);
    }
    state.template finish_joined<Shares>(walk, share_ - first, end - first,
                                         [&](int share) { return state_of(first + share); });
  }

 private:
  [[nodiscard]] PAGEDKV_DEVICE std::size_t start_of(int share) const {
    return static_cast<std::size_t>(first_byte_ + share * share_bytes_);
  }

  [[nodiscard]] PAGEDKV_DEVICE shared_span<float> state_of(int share) const {
    return dynamic_shared<float>(start_of(share), state_bytes / sizeof(float));
  }

  /// The row and the task of a share's piece, whether the task goes on, and the piece's first tile and partial result.
  [[nodiscard]] PAGEDKV_DEVICE shared_span<std::int32_t> place_of(int share) const {
    return dynamic_shared<std::int32_t>(start_of(share) + state_bytes, 5);
  }

  [[nodiscard]] PAGEDKV_DEVICE bool has_task(int share, const attention_walk& walk) const {
    const auto place = place_of(share);
    const std::int32_t row = place[0];
    const std::int32_t task = place[1];
    return row == walk.row_index && task == walk.task;
  }

  int share_;
  int lane_;
  int first_byte_;
  int share_bytes_;
};

/// The parts of the kernel. The shared memory of a share has tiles and, when these are used up, states of its waves.
template <class Element, class Numbers, int HeadDim, int Tiles, class Matrix, int Stages, int Shares>
struct attend_parts {
  static constexpr int waves = waves_of_share(HeadDim, Tiles);
  static constexpr bool fragments = has_fragments<Element, HeadDim, Tiles, Matrix>;
  using reader = tile_reader<Element, HeadDim, Matrix, Stages, waves, fragments>;
  using tiles = typename reader::tiles_type;
  static constexpr int own_tiles = Tiles / waves;  // matrices of columns of a wave
  using state =
      std::conditional_t<fragments,
                         fragment_piece<fragment_products<Element, Numbers, HeadDim, own_tiles, Matrix, waves>>,
                         piece_state<row_products<Element, Numbers, HeadDim, own_tiles, Matrix, HeadDim, waves>>>;
  using joined = joined_pieces<state, Shares>;
  // Only for the matrix unit whose tiles are in shared memory, except on the host.
  static constexpr bool joins = Matrix::columns == 8;
  // The host's executor knows no order of shared memory within a wave.
  static constexpr bool has_room = joins && tiles::tile_bytes > 0;
  static constexpr int bytes_of_tiles = Stages * tiles::tile_bytes;
  static constexpr int share_bytes =
      has_room ? bytes_of_tiles + attention_geometry::room_beside_tiles(HeadDim, waves, tiles::tile_bytes)
               : (joins ? waves * joined::bytes_needed : 0);
  static_assert(!joins || share_bytes >= waves * joined::bytes_needed);
  static constexpr int shared_bytes = Shares * share_bytes;

  /// Shared memory for the outputs of a wave of a share. It has no tile after the last one of a piece was used, before
  /// the next one is waited for.
  [[nodiscard]] static PAGEDKV_DEVICE shared_span<float> room(const tiles& ahead, int share, int wave) {
    constexpr auto bytes = state::bytes_of_matrix;
    static_assert(bytes <= tiles::tile_bytes);
    const auto in_tile = waves * bytes <= tiles::tile_bytes || wave == 0;
    const auto of_share = in_tile ? ahead.unused() + static_cast<std::size_t>(wave * bytes)
                                  : static_cast<std::size_t>(bytes_of_tiles + (wave - 1) * bytes);
    return dynamic_shared<float>(static_cast<std::size_t>(share * share_bytes) + of_share,
                                 static_cast<std::size_t>(bytes / 4));
  }
};

/// Adds the tiles of a piece.
template <class Reader, class State>
PAGEDKV_INLINED_DEVICE void add_tiles(const attention_call& call, const attention_walk& walk, Reader& reader,
                                      State& state) {
  for (auto tile = walk.tile; tile < walk.end; ++tile) {
    const auto first_token = walk.first_token(read_again(call), tile);
    reader.tiles.begin_tile();
    reader.read_next();
    state.add_tile(reader.tiles, first_token);
  }
}

/// Decode attention with matrix instructions. Head dimensions up to `HeadDim`.
template <class Element, class Numbers, int HeadDim, int Tiles, class Matrix, int Stages, int Shares>
PAGEDKV_KERNEL void PAGEDKV_LAUNCH_BOUNDS(Shares* waves_of_share(HeadDim, Tiles) * Matrix::lanes, 1)
    attend_kernel(attention_call call, divider<std::int32_t> block_size) {
  using parts = attend_parts<Element, Numbers, HeadDim, Tiles, Matrix, Stages, Shares>;
  if constexpr (Matrix::unit::available) {
    const auto wave = uniform(static_cast<int>(local_index().x) / Matrix::lanes);
    const auto lane = static_cast<int>(local_index().x) % Matrix::lanes;
    const auto own_share = wave / parts::waves;  // of the workgroup
    const auto of_share = wave % parts::waves;
    const auto share = static_cast<std::int32_t>(workgroup_index().x) * Shares + own_share;
    const auto last = call.plan.num_shares - 1;
    if (!parts::joins && share > last) {
      return;
    }
    auto walk = attention_walk(call, share < last ? share : last);
    walk.done = walk.done || share > last;  // a barrier needs all waves
    const auto shares_join = parts::joins && call.plan.joined_shares > 1 && load(&call.plan.counts->joined_shares) > 1;
    // Only after this call may the kernel read results of the previous kernel and overwrite its inputs. Plans are
    // complete earlier.
    wait_for_previous_kernel();
    let_next_kernel_start();
    auto reader = typename parts::reader(call, block_size, walk, own_share * parts::share_bytes, wave, lane);
    auto state = typename parts::state(call, lane, of_share);
    const auto joins = shares_join && walk.is_part_of_task();
    for (auto is_first = true; !walk.done; is_first = false) {
      state.begin(walk);
      if (is_first) {
        reader.start();  // not before: the queries are read while the blocks are looked up
      }
      add_tiles(call, walk, reader, state);
      if (joins) {
        break;
      }
      if constexpr (parts::has_room) {
        if constexpr (parts::waves > 1) {
          reader.tiles.release();  // the other wave may still use the tile
        }
        state.finish(walk, parts::room(reader.tiles, own_share, of_share));
      } else {
        state.finish(walk);
      }
      walk.next_piece();
    }
    if constexpr (parts::joins) {
      if (shares_join) {
        reader.tiles.release();
        typename parts::joined(own_share, lane, of_share * parts::joined::bytes_needed, parts::share_bytes)
            .finish(state, walk, joins);
      }
    }
  }
}

/// A walk over the tasks of a share, or over halves of them where a task has twice as many columns as a workgroup.
template <class Walk>
class half_walk : public Walk {
 public:
  explicit PAGEDKV_DEVICE half_walk(const attention_call& call) : Walk(call, share_of(call.plan)), call_(call) {
    begin_half();
  }

  PAGEDKV_DEVICE void next_piece() {
    const auto shift = shift_of(read_again(call_).plan);
    this->row.num_column_tiles >>= shift;
    this->task >>= shift;
    this->partial >>= shift;
    Walk::next_piece();
    begin_half();
  }

  /// Of a share.
  [[nodiscard]] static PAGEDKV_HOST_DEVICE std::int32_t workgroups(const attention_plan_view& plan) {
    return 1 << shift_of(plan);
  }

 private:
  static constexpr std::int32_t own_columns =
      columns_of_group(runtime::matrix_instructions::mma, {largest_attention_dim, largest_attention_dim});

  [[nodiscard]] static PAGEDKV_HOST_DEVICE std::int32_t shift_of(const attention_plan_view& plan) {
    return plan.columns > own_columns ? 1 : 0;
  }
  [[nodiscard]] static PAGEDKV_DEVICE std::int32_t share_of(const attention_plan_view& plan) {
    return static_cast<std::int32_t>(workgroup_index().x) >> shift_of(plan);
  }

  /// The half's columns are numbered like those of a task.
  PAGEDKV_DEVICE void begin_half() {
    const auto shift = shift_of(read_again(call_).plan);
    const auto half = static_cast<std::int32_t>(workgroup_index().x) & shift;
    this->row.num_column_tiles <<= shift;
    this->task = (this->task << shift) + half;
    this->partial = (this->partial << shift) + half;
  }

  const attention_call& call_;
};

/// The same where a workgroup has all columns of a task.
template <class Walk>
class whole_walk : public Walk {
 public:
  explicit PAGEDKV_DEVICE whole_walk(const attention_call& call)
      : Walk(call, static_cast<std::int32_t>(workgroup_index().x)) {}

  [[nodiscard]] static constexpr std::int32_t workgroups(const attention_plan_view& /*plan*/) { return 1; }
};

/// Tasks are dealt, and have two halves for long values, only where matrices have eight columns.
template <class Matrix, int ValueDim>
using group_walk = std::conditional_t<
    Matrix::columns != 8, whole_walk<attention_walk>,
    std::conditional_t<(ValueDim > 128), half_walk<attention_task_walk>, whole_walk<attention_task_walk>>>;

/// The pieces of a share. The waves of a workgroup share keys and values in shared memory; each has its own columns.
template <class Element, class Numbers, int KeyDim, int ValueDim, int Tiles, class Matrix, int Waves>
PAGEDKV_INLINED_DEVICE void attend_group(const attention_call& call, const divider<std::int32_t>& block_size) {
  using stages = group_tiles<Element, KeyDim, ValueDim, Matrix, Waves>;
  PAGEDKV_SHARED typename stages::memory shared;
  const auto index = static_cast<int>(local_index().x);
  const auto wave = uniform(index / Matrix::lanes);
  auto walk = group_walk<Matrix, ValueDim>(call);
  auto stage = stages(call, block_size, shared, index);
  using products = row_products<Element, Numbers, KeyDim, Tiles, Matrix, ValueDim, Waves>;
  auto state = piece_state<products, true>(call, index % Matrix::lanes, wave);
  while (!walk.done) {
    stage.read(walk, walk.tile);
    state.begin(walk);
    for (auto tile = walk.tile; tile < walk.end; tile += stages::tiles) {
      barrier();  // all waves have used the previous stage
      stage.put();
      barrier();
      if (tile + stages::tiles < walk.end) {
        stage.read(walk, tile + stages::tiles);
      }
      for (auto i = 0; i < stages::tiles && tile + i < walk.end; ++i) {
        auto first_token = (walk.row.first_tile + tile + i) * attention_tile;
        if constexpr (stages::takes_lists) {
          first_token = walk.first_token(read_again(call), tile + i);
        }
        if (state.sees(first_token)) {
          stage.select(i);
          state.add_tile(stage, first_token);
        }
      }
    }
    state.finish(walk);
    walk.next_piece();
  }
}

/// The most lanes of a workgroup of the kernel in the code that is compiled.
template <class Element, int KeyDim, int ValueDim>
inline constexpr int most_group_lanes =
#if defined(PAGEDKV_HAS_WARPGROUP_PRODUCTS)
    warpgroup_prefill_shape<Element, KeyDim, ValueDim>::lanes;
#else
    group_lanes;
#endif

/// Attention with matrix instructions for tasks with many columns: prefill, trees of drafts, and values that are not
/// like keys. A share of the plan is a workgroup's. Keys up to `KeyDim` and values up to `ValueDim` numbers.
template <class Element, class Numbers, int KeyDim, int ValueDim, int Tiles, class Matrix, int Waves>
PAGEDKV_KERNEL void PAGEDKV_LAUNCH_BOUNDS((most_group_lanes<Element, KeyDim, ValueDim>), 1)
    group_attend_kernel(attention_call call, divider<std::int32_t> block_size) {
  if constexpr (Matrix::unit::available) {
    // Shared prefixes are read beside the rows' own tiles, by a kernel that starts after these have waited.
    const auto waits_first = call.plan.prefix_queries == nullptr;
    if (waits_first) {
      wait_for_previous_kernel();
    }
    let_next_kernel_start();
#if defined(PAGEDKV_HAS_WARPGROUP_PRODUCTS)
    attend_in_warpgroups<Element, Numbers, KeyDim, ValueDim>(call, block_size);
#else
    attend_group<Element, Numbers, KeyDim, ValueDim, Tiles, Matrix, Waves>(call, block_size);
#endif
    // The merge waits for this kernel only, and so for both.
    if (!waits_first && workgroup_index().x == 0) {
      wait_for_previous_kernel();
    }
  }
}

}  // namespace pagedkv::kernels
