#pragma once

#include <pagedkv/core/ids.hpp>
#include <pagedkv/kernels/transfer/copy_blocks.hpp>

#include <limits>

namespace pagedkv::kernels {

/// From this many bytes and blocks per run on average, each run of neighbouring blocks is one copy, which the device's
/// copy engine executes beside kernels. Below, launches copy the blocks, each up to 400 (`block_batch`), and access the
/// pinned memory themselves.
inline constexpr auto copied_run_bytes = std::int64_t{4} << 20;
inline constexpr auto copied_run_blocks = std::int64_t{2};

/// Blocks that are neighbours in both storages, in the same order.
struct block_run {
  block_pair first;
  std::int32_t num_blocks = 0;
};

/// Calls `visit(run)` for each maximal run of `pairs`, in their order, until a call fails.
template <class Visit>
[[nodiscard]] runtime::status for_each_run(std::span<const block_pair> pairs, Visit visit) {
  auto status = runtime::success;
  while (!pairs.empty() && status == runtime::success) {
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

/// Whether a run is contiguous in both storages.
[[nodiscard]] inline bool contiguous_runs(const block_storage_view& from, const block_storage_view& to) noexcept {
  const auto bytes = from.layer_bytes();
  const auto block_bytes = bytes * from.num_layers;
  return from.block_stride == block_bytes && to.block_stride == block_bytes &&
         (from.num_layers == 1 || (from.layer_stride == bytes && to.layer_stride == bytes));
}

/// Whether a run is contiguous in each layer of both storages, and the layers are close enough for a strided copy.
[[nodiscard]] inline bool strided_runs(const block_storage_view& from, const block_storage_view& to) noexcept {
  constexpr auto max_pitch = std::int64_t{std::numeric_limits<std::int32_t>::max()};
  const auto bytes = from.layer_bytes();
  return from.block_stride == bytes && to.block_stride == bytes && from.layer_stride <= max_pitch &&
         to.layer_stride <= max_pitch;
}

[[nodiscard]] inline runtime::status copy_run(const block_storage_view& from, const block_storage_view& to,
                                              const block_run& run, runtime::copy_kind kind, runtime::stream stream) {
  const auto bytes = static_cast<std::size_t>(from.layer_bytes());
  const auto blocks = static_cast<std::size_t>(run.num_blocks);
  const auto* const source = from.block(0, run.first.source);
  auto* const destination = to.block(0, run.first.destination);
  if (contiguous_runs(from, to)) {
    return runtime::copy_async(destination, source, bytes * blocks * static_cast<std::size_t>(from.num_layers), kind,
                               stream);
  }
  return runtime::copy_rows_async(destination, static_cast<std::size_t>(to.layer_stride), source,
                                  static_cast<std::size_t>(from.layer_stride), bytes * blocks,
                                  static_cast<std::size_t>(from.num_layers), kind, stream);
}

/// Enqueues the copy of blocks in every layer between device memory and pinned host memory: `from` and `to` differ in
/// memory, strides and number of blocks only. Pairs in ascending order make the longest runs, each of which is one copy
/// where runs are long. The pairs are not used after the call returns.
[[nodiscard]] inline runtime::status swap_blocks(const block_storage_view& from, const block_storage_view& to,
                                                 std::span<const block_pair> pairs, runtime::copy_kind kind,
                                                 runtime::stream stream) {
  auto num_runs = std::int64_t{0};
  static_cast<void>(for_each_run(pairs, [&](const block_run&) {
    ++num_runs;
    return runtime::success;
  }));
  const auto num_pairs = static_cast<std::int64_t>(pairs.size());
  const auto bytes = num_pairs * from.layer_bytes() * from.num_layers;
  const auto long_runs = bytes >= num_runs * copied_run_bytes && num_pairs >= num_runs * copied_run_blocks;
  if (!long_runs || !(contiguous_runs(from, to) || strided_runs(from, to))) {
    return copy_blocks(from, to, pairs, stream);
  }
  return for_each_run(pairs, [&](const block_run& run) { return copy_run(from, to, run, kind, stream); });
}

}  // namespace pagedkv::kernels
