#pragma once

#include <pagedkv/core/result.hpp>

#include <cstddef>
#include <mutex>
#include <new>
#include <set>
#include <stdexcept>
#include <string>
#include <system_error>
#include <type_traits>
#include <utility>

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

/// A copy of a text that lasts until the program ends, as the texts of an `error` do. Equal texts share one. Returns
/// `instead` when all copies would take more than 64 KiB, or memory is exhausted. For the paths of files whose errors are
/// reported.
[[nodiscard]] inline const char* lasting_text(std::string text, const char* instead) noexcept {
  constexpr auto most_bytes = std::size_t{1} << 16;
  struct copies {
    std::mutex mutex;
    std::set<std::string> texts;
    std::size_t num_bytes = 0;
  };
  const auto keep = [&]() -> const char* {
    static auto& kept = *new copies;  // errors may be read while static objects end
    const auto guard = std::lock_guard{kept.mutex};
    const auto found = kept.texts.find(text);
    if (found != kept.texts.end()) {
      return found->c_str();
    }
    if (text.size() > most_bytes - kept.num_bytes) {
      return instead;
    }
    const auto& added = *kept.texts.insert(std::move(text)).first;
    kept.num_bytes += added.size();
    return added.c_str();
  };
  return with_memory(keep, instead);
}

}  // namespace pagedkv::detail
