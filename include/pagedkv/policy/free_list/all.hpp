#pragma once

#include <pagedkv/policy/axis.hpp>
#include <pagedkv/policy/free_list/any_free_block.hpp>
#include <pagedkv/policy/free_list/contiguous_runs.hpp>

namespace pagedkv {

/// Every free list policy, once: for programs whose users choose one, and for what runs over all of them.
using all_free_lists = policy_list<any_free_block, contiguous_runs>;

}  // namespace pagedkv
