#pragma once

namespace pagedkv::test {

/// File operations of this program so far, by any thread. Link failing_files.cpp, with the options in meson.build.
[[nodiscard]] long file_operation_count() noexcept;

/// Makes the n-th file operation from now on fail with EIO, counted from 1; 0 ends this.
void fail_file_operation(long n) noexcept;

}  // namespace pagedkv::test
