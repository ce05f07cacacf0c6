#pragma once

#include <pagedkv/core/error.hpp>
#include <pagedkv/kernels/platform.hpp>

namespace pagedkv::hip {

/// Success, or `backend_failure` with the call and the runtime's own words. `call` has static storage.
[[nodiscard]] inline result<void> to_result(hipError_t status, const char* call) noexcept {
  if (status == hipSuccess) {
    return {};
  }
  return error{error_code::backend_failure, call, static_cast<std::int64_t>(status), error::no_limit,
               hipGetErrorString(status)};
}

/// For constructors: throws `exception` instead.
inline void require(hipError_t status, const char* call) { to_result(status, call).value(); }

}  // namespace pagedkv::hip
