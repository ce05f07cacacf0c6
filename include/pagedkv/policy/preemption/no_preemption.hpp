#pragma once

#include <pagedkv/policy/preemption/concept.hpp>

#include <string_view>
#include <type_traits>

namespace pagedkv {

/// Preempts no request for another: a full pool refuses. A request that the caller preempts is computed again.
struct no_preemption {
  static constexpr bool enabled = false;
  static constexpr bool keeps_kv = false;
  static constexpr std::string_view name = "none";
};

static_assert(preemption_policy<no_preemption> && std::is_empty_v<no_preemption>);

}  // namespace pagedkv
