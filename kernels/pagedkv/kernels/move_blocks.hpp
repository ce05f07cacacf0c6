#pragma once

#include <pagedkv/kernels/copy_blocks.hpp>
#include <pagedkv/kernels/move_plan.hpp>

namespace pagedkv::kernels {

/// Runs of steps as a kernel argument. A run that does not fit is continued by the next launch.
struct move_batch {
  static constexpr auto capacity = 256;

  block_pair steps[capacity];
  std::uint16_t run_ends[capacity];
  std::uint8_t swaps[capacity];
  std::int32_t num_steps = 0;
  std::int32_t num_runs = 0;

  void add(const move_step& step) noexcept {
    steps[num_steps] = step.pair;
    swaps[num_steps] = step.swap;
    ++num_steps;
  }

  void end_run() noexcept { run_ends[num_runs++] = static_cast<std::uint16_t>(num_steps); }
};

/// Every lane takes one word of the blocks and walks a whole run with it: words of different places never meet, so that
/// the steps of a run need neither a barrier nor memory besides the blocks.
template <int WorkgroupSize = block_words::workgroup_size>
__global__ void __launch_bounds__(WorkgroupSize)
    move_blocks_kernel(block_storage_view view, block_words words, move_batch batch) {
  const auto num_words = words.num_words(batch.num_runs);
  for (auto word = std::int64_t{blockIdx.x} * WorkgroupSize + threadIdx.x; word < num_words;
       word += std::int64_t{gridDim.x} * WorkgroupSize) {
    const auto at = words.find(word);
    const auto first = at.block == 0 ? 0 : batch.run_ends[at.block - 1];
    for (auto i = std::int32_t{first}; i < batch.run_ends[at.block]; ++i) {
      const auto [source, destination] = batch.steps[i];
      const auto moved = load_word(view, source, at);
      if (batch.swaps[i] != 0) {
        store_word(view, source, at, load_word(view, destination, at));
      }
      store_word(view, destination, at, moved);
    }
  }
}

/// Enqueues the runs of a plan, as many to a launch as fit.
[[nodiscard]] inline hipError_t launch_runs(const block_storage_view& view, const block_words& words,
                                            const move_plan& plan, hipStream_t stream) {
  auto batch = move_batch{};
  const auto launch_batch = [&] {
    const auto status =
        launch<move_blocks_kernel<>>(cover_words(words.num_words(batch.num_runs), 1), stream, view, words, batch);
    batch = move_batch{};
    return status;
  };
  for (auto i = std::size_t{0}; i < plan.num_runs(); ++i) {
    for (const auto& step : plan.run(i)) {
      if (batch.num_steps == batch.capacity) {
        batch.end_run();
        if (const auto status = launch_batch(); status != hipSuccess) {
          return status;
        }
      }
      batch.add(step);
    }
    batch.end_run();
  }
  return batch.num_steps == 0 ? hipSuccess : launch_batch();
}

/// Enqueues the moves of `order`, as if all sources were read before the first destination is written. What the call
/// was given may go when it returns. Throws `std::bad_alloc`, before anything is enqueued.
[[nodiscard]] inline hipError_t move_blocks(const block_storage_view& view, move_order& order, hipStream_t stream) {
  const auto plan = move_plan(order);
  const auto words = make_block_words(view, aligned_blocks(view));
  if (!words) {
    return hipErrorInvalidValue;
  }
  const auto copied = copy_blocks(view, view, plan.independent(), stream);
  return copied == hipSuccess ? launch_runs(view, *words, plan, stream) : copied;
}

}  // namespace pagedkv::kernels
