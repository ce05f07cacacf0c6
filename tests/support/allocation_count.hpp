#pragma once

#include <functional>

namespace pagedkv::test {

/// Calls of operator new so far, by any thread. Link allocation_count.cpp, which replaces the operator.
[[nodiscard]] long allocation_count() noexcept;

/// Makes the n-th call of operator new from now on fail, counted from 1; 0 ends this.
void fail_allocation(long n) noexcept;

/// Every call of operator new in this thread calls `hook` first, which itself may take memory; an empty one ends this.
void before_allocations(std::function<void()> hook);

}  // namespace pagedkv::test
