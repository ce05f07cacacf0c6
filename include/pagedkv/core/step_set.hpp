#pragma once

#include <pagedkv/core/ids.hpp>

#include <cstdint>

namespace pagedkv {

/// Steps that use one sequence: the latest, and those among the 64 before it. Older ones have retired (see
/// `step_fence`).
struct step_set {
  std::uint64_t last = 0;     // id of the latest; 0 when empty
  std::uint64_t earlier = 0;  // bits; bit k: step `last - 1 - k`

  /// Adds a step; leaves out one that is more than 64 before the latest, because it has retired.
  void insert(step_id step) noexcept {
    const auto number = static_cast<std::uint64_t>(step);
    if (number > last) {
      const auto distance = number - last;
      earlier = distance < 64 ? earlier << distance : 0;
      if (last != 0 && distance <= 64) {
        earlier |= std::uint64_t{1} << (distance - 1);
      }
      last = number;
    } else if (number < last && last - number <= 64) {
      earlier |= std::uint64_t{1} << (last - number - 1);
    }
  }
};

/// Calls `visit(number)` on each, the latest first, until it returns true.
template <class Visit>
void visit_latest_first(const step_set& steps, Visit&& visit) noexcept {
  if (steps.last == 0 || visit(steps.last)) {
    return;
  }
  auto number = steps.last - 1;
  for (auto rest = steps.earlier; rest != 0; rest >>= 1, --number) {
    if ((rest & 1) != 0 && visit(number)) {
      return;
    }
  }
}

}  // namespace pagedkv
