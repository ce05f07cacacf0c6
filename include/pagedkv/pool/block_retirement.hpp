#pragma once

#include <pagedkv/core/result.hpp>
#include <pagedkv/detail/block_bitmap.hpp>
#include <pagedkv/pool/block_states.hpp>
#include <pagedkv/pool/step_fence.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace pagedkv {

/// The requesting sequence's own blocks, for a forecast.
struct own_blocks {
  std::span<const block_id> shared{};     // published blocks that it will share; it needs others in addition
  std::span<const block_id> rewritten{};  // blocks that it will write in place, once the block's step has retired
};

/// Steps, and the blocks whose words have a step: blocks that wait to be available, and blocks in use in which an open
/// step may still read an earlier holder's tokens. `set_free(block)` below puts an
/// unpublished block whose wait has ended into the free list.
template <locking Locking>
class block_retirement {
 public:
  using states = block_states<Locking>;

  explicit block_retirement(std::int32_t num_blocks) : fenced_(num_blocks) {}

  [[nodiscard]] auto& steps() noexcept { return steps_; }
  [[nodiscard]] const auto& steps() const noexcept { return steps_; }

  template <class SetFree>
  [[nodiscard]] result<void> retire(step_id step, states& all, SetFree&& set_free) noexcept {
    auto retired = steps_.retire(step);
    if (retired) {
      fenced_.for_each([&](block_id block) { settle(block, all, set_free); });
    }
    return retired;
  }

  /// Call it after a step has entered a block's word: makes the step's retirement find the block.
  template <class SetFree>
  void watch(block_id block, std::uint32_t step, states& all, SetFree&& set_free) noexcept {
    fenced_.insert(block);
    if (steps_.passed(step)) {  // retired since the steps were read: its sweep missed the block
      settle(block, all, set_free);
    }
  }

  /// Makes a block's reuse wait for a step, too.
  template <class SetFree>
  void fence(block_id block, std::uint32_t step, states& all, SetFree&& set_free) noexcept {
    all.words.change(block, [&](block_state seen) {
      return std::optional{seen.with_step(steps_.later(seen.step(), step))};
    });
    watch(block, step, all, set_free);
  }

  /// The step with which this many blocks end their wait: those for which `counts(state)` is true, and the rewritten
  /// ones. See `step_fence`.
  template <class Counts>
  [[nodiscard]] auto step_that_frees(std::int64_t num_blocks, const states& all, const own_blocks& own,
                                     Counts&& counts) const noexcept {
    return steps_.step_that_frees(num_blocks, [&](auto&& visit) {
      const auto add = [&](block_id block, std::int64_t count) {
        const auto is_rewritten = [&] { return std::ranges::find(own.rewritten, block) != own.rewritten.end(); };
        if (const auto seen = all.words[block]; counts(seen) || (seen.step() != 0 && is_rewritten())) {
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
  template <class SetFree>
  void settle(block_id block, states& all, SetFree& set_free) noexcept {
    end_wait(block, all, set_free);
    while (all.words[block].step() == 0) {
      fenced_.erase(block);
      const auto seen = all.words[block];
      if (seen.step() == 0) {
        break;
      }
      fenced_.insert(block);  // released again meanwhile
      if (!steps_.passed(seen.step())) {
        break;
      }
      end_wait(block, all, set_free);  // the sweep of its step may also have come between
    }
  }

  /// Removes a step that has passed from a block's word; without references, the block is then available.
  template <class SetFree>
  void end_wait(block_id block, states& all, SetFree& set_free) noexcept {
    auto gained = false;
    const auto before = all.words.change(block, [&](block_state seen) {
      const auto taken_away = seen.count() == 0 && seen.claimed();
      const auto ends = seen.step() != 0 && !taken_away && steps_.passed(seen.step());
      all.tally.foresee_evictable(gained, ends && seen.count() == 0 && seen.published());
      return only_if(ends, seen.with_step(0));
    });
    if (before && before->count() == 0) {
      all.tally.add_retiring(-1);
      if (!before->published()) {
        set_free(block);
      }
    }
  }

  step_fence<Locking::template atomic> steps_;
  block_bitmap<Locking::template atomic> fenced_;
};

}  // namespace pagedkv
