#pragma once

#include <pagedkv/core/ids.hpp>
#include <pagedkv/core/result.hpp>
#include <pagedkv/core/step_set.hpp>
#include <pagedkv/detail/block_bitmap.hpp>
#include <pagedkv/pool/block_states.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace pagedkv {

/// The blocks that a step may access.
enum class step_use : std::uint8_t {
  everything,       // any block that is in use while the step is open
  named_sequences,  // blocks of the sequences whose `step_set` has it
};

/// Numbers steps and knows which are open. Steps may retire in any order; at most `capacity` lie between the oldest
/// open one and the newest. Lock-free with an atomic `Atomic`.
///
/// A *tag* stands for a step and all steps before it: it passes when they have retired. So one tag suffices for a block
/// that several open steps may access: the tag of the latest. While a step is open, no tag of a later one passes, also
/// if the thread that began it is stopped before `begin` returns.
///
/// Sequentially consistent where one thread writes a word A and then reads a word B while another writes B and then
/// reads A: two steps that retire at once must not both see the other one open, and a block that is released while its
/// step retires must not be missed by both threads (see `block_bitmap`).
template <template <class> class Atomic>
class step_fence {
 public:
  static constexpr std::uint64_t capacity = 64;

  /// Errors: `limit_reached` with `capacity` steps in flight, counted from the oldest open one, which `error::step`
  /// names.
  [[nodiscard]] result<step_id> begin(step_use use = step_use::everything) noexcept {
    auto last = begun_.load(std::memory_order_acquire);
    do {
      // Negative if other threads have begun and retired steps since `last` was read: then the swap fails.
      const auto num_in_flight = static_cast<std::int64_t>(last - retired());
      if (num_in_flight >= static_cast<std::int64_t>(capacity)) {
        return error{error_code::limit_reached,
                     "number of steps from the oldest open one on",
                     num_in_flight + 1,
                     static_cast<std::int64_t>(capacity),
                     "",
                     static_cast<step_id>(last - static_cast<std::uint64_t>(num_in_flight) + 1)};
      }
    } while (!begun_.compare_exchange_weak(last, last + 1, std::memory_order_acq_rel, std::memory_order_acquire));
    if (use == step_use::everything) {
      raise(last_of_everything_, last + 1);
    }
    return static_cast<step_id>(last + 1);
  }

  /// Errors: `unknown_step` for a step that never began or has already retired.
  [[nodiscard]] result<void> retire(step_id step) noexcept {
    const auto number = static_cast<std::uint64_t>(step);
    auto& done = done_[number % capacity];
    auto seen = done.load(std::memory_order_acquire);
    if (number <= retired() || number > begun() || seen == number ||
        !done.compare_exchange_strong(seen, number, std::memory_order_seq_cst, std::memory_order_acquire)) {
      return error{error_code::unknown_step, "step", static_cast<std::int64_t>(number)};
    }
    advance();
    return {};
  }

  [[nodiscard]] bool in_flight() const noexcept { return begun() > retired(); }
  /// Makes a step that has begun the newest one, unless a later one is. Until then, `newest_open` does not name it. Not
  /// called for one that is refused half-way.
  void note_newest(step_id step) noexcept { raise(newest_, static_cast<std::uint64_t>(step)); }
  /// The newest step, if it is open; otherwise none.
  [[nodiscard]] step_id newest_open() const noexcept {
    const auto last = newest_.load(std::memory_order_acquire);
    return last > retired() && !retired_early(last) ? static_cast<step_id>(last) : step_id{};
  }
  [[nodiscard]] std::int64_t num_open() const noexcept {
    auto num = std::int64_t{0};
    const auto last = begun();
    for (auto number = retired() + 1; number <= last; ++number) {
      num += !retired_early(number);
    }
    return num;
  }

  /// The tag of the later of two steps: the latest one that uses everything, open or retired, and the latest open one
  /// in this set. 0 if all steps up to it have retired.
  [[nodiscard]] std::uint32_t tag(const step_set& used = {}) const noexcept {
    const auto oldest_open = retired() + 1;
    auto latest = last_of_everything_.load(std::memory_order_acquire);
    if (used.last >= oldest_open) {
      visit_latest_first(used, [&](std::uint64_t number) {
        const bool open = number >= oldest_open && !retired_early(number);
        latest = open ? std::max(latest, number) : latest;
        return open || number < oldest_open;
      });
    }
    return latest >= oldest_open ? tag_of(latest) : 0;
  }

  /// The tag of a step; 0 unless it is open.
  [[nodiscard]] std::uint32_t tag(step_id step) const noexcept {
    const auto number = static_cast<std::uint64_t>(step);
    return number > retired() && number <= begun() && !retired_early(number) ? tag_of(number) : 0;
  }

  /// Whether the steps up to a tag have retired. The tag is not older than 2^30 steps.
  [[nodiscard]] bool passed(std::uint32_t tag) const noexcept { return num_before_passed(tag, retired()) <= 0; }

  /// The later of two tags, either of which may be 0. An earlier tag that has passed counts as 0.
  [[nodiscard]] std::uint32_t later(std::uint32_t seen, std::uint32_t more) const noexcept {
    if (seen == 0 || passed(seen)) {
      return more;
    }
    return more != 0 && static_cast<std::int32_t>(more - seen) > 0 ? more : seen;
  }

  /// The first open step whose retirement, with that of all before it, ends the wait of `num_needed` tags, and the
  /// total number of waiting tags. `for_each_tag(visit)` calls `visit(tag, count)`; `count` may be negative.
  struct forecast {
    step_id step{};  // 0 if fewer wait
    std::int64_t num_waiting = 0;
  };
  template <class ForEachTag>
  [[nodiscard]] forecast step_that_frees(std::int64_t num_needed, ForEachTag&& for_each_tag) const noexcept {
    const auto base = retired();
    auto waiting = std::array<std::int64_t, capacity>{};
    auto found = forecast{};
    for_each_tag([&](std::uint32_t tag, std::int64_t count) {
      const auto distance = std::clamp(num_before_passed(tag, base), 1, static_cast<std::int32_t>(capacity));
      waiting[static_cast<std::size_t>(distance - 1)] += count;
      found.num_waiting += count;
    });
    auto sum = std::int64_t{0};
    auto newest_open = base + 1;
    for (std::size_t i = 0; i < capacity && found.step == step_id{}; ++i) {
      sum += waiting[i];
      newest_open = retired_early(base + 1 + i) ? newest_open : base + 1 + i;
      found.step = sum >= num_needed ? static_cast<step_id>(newest_open) : step_id{};
    }
    return found;
  }

 private:
  // Odd, so that no tag is 0. Tags keep the order of the steps although the upper bits are cut off.
  [[nodiscard]] static std::uint32_t tag_of(std::uint64_t number) noexcept {
    return static_cast<std::uint32_t>(number << 1 | 1);
  }
  /// Number of steps after `retired` for which a tag waits; 0 or less if it has passed.
  [[nodiscard]] static std::int32_t num_before_passed(std::uint32_t tag, std::uint64_t retired) noexcept {
    return static_cast<std::int32_t>(tag - tag_of(retired)) / 2;
  }

  /// Whether a step retired before an older one did.
  [[nodiscard]] bool retired_early(std::uint64_t number) const noexcept {
    return done_[number % capacity].load(std::memory_order_acquire) == number;
  }

  static void raise(Atomic<std::uint64_t>& highest, std::uint64_t number) noexcept {
    auto seen = highest.load(std::memory_order_acquire);
    while (seen < number && !highest.compare_exchange_weak(seen, number, std::memory_order_acq_rel,
                                                           std::memory_order_acquire)) {
    }
  }

  void advance() noexcept {
    auto last = retired();
    while (done_[(last + 1) % capacity].load(std::memory_order_seq_cst) == last + 1) {
      if (retired_.compare_exchange_strong(last, last + 1, std::memory_order_seq_cst, std::memory_order_acquire)) {
        ++last;
      }
    }
  }

  [[nodiscard]] std::uint64_t begun() const noexcept { return begun_.load(std::memory_order_acquire); }
  [[nodiscard]] std::uint64_t retired() const noexcept { return retired_.load(std::memory_order_seq_cst); }

  Atomic<std::uint64_t> begun_{0};
  Atomic<std::uint64_t> retired_{0};
  Atomic<std::uint64_t> last_of_everything_{0};
  Atomic<std::uint64_t> newest_{0};
  std::array<Atomic<std::uint64_t>, capacity> done_{};
};

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
