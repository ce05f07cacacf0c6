#pragma once

#include <pagedkv/policy/locking/concept.hpp>
#include <pagedkv/policy/locking/parts/tally.hpp>

#include <cstddef>
#include <cstdint>

namespace pagedkv {

/// Number of evictable and of retiring blocks of a pool.
///
/// A transition to evictable is counted before it happens and read last; a transition from evictable is counted after
/// it happened and read first. So with other threads at work, no block that is evictable at a moment between the two
/// readings is missed.
template <locking Locking>
class block_tally {
 public:
  /// Counts a block that is about to become evictable, or reverts this. `counted` is false at first.
  void foresee_evictable(bool& counted, bool evictable) noexcept {
    if (counted != evictable) {
      sums_.add(evictable ? evictable_gained : evictable_lost, 1);
      counted = evictable;
    }
  }
  void add_evictable() noexcept { sums_.add(evictable_gained, 1); }
  void remove_evictable(std::int64_t amount = 1) noexcept { sums_.add(evictable_lost, amount); }
  void add_retiring(std::int64_t amount) noexcept { sums_.add(retiring, amount); }

  /// Calls `meanwhile()` between the two readings. Repeats both, a few times, if a transition from evictable came
  /// between: a delayed reader would otherwise count all later transitions to evictable.
  template <class Meanwhile>
  [[nodiscard]] std::int64_t num_evictable(Meanwhile&& meanwhile) const noexcept {
    for (auto attempts = 1;; ++attempts) {
      const auto lost = sums_.get(evictable_lost);
      meanwhile();
      const auto gained = sums_.get(evictable_gained);
      if (attempts == max_attempts || sums_.get(evictable_lost) == lost) {
        return gained - lost;
      }
    }
  }
  [[nodiscard]] std::int64_t num_evictable() const noexcept {
    return num_evictable([] {});
  }
  [[nodiscard]] std::int64_t num_retiring() const noexcept { return sums_.get(retiring); }

 private:
  static constexpr auto max_attempts = 4;
  static constexpr auto evictable_gained = std::size_t{0};
  static constexpr auto evictable_lost = std::size_t{1};
  static constexpr auto retiring = std::size_t{2};

  tally_for<Locking, 3> sums_;
};

}  // namespace pagedkv
