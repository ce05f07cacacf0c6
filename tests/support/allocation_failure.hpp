#pragma once

namespace pagedkv::test {

/// Lets `calls` more calls of operator new succeed and all later ones fail; a negative number lets all succeed. Only in
/// the calling thread. Link allocation_failure.cpp, which replaces the operator.
void fail_allocations_after(long calls) noexcept;

}  // namespace pagedkv::test
