#pragma once

#include <pagedkv/core/block_pair.hpp>
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

}  // namespace pagedkv::kernels
