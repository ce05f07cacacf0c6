#pragma once

#include <pagedkv/core/result.hpp>

#include <cstddef>
#include <cstdint>

namespace pagedkv::detail {

/// Whether `size` tokens from `first_token` on lie in [least, end). Errors: `invalid_argument`, under these names.
[[nodiscard]] inline result<void> check_range(std::int64_t first_token, std::size_t size, std::int64_t least,
                                              std::int64_t end, const char* first_name, const char* end_name) noexcept {
  if (first_token < least) {
    return error{error_code::invalid_argument, first_name, first_token, least};
  }
  if (first_token > end) {
    return error{error_code::invalid_argument, first_name, first_token, end};
  }
  if (static_cast<std::int64_t>(size) > end - first_token) {
    return error{error_code::invalid_argument, end_name, first_token + static_cast<std::int64_t>(size), end};
  }
  return {};
}

}  // namespace pagedkv::detail
