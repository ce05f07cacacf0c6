#pragma once

#include <pagedkv/core/ids.hpp>
#include <pagedkv/core/result.hpp>

#include <array>
#include <atomic>
#include <cstdint>

namespace pagedkv {

/// Numbers steps and knows up to which one all have retired. Steps may retire in any order; the fence moves when the
/// oldest does. At most `capacity` steps are in flight. Lock-free with an atomic `Atomic`.
///
/// Sequentially consistent where a thread writes one word and then looks at another that some thread writes before it
/// looks at the first: two steps retired at once must not each take the other for open, nor may a block that is
/// released while its step retires be missed by both (see `block_bitmap`).
template <template <class> class Atomic>
class step_fence {
 public:
  static constexpr std::uint64_t capacity = 64;

  /// Errors: `limit_reached` with `capacity` steps in flight.
  [[nodiscard]] result<step_id> begin() noexcept {
    auto last = begun_.load(std::memory_order_acquire);
    do {
      // Negative when other threads have begun and retired steps since `last` was read: then the swap fails.
      const auto num_in_flight = static_cast<std::int64_t>(last - retired());
      if (num_in_flight >= static_cast<std::int64_t>(capacity)) {
        return error{error_code::limit_reached, "steps in flight", num_in_flight, static_cast<std::int64_t>(capacity)};
      }
    } while (!begun_.compare_exchange_weak(last, last + 1, std::memory_order_acq_rel, std::memory_order_acquire));
    return static_cast<step_id>(last + 1);
  }

  /// Errors: `unknown_step` for a step never begun or retired before.
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

  /// What a block released now must wait for, as `passed` understands it; 0 when no step is in flight.
  [[nodiscard]] std::uint32_t tag() const noexcept {
    const auto newest = begun();
    return newest > retired() ? tag_of(newest) : 0;
  }

  /// Whether the steps up to a tag have retired. The tag is not older than 2^30 steps.
  [[nodiscard]] bool passed(std::uint32_t tag) const noexcept {
    return static_cast<std::int32_t>(tag_of(retired()) - tag) >= 0;
  }

 private:
  // Odd, so that no tag is 0, and in the order of the steps also where the upper bits are cut off.
  [[nodiscard]] static std::uint32_t tag_of(std::uint64_t number) noexcept {
    return static_cast<std::uint32_t>(number << 1 | 1);
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
  std::array<Atomic<std::uint64_t>, capacity> done_{};
};

}  // namespace pagedkv
