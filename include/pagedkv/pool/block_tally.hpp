#pragma once

#include <pagedkv/policy/locking/concept.hpp>
#include <pagedkv/policy/locking/parts/tally.hpp>

#include <cstddef>
#include <cstdint>

namespace pagedkv {

/// How many blocks of a pool are evictable, and how many retiring.
///
/// What makes a block evictable is counted before it is done and read last; what ends that is counted after it was done
/// and read first. So while other threads are at work, none that is evictable at a moment between the two readings is
/// left out.
template <locking Locking>
class block_tally {
 public:
  /// Counts a block that is about to become evictable, or takes that back. `counted` is false at first.
  void foresee_evictable(bool& counted, bool evictable) noexcept {
    if (counted != evictable) {
      sums_.add(evictable ? evictable_gained : evictable_lost, 1);
      counted = evictable;
    }
  }
  void add_evictable() noexcept { sums_.add(evictable_gained, 1); }
  void remove_evictable() noexcept { sums_.add(evictable_lost, 1); }
  void add_retiring(std::int64_t amount) noexcept { sums_.add(retiring, amount); }

  /// Calls `meanwhile()` between the two readings. Reads anew, a few times, if something ended in between: a reader that
  /// is held up there would else count all that begins.
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
