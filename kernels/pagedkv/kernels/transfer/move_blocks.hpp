#pragma once

#include <pagedkv/core/ids.hpp>
#include <pagedkv/kernels/transfer/copy_blocks.hpp>
#include <pagedkv/storage/move_order.hpp>

#include <algorithm>
#include <numeric>
#include <vector>

namespace pagedkv::kernels {

/// One step of a move.
struct move_step {
  block_pair pair;
  bool swap = false;  // exchange both blocks; otherwise copy the source
};

/// Moves split into independent ones, which share no block with another move and may run in any order, and runs of
/// steps: the order matters within a run, not between runs.
class move_plan {
 public:
  /// Throws `std::bad_alloc`. O(n log n).
  explicit move_plan(move_order& order) {
    steps_.reserve(order.size());
    order.run([&](block_pair pair) { steps_.push_back({pair, false}); },
              [&](block_pair pair) { steps_.push_back({pair, true}); });
    group_by_blocks();
  }

  [[nodiscard]] std::span<const block_pair> independent() const noexcept { return independent_; }
  [[nodiscard]] std::size_t num_runs() const noexcept { return runs_.size(); }
  [[nodiscard]] std::span<const move_step> run(std::size_t i) const noexcept {
    return std::span(steps_).subspan(runs_[i].first, runs_[i].size);
  }

 private:
  struct range {
    std::size_t first;
    std::size_t size;
  };

  struct touch {
    std::int32_t block;
    std::size_t step;
  };

  void group_by_blocks() {
    auto roots = std::vector<std::size_t>(steps_.size());
    std::iota(roots.begin(), roots.end(), std::size_t{0});
    const auto find_root = [&](std::size_t step) {
      while (roots[step] != step) {
        roots[step] = roots[roots[step]];
        step = roots[step];
      }
      return step;
    };
    const auto touches = touches_by_block();
    for (auto i = std::size_t{1}; i < touches.size(); ++i) {
      if (touches[i].block == touches[i - 1].block) {
        roots[find_root(touches[i].step)] = find_root(touches[i - 1].step);
      }
    }
    auto order = std::vector<std::size_t>(steps_.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::ranges::sort(order, {}, [&](std::size_t step) { return std::pair(find_root(step), step); });
    split(order, find_root);
  }

  [[nodiscard]] std::vector<touch> touches_by_block() const {
    auto touches = std::vector<touch>();
    touches.reserve(2 * steps_.size());
    for (auto i = std::size_t{0}; i < steps_.size(); ++i) {
      touches.push_back({steps_[i].pair.source, i});
      touches.push_back({steps_[i].pair.destination, i});
    }
    std::ranges::sort(touches, {}, &touch::block);
    return touches;
  }

  template <class FindRoot>
  void split(const std::vector<std::size_t>& order, FindRoot find_root) {
    auto grouped = std::vector<move_step>();
    for (auto first = std::size_t{0}; first < order.size();) {
      auto last = first + 1;
      while (last < order.size() && find_root(order[last]) == find_root(order[first])) {
        ++last;
      }
      if (last - first == 1 && !steps_[order[first]].swap) {
        independent_.push_back(steps_[order[first]].pair);
      } else {
        runs_.push_back({grouped.size(), last - first});
        std::for_each(order.begin() + static_cast<std::ptrdiff_t>(first),
                      order.begin() + static_cast<std::ptrdiff_t>(last),
                      [&](std::size_t step) { grouped.push_back(steps_[step]); });
      }
      first = last;
    }
    steps_ = std::move(grouped);
  }

  std::vector<move_step> steps_;
  std::vector<range> runs_;
  std::vector<block_pair> independent_;
};

/// Runs of steps as a kernel argument: copies, then swaps. The next launch continues a run that does not fit.
struct move_batch {
  static constexpr auto capacity = 256;

  struct run {
    std::uint16_t first_swap;
    std::uint16_t end;
  };

  block_pair steps[capacity];
  run runs[capacity];
  std::int32_t num_steps = 0;
  std::int32_t num_swaps = 0;  // in the run under construction
  std::int32_t num_runs = 0;

  void add(const move_step& step) noexcept {
    steps[num_steps++] = step.pair;
    num_swaps += step.swap;
  }

  /// Does nothing if the run is empty.
  void end_run() noexcept {
    if (num_steps == (num_runs == 0 ? 0 : std::int32_t{runs[num_runs - 1].end})) {
      return;
    }
    runs[num_runs++] = {static_cast<std::uint16_t>(num_steps - num_swaps), static_cast<std::uint16_t>(num_steps)};
    num_swaps = 0;
  }
};

/// One launch of `move_blocks`. Defined where kernels are compiled.
template <class Word>
[[nodiscard]] runtime::status launch_moves(const launch_shape& shape, runtime::stream stream,
                                           const block_storage_view& view, const block_words& words,
                                           const move_batch& batch);

/// Enqueues the runs of a plan; each launch takes as many as fit.
[[nodiscard]] inline runtime::status launch_runs(const block_storage_view& view, const move_plan& plan,
                                                 runtime::stream stream) {
  auto batch = move_batch{};
  const auto launch_batch = [&] {
    const auto status =
        launch_words(view, aligned_blocks(view), batch.num_runs, [&](auto word, const auto& words, const auto& shape) {
          return launch_moves<decltype(word)>(shape, stream, view, words, batch);
        });
    batch = move_batch{};
    return status;
  };
  for (auto i = std::size_t{0}; i < plan.num_runs(); ++i) {
    for (const auto& step : plan.run(i)) {
      if (batch.num_steps == batch.capacity) {
        batch.end_run();
        if (const auto status = launch_batch(); status != runtime::success) {
          return status;
        }
      }
      batch.add(step);
    }
    batch.end_run();
  }
  return batch.num_steps == 0 ? runtime::success : launch_batch();
}

/// Enqueues the moves of `order`, as if all sources were read before the first destination is written. The arguments
/// are not used after the call returns. Throws `std::bad_alloc`, before anything is enqueued.
[[nodiscard]] inline runtime::status move_blocks(const block_storage_view& view, move_order& order,
                                                 runtime::stream stream) {
  const auto plan = move_plan(order);
  const auto copied = copy_blocks(view, view, plan.independent(), stream);
  return copied == runtime::success ? launch_runs(view, plan, stream) : copied;
}

#if defined(PAGEDKV_COMPILES_KERNELS)

/// Every lane takes one word of the blocks and executes a whole run on it, the grid's y: different words are
/// independent, so the steps of a run need neither a barrier nor further memory.
template <class Word>
PAGEDKV_KERNEL void PAGEDKV_LAUNCH_BOUNDS(block_words::workgroup_size)
    move_blocks_kernel(block_storage_view view, block_words words, move_batch batch) {
  const auto word = word_of_lane();
  if (!words.covers(word)) {
    return;
  }
  const auto at = words.find(word);
  const auto first_swap = std::int32_t{batch.runs[workgroup_index().y].first_swap};
  const auto last = std::int32_t{batch.runs[workgroup_index().y].end};
  auto i = workgroup_index().y == 0 ? 0 : std::int32_t{batch.runs[workgroup_index().y - 1].end};
  // No copy reads the result of an earlier one, so several words are in flight before the first store.
  constexpr auto window = 4;
  for (; i < first_swap; i += window) {
    Word held[window] = {};
    for (auto k = 0; k < window; ++k) {
      if (i + k < first_swap) {
        held[k] = load(find_word<Word>(view, batch.steps[i + k].source, at));
      }
    }
    for (auto k = 0; k < window; ++k) {
      if (i + k < first_swap) {
        store(find_word<Word>(view, batch.steps[i + k].destination, at), held[k]);
      }
    }
  }
  for (i = first_swap; i < last; ++i) {
    auto* const source = find_word<Word>(view, batch.steps[i].source, at);
    auto* const destination = find_word<Word>(view, batch.steps[i].destination, at);
    const auto held = load(source);
    store(source, load(destination));
    store(destination, held);
  }
}

template <class Word>
[[nodiscard]] runtime::status launch_moves(const launch_shape& shape, runtime::stream stream,
                                           const block_storage_view& view, const block_words& words,
                                           const move_batch& batch) {
  return launch<move_blocks_kernel<Word>>(shape, stream, view, words, batch);
}

#endif

}  // namespace pagedkv::kernels
