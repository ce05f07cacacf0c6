#pragma once

#include <pagedkv/policy/axis.hpp>
#include <pagedkv/policy/preemption/concept.hpp>

#include <string_view>
#include <type_traits>

namespace pagedkv {

/// Preempts requests of lower priority and, with equal priority, those that arrived later. On resumption, their tokens
/// are computed again unless they are still in the prefix cache.
struct recompute {
  static constexpr bool enabled = true;
  static constexpr bool keeps_kv = false;
  static constexpr std::string_view name = "recompute";

  [[nodiscard]] bool ranks_below(const preemption_candidate& a, const preemption_candidate& b) const noexcept {
    return a.priority != b.priority ? a.priority < b.priority : a.arrival > b.arrival;
  }
};

static_assert(preemption_policy<recompute> && std::is_empty_v<recompute>);

/// Every preemption policy, once: for programs whose users choose one, and for what runs over all of them.
using all_preemptions = policy_list<recompute, no_preemption>;

}  // namespace pagedkv
