#pragma once

#include <pagedkv/kernels/copy_blocks.hpp>

namespace pagedkv::kernels {

/// From so many bytes a run of neighbouring blocks is worth a copy of its own, done by the device's copy engine beside
/// the kernels; below, one launch takes all blocks and reads or writes the pinned memory itself.
inline constexpr auto copied_run_bytes = std::int64_t{256} << 10;

/// Blocks that are neighbours at both ends, in the same order.
struct block_run {
  block_pair first;
  std::int32_t num_blocks = 0;
};

/// Calls `visit(run)` for each maximal run of `pairs`, in their order, until one does not succeed.
template <class Visit>
[[nodiscard]] hipError_t for_each_run(std::span<const block_pair> pairs, Visit visit) {
  auto status = hipSuccess;
  while (!pairs.empty() && status == hipSuccess) {
    auto run = block_run{pairs.front(), 1};
    const auto continues = [&](block_pair next) {
      return next.source == run.first.source + run.num_blocks &&
             next.destination == run.first.destination + run.num_blocks;
    };
    while (static_cast<std::size_t>(run.num_blocks) < pairs.size() &&
           continues(pairs[static_cast<std::size_t>(run.num_blocks)])) {
      ++run.num_blocks;
    }
    pairs = pairs.subspan(static_cast<std::size_t>(run.num_blocks));
    status = visit(run);
  }
  return status;
}

/// Whether both ends keep a run together, so that one copy takes it, strided by layer if need be.
[[nodiscard]] inline bool one_copy_per_run(const block_storage_view& from, const block_storage_view& to) noexcept {
  const auto bytes = from.layer_bytes();
  const auto by_layer = from.block_stride == bytes && to.block_stride == bytes;
  const auto by_block = from.layer_stride == bytes && to.layer_stride == bytes &&
                        from.block_stride == bytes * from.num_layers && to.block_stride == bytes * to.num_layers;
  return by_layer || by_block;
}

[[nodiscard]] inline hipError_t copy_run(const block_storage_view& from, const block_storage_view& to,
                                         const block_run& run, hipMemcpyKind kind, hipStream_t stream) {
  const auto bytes = static_cast<std::size_t>(from.layer_bytes());
  const auto blocks = static_cast<std::size_t>(run.num_blocks);
  const auto* const source = from.block(0, run.first.source);
  auto* const destination = to.block(0, run.first.destination);
  if (from.block_stride != from.layer_bytes() || to.block_stride != to.layer_bytes()) {
    return hipMemcpyAsync(destination, source, bytes * blocks * static_cast<std::size_t>(from.num_layers), kind,
                          stream);
  }
  return hipMemcpy2DAsync(destination, static_cast<std::size_t>(to.layer_stride), source,
                          static_cast<std::size_t>(from.layer_stride), bytes * blocks,
                          static_cast<std::size_t>(from.num_layers), kind, stream);
}

/// Enqueues the copy of blocks in every layer between device memory and pinned host memory: `from` and `to` differ in
/// memory, strides and number of blocks only. Pairs in ascending order make the longest runs. No copy is ever one
/// block's unless it is worth one. The pairs may go when the call returns.
[[nodiscard]] inline hipError_t swap_blocks(const block_storage_view& from, const block_storage_view& to,
                                            std::span<const block_pair> pairs, hipMemcpyKind kind, hipStream_t stream) {
  auto num_runs = std::int64_t{0};
  static_cast<void>(for_each_run(pairs, [&](const block_run&) {
    ++num_runs;
    return hipSuccess;
  }));
  const auto bytes = static_cast<std::int64_t>(pairs.size()) * from.layer_bytes() * from.num_layers;
  if (!one_copy_per_run(from, to) || bytes < num_runs * copied_run_bytes) {
    return copy_blocks(from, to, pairs, stream);
  }
  return for_each_run(pairs, [&](const block_run& run) { return copy_run(from, to, run, kind, stream); });
}

}  // namespace pagedkv::kernels
