#pragma once

#include <pagedkv/policy/axis.hpp>
#include <pagedkv/policy/groups/layer_groups.hpp>
#include <pagedkv/policy/groups/one_group.hpp>

namespace pagedkv {

/// Every policy for groups, once: for programs whose users choose one, and for what runs over all of them.
using all_groups = policy_list<one_group, layer_groups>;

}  // namespace pagedkv
