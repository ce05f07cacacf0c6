#pragma once

#include <pagedkv/policy/axis.hpp>
#include <pagedkv/policy/preemption/no_preemption.hpp>
#include <pagedkv/policy/preemption/recompute.hpp>

namespace pagedkv {

/// Every preemption policy, once: for programs whose users choose one, and for what runs over all of them.
using all_preemptions = policy_list<recompute, no_preemption>;

}  // namespace pagedkv
