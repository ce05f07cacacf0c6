#pragma once

#include <pagedkv/core/ids.hpp>
#include <pagedkv/core/result.hpp>
#include <pagedkv/core/step_set.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

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
/// that several open steps may access: the tag of the latest. While a step is open, no tag of a later one passes, also if
/// the thread that began it is stopped before `begin` returns.
///
/// Sequentially consistent where one thread writes a word A and then reads a word B while another writes B and then
/// reads A: two steps that retire at once must not both see the other one open, and a block that is released while its
/// step retires must not be missed by both threads (see `block_bitmap`).
template <template <class> class Atomic>
class step_fence {
 public:
  static constexpr std::uint64_t capacity = 64;

  /// Errors: `limit_reached` with `capacity` steps in flight.
  [[nodiscard]] result<step_id> begin(step_use use = step_use::everything) noexcept {
    auto last = begun_.load(std::memory_order_acquire);
    do {
      // Negative if other threads have begun and retired steps since `last` was read: then the swap fails.
      const auto num_in_flight = static_cast<std::int64_t>(last - retired());
      if (num_in_flight >= static_cast<std::int64_t>(capacity)) {
        return error{error_code::limit_reached, "number of steps in flight", num_in_flight + 1,
                     static_cast<std::int64_t>(capacity)};
      }
    } while (!begun_.compare_exchange_weak(last, last + 1, std::memory_order_acq_rel, std::memory_order_acquire));
    if (use == step_use::everything) {
      raise_last_of_everything(last + 1);
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
  /// The step that began last, if it is open; otherwise none.
  [[nodiscard]] step_id newest_open() const noexcept {
    const auto last = begun();
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

  /// The tag of the latest open step that uses everything or is in this set; 0 when there is none.
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

  void raise_last_of_everything(std::uint64_t number) noexcept {
    auto last = last_of_everything_.load(std::memory_order_acquire);
    while (last < number && !last_of_everything_.compare_exchange_weak(last, number, std::memory_order_acq_rel,
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
  std::array<Atomic<std::uint64_t>, capacity> done_{};
};

}  // namespace pagedkv
