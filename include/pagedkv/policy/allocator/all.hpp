#pragma once

#include <pagedkv/policy/allocator/host_allocator.hpp>
#include <pagedkv/policy/allocator/page_allocators.hpp>
#include <pagedkv/policy/axis.hpp>

namespace pagedkv {

/// Every allocator of ordinary host memory, once: for programs whose users choose one, and for what runs over all of
/// them. `caller_memory` and `no_memory` allocate nothing themselves, `shared_allocator` has one allocation.
using all_host_allocators = policy_list<host_allocator, huge_page_allocator, reserving_allocator>;

}  // namespace pagedkv
