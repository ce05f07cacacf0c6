#pragma once

#include <pagedkv/core/error.hpp>
#include <pagedkv/core/ids.hpp>

#include <algorithm>
#include <array>
#include <cstdint>

namespace pagedkv {

/// Numbers steps and knows up to which one all have retired. Steps may retire in any order; the fence moves when the
/// oldest does. At most `capacity` steps are in flight. Lock-free with an atomic `Atomic`.
template <template <class> class Atomic>
class step_fence {
 public:
  static constexpr std::uint64_t capacity = 64;

  /// Errors: `limit_reached` with `capacity` steps in flight.
  [[nodiscard]] result<step_id> begin() noexcept {
    auto last = begun_.load(std::memory_order_acquire);
    do {
      if (last - retired() >= capacity) {
        return error{error_code::limit_reached, "steps in flight", static_cast<std::int64_t>(last - retired()),
                     static_cast<std::int64_t>(capacity)};
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
        !done.compare_exchange_strong(seen, number, std::memory_order_acq_rel, std::memory_order_acquire)) {
      return error{error_code::unknown_step, "step", static_cast<std::int64_t>(number)};
    }
    advance();
    return {};
  }

  [[nodiscard]] bool in_flight() const noexcept { return begun() > retired(); }

  /// What a block released now must wait for, as `passed` understands it; 0 when no step is in flight.
  [[nodiscard]] std::uint32_t tag() const noexcept {
    const auto newest = begun();
    // A step whose low 32 bits are 0 is taken for the next one: waiting longer is safe.
    return newest > retired() ? std::max(static_cast<std::uint32_t>(newest), std::uint32_t{1}) : 0;
  }

  /// Whether the steps up to a tag have retired. The tag is not older than 2^31 steps.
  [[nodiscard]] bool passed(std::uint32_t tag) const noexcept {
    return static_cast<std::int32_t>(static_cast<std::uint32_t>(retired()) - tag) >= 0;
  }

 private:
  void advance() noexcept {
    auto last = retired();
    while (last < begun() && done_[(last + 1) % capacity].load(std::memory_order_acquire) == last + 1) {
      if (retired_.compare_exchange_strong(last, last + 1, std::memory_order_acq_rel, std::memory_order_acquire)) {
        ++last;
      }
    }
  }

  [[nodiscard]] std::uint64_t begun() const noexcept { return begun_.load(std::memory_order_acquire); }
  [[nodiscard]] std::uint64_t retired() const noexcept { return retired_.load(std::memory_order_acquire); }

  Atomic<std::uint64_t> begun_{0};
  Atomic<std::uint64_t> retired_{0};
  std::array<Atomic<std::uint64_t>, capacity> done_{};
};

}  // namespace pagedkv
