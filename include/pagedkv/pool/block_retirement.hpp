#pragma once

#include <pagedkv/core/result.hpp>
#include <pagedkv/detail/block_bitmap.hpp>
#include <pagedkv/pool/block_words.hpp>
#include <pagedkv/pool/step_fence.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace pagedkv {

/// The requesting sequence's own blocks, for a forecast.
struct own_blocks {
  std::span<const block_id> shared{};  // published blocks that it will share; it needs others in addition
  block_id rewritten = no_block;       // a block that it will write in place, once the block's step has retired
};

/// Steps, and the blocks whose words have a step: blocks that wait to be available, and blocks in use in which an open
/// step may still read an earlier holder's tokens. `end_wait(block)` below removes the step from a word if it has
/// passed.
template <locking Locking>
class block_retirement {
 public:
  explicit block_retirement(std::int32_t num_blocks) : fenced_(num_blocks) {}

  [[nodiscard]] auto& steps() noexcept { return steps_; }
  [[nodiscard]] const auto& steps() const noexcept { return steps_; }

  template <class EndWait>
  [[nodiscard]] result<void> retire(step_id step, const block_words<Locking>& words, EndWait&& end_wait) noexcept {
    auto retired = steps_.retire(step);
    if (retired) {
      fenced_.for_each([&](block_id block) { settle(block, words, end_wait); });
    }
    return retired;
  }

  /// Call it after a step has entered a block's word: makes the step's retirement find the block.
  template <class EndWait>
  void watch(block_id block, std::uint32_t step, const block_words<Locking>& words, EndWait&& end_wait) noexcept {
    fenced_.insert(block);
    if (steps_.passed(step)) {  // retired since the steps were read: its sweep missed the block
      settle(block, words, end_wait);
    }
  }

  /// The step with which this many blocks end their wait: those for which `counts(state)` is true, and the rewritten
  /// one. See `step_fence`.
  template <class Counts>
  [[nodiscard]] auto step_that_frees(std::int64_t num_blocks, const block_words<Locking>& words,
                                     const own_blocks& own, Counts&& counts) const noexcept {
    return steps_.step_that_frees(num_blocks, [&](auto&& visit) {
      const auto add = [&](block_id block, std::int64_t count) {
        if (const auto seen = words[block]; counts(seen) || (block == own.rewritten && seen.step() != 0)) {
          visit(seen.step(), count);
        }
      };
      if (steps_.in_flight()) {
        fenced_.for_each([&](block_id block) { add(block, 1); });
        std::ranges::for_each(own.shared, [&](block_id block) { add(block, -1); });
      }
    });
  }

  [[nodiscard]] std::size_t metadata_bytes() const noexcept { return fenced_.metadata_bytes(); }

 private:
  /// Ends the wait of a block whose steps have retired; while it waits, later sweeps visit the block.
  template <class EndWait>
  void settle(block_id block, const block_words<Locking>& words, EndWait& end_wait) noexcept {
    end_wait(block);
    while (words[block].step() == 0) {
      fenced_.erase(block);
      const auto seen = words[block];
      if (seen.step() == 0) {
        break;
      }
      fenced_.insert(block);  // released again meanwhile
      if (!steps_.passed(seen.step())) {
        break;
      }
      end_wait(block);  // the sweep of its step may also have come between
    }
  }

  step_fence<Locking::template atomic> steps_;
  block_bitmap<Locking::template atomic> fenced_;
};

}  // namespace pagedkv
