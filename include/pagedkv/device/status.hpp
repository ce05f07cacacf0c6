#pragma once

#include <pagedkv/core/result.hpp>
#include <pagedkv/kernels/runtime.hpp>

namespace pagedkv::hip {

/// Success, or the error of a call of the runtime. `call` has static storage. Errors: `backend_failure` with the call
/// and the runtime's message.
[[nodiscard]] inline result<void> to_result(runtime::status status, const char* call) noexcept {
  if (status == runtime::success) {
    return {};
  }
  return error{error_code::backend_failure, call, static_cast<std::int64_t>(status), error::no_limit,
               runtime::error_text(status)};
}

/// Throws `exception` where a status is an error: constructors use it.
inline void require(runtime::status status, const char* call) { to_result(status, call).value(); }

}  // namespace pagedkv::hip
