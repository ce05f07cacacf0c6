#pragma once

#include <cstdint>

namespace pagedkv {

/// One block's word: reference count, leases, flags, and the step that fences its reuse. One compare-and-swap changes
/// all of it, so the first swap decides between a prefix hit and an eviction.
///
/// A *lease* keeps a published block from eviction, like a reference, but does not change the block's state:
///
/// | state     | count | published | claimed | step                                         |
/// |-----------|-------|-----------|---------|----------------------------------------------|
/// | free      | 0     | no        | no      | 0                                            |
/// | in use    | ≥ 1   | either    | no      | the latest of an earlier holder, if open     |
/// | withdrawn | ≥ 1   | yes       | yes     | the same: in use, and out of reach of hits   |
/// | evictable | 0     | yes       | no      | 0                                            |
/// | claimed   | 0     | yes       | yes     | either: one thread is taking it away         |
/// | retiring  | 0     | either    | no      | the step that it waits for                   |
/// | outside   | 0     | no        | yes     | 0: the pool is too small for its id          |
class block_state {
 public:
  static constexpr std::uint32_t max_count = (std::uint32_t{1} << 20) - 1;
  static constexpr std::uint32_t max_leases = (std::uint32_t{1} << 10) - 1;

  constexpr block_state() noexcept = default;
  constexpr explicit block_state(std::uint64_t word) noexcept : word_(word) {}

  [[nodiscard]] static constexpr block_state fresh() noexcept { return block_state{1}; }
  [[nodiscard]] static constexpr block_state outside() noexcept { return block_state{claimed_bit}; }

  [[nodiscard]] constexpr std::uint64_t word() const noexcept { return word_; }
  [[nodiscard]] constexpr std::uint32_t count() const noexcept { return static_cast<std::uint32_t>(word_ & max_count); }
  [[nodiscard]] constexpr std::uint32_t leases() const noexcept {
    return static_cast<std::uint32_t>(word_ / one_lease & max_leases);
  }
  [[nodiscard]] constexpr bool published() const noexcept { return (word_ & published_bit) != 0; }
  [[nodiscard]] constexpr bool claimed() const noexcept { return (word_ & claimed_bit) != 0; }
  [[nodiscard]] constexpr bool retiring() const noexcept { return count() == 0 && step() != 0; }
  [[nodiscard]] constexpr bool evictable() const noexcept {
    return count() == 0 && published() && !claimed() && step() == 0;
  }
  /// Whether the eviction order lists it: evictable, now or after its step has retired.
  [[nodiscard]] constexpr bool listed() const noexcept { return count() == 0 && published() && !claimed(); }
  [[nodiscard]] constexpr std::uint32_t step() const noexcept { return static_cast<std::uint32_t>(word_ >> 32); }

  /// Whether a lease or a reference can be taken without one: published, no thread takes it away, and the count is not
  /// full.
  [[nodiscard]] constexpr bool leasable() const noexcept {
    const bool far_from_full = (word_ & (published_bit | claimed_bit | upper_half_full)) == published_bit;
    return far_from_full || (published() && !claimed() && referable());
  }

  /// Whether one more reference fits, even if every lease becomes one.
  [[nodiscard]] constexpr bool referable() const noexcept { return count() + leases() < max_count; }

  /// The step stays, because it may still read an earlier holder's tokens.
  [[nodiscard]] constexpr block_state referenced() const noexcept { return block_state{word_ + 1}; }
  [[nodiscard]] constexpr block_state unreferenced() const noexcept { return block_state{word_ - 1}; }
  [[nodiscard]] constexpr block_state leased() const noexcept { return block_state{word_ + one_lease}; }
  [[nodiscard]] constexpr block_state unleased() const noexcept { return block_state{word_ - one_lease}; }
  [[nodiscard]] constexpr block_state with_published(bool on) const noexcept { return with(published_bit, on); }
  [[nodiscard]] constexpr block_state with_claimed(bool on) const noexcept { return with(claimed_bit, on); }
  [[nodiscard]] constexpr block_state with_step(std::uint32_t step) const noexcept {
    return block_state{(word_ & low_bits) | std::uint64_t{step} << 32};
  }

 private:
  static constexpr std::uint64_t one_lease = std::uint64_t{1} << 20;
  static constexpr std::uint64_t published_bit = std::uint64_t{1} << 30;
  static constexpr std::uint64_t claimed_bit = std::uint64_t{1} << 31;
  static constexpr std::uint64_t low_bits = 0xffff'ffff;
  static constexpr std::uint64_t upper_half_full = (max_count + 1) / 2 | (max_leases + 1) / 2 * one_lease;

  [[nodiscard]] constexpr block_state with(std::uint64_t flag, bool on) const noexcept {
    return block_state{on ? word_ | flag : word_ & ~flag};
  }

  std::uint64_t word_ = 0;
};

}  // namespace pagedkv
