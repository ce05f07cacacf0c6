#pragma once

#include <new>
#include <stdexcept>
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

}  // namespace pagedkv::detail
