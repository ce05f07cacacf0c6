#pragma once

#include <pagedkv/kernels/attention/group_tiles.hpp>
#include <pagedkv/kernels/attention/matrix_piece.hpp>
#include <pagedkv/kernels/attention/warpgroup_prefill.hpp>

#include <type_traits>

namespace pagedkv::kernels {

/// Elsewhere tasks are not dealt.
template <class Matrix>
using group_walk = std::conditional_t<Matrix::columns == 8, attention_task_walk, attention_walk>;

/// The pieces of a share. The waves of a workgroup share keys and values in shared memory; each has its own columns.
template <class Element, class Numbers, int KeyDim, int ValueDim, int Tiles, class Matrix, int Waves>
PAGEDKV_INLINED_DEVICE void attend_group(const attention_call& call, const divider<std::int32_t>& block_size) {
  using stages = group_tiles<Element, KeyDim, ValueDim, Matrix, Waves>;
  PAGEDKV_SHARED typename stages::memory shared;
  const auto index = static_cast<int>(local_index().x);
  const auto wave = uniform(index / Matrix::lanes);
  const auto share = static_cast<std::int32_t>(workgroup_index().x);
  auto walk = group_walk<Matrix>(call, share);
  auto stage = stages(call, block_size, shared, index);
  auto state =
      piece_state<Element, Numbers, KeyDim, Tiles, Matrix, ValueDim, Waves>(call, index % Matrix::lanes, wave);
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
    has_warpgroup_prefill<ValueDim> ? warpgroup_prefill_shape<Element, KeyDim, ValueDim>::lanes :
#endif
                                    group_lanes;

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
    if constexpr (has_warpgroup_prefill<ValueDim>) {
      attend_in_warpgroups<Element, Numbers, KeyDim, ValueDim>(call, block_size);
    } else
#endif
    {
      attend_group<Element, Numbers, KeyDim, ValueDim, Tiles, Matrix, Waves>(call, block_size);
    }
    // The merge waits for this kernel only, and so for both.
    if (!waits_first && workgroup_index().x == 0) {
      wait_for_previous_kernel();
    }
  }
}

}  // namespace pagedkv::kernels
