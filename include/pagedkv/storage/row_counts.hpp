#pragma once

#include <pagedkv/core/result.hpp>
#include <pagedkv/storage/view.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace pagedkv {

/// Errors: `invalid_argument` when keys or values declare fewer tokens.
template <class Number>
[[nodiscard]] result<void> check_row_counts(const token_rows<Number>& keys, const token_rows<Number>& values,
                                            std::size_t num_tokens) noexcept {
  const auto room = std::min(keys.num_tokens, values.num_tokens);
  if (static_cast<std::int64_t>(num_tokens) > room) {
    return error{error_code::invalid_argument, "number of slots, more than rows,",
                 static_cast<std::int64_t>(num_tokens), room};
  }
  return {};
}

}  // namespace pagedkv
