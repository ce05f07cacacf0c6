#pragma once

namespace pagedkv::test {

/// Calls of operator new so far, by any thread. Link allocation_count.cpp, which replaces the operator.
[[nodiscard]] long allocation_count() noexcept;

}  // namespace pagedkv::test
