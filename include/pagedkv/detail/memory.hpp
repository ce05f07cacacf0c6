#pragma once

#include <pagedkv/core/result.hpp>

#include <new>
#include <stdexcept>
#include <system_error>
#include <type_traits>

namespace pagedkv::detail {

/// Calls `body` and returns its result, or `refusal` when memory is exhausted. A program that is compiled without
/// exceptions ends instead, as at its other allocations.
template <class Body, class Refusal>
[[nodiscard]] std::invoke_result_t<Body&> with_memory(Body body, const Refusal& refusal) noexcept {
#if defined(__cpp_exceptions)
  try {
    return body();
  } catch (const std::bad_alloc&) {
  } catch (const std::length_error&) {
  }
  return refusal;
#else
  static_cast<void>(refusal);
  return body();
#endif
}

/// Runs a body that constructs what throws `exception` or, when a thread cannot start, `std::system_error`.
template <class Body>
[[nodiscard]] std::invoke_result_t<Body&> with_errors(Body body, const error& exhausted) noexcept {
  const auto guarded = [&]() -> std::invoke_result_t<Body&> {
#if defined(__cpp_exceptions)
    try {
      return body();
    } catch (const exception& refused) {
      return refused.reason();
    } catch (const std::system_error& refused) {
      return error{error_code::backend_failure, "start of a thread", refused.code().value()};
    }
#else
    return body();
#endif
  };
  return with_memory(guarded, exhausted);
}

}  // namespace pagedkv::detail
