#pragma once

#include <pagedkv/kernels/attention/matrix_piece.hpp>
#include <pagedkv/kernels/attention/tile_reader.hpp>

namespace pagedkv::kernels {

/// Decode attention with matrix instructions. Head dimensions up to `HeadDim`.
template <class Element, class Numbers, int HeadDim, int Tiles, class Matrix, int Stages, int Waves>
PAGEDKV_KERNEL void PAGEDKV_LAUNCH_BOUNDS(Waves* Matrix::lanes, 1)
    attend_kernel(attention_call call, divider<std::int32_t> block_size) {
  if constexpr (Matrix::unit::available) {
    const auto wave = uniform(static_cast<int>(local_index().x) / Matrix::lanes);
    const auto lane = static_cast<int>(local_index().x) % Matrix::lanes;
    const auto share = static_cast<std::int32_t>(workgroup_index().x) * Waves + wave;
    // First, because only after this call may the kernel read results of the previous kernel and overwrite its inputs.
    wait_for_previous_kernel();
    let_next_kernel_start();
    if (share >= call.plan.num_shares) {
      return;
    }
    auto walk = attention_walk(call, share);
    auto reader = tile_reader<Element, HeadDim, Matrix, Stages>(call, block_size, walk, wave, lane);
    auto state = piece_state<Element, Numbers, HeadDim, Tiles, Matrix>(call, lane);
    while (!walk.done) {
      state.begin(walk);
      for (auto tile = walk.tile; tile < walk.end; ++tile) {
        reader.tiles.begin_tile();
        reader.read_next();
        state.add_tile(reader.tiles, (walk.row.first_tile + tile) * attention_tile);
      }
      state.finish(walk);
      walk.next_piece();
    }
  }
}

}  // namespace pagedkv::kernels
