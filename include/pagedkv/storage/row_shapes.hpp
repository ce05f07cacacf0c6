#pragma once

#include <pagedkv/core/result.hpp>
#include <pagedkv/storage/view.hpp>

#include <cstddef>
#include <cstdint>

namespace pagedkv {

namespace detail {

/// Names of the numbers of rows, in errors.
struct row_subjects {
  const char* num_tokens;
  const char* num_heads;
  const char* head_dim;
};

/// Whether rows hold these heads, and as many tokens or more. Errors: `invalid_argument`.
template <class Number>
[[nodiscard]] result<void> check_row_shape(const token_rows<Number>& rows, std::int64_t num_tokens,
                                           std::int32_t num_heads, std::int32_t head_dim,
                                           const row_subjects& subjects) noexcept {
  if (rows.num_tokens < num_tokens) {
    return error{error_code::invalid_argument, subjects.num_tokens, rows.num_tokens, num_tokens};
  }
  if (rows.num_heads != num_heads) {
    return error{error_code::invalid_argument, subjects.num_heads, rows.num_heads, num_heads};
  }
  if (rows.head_dim != head_dim) {
    return error{error_code::invalid_argument, subjects.head_dim, rows.head_dim, head_dim};
  }
  return {};
}

template <class Number>
[[nodiscard]] result<void> check_row_shapes(const token_rows<Number>& rows, std::int32_t num_heads, std::int32_t dim,
                                            const char* heads_name, const char* dim_name,
                                            std::size_t num_slots) noexcept {
  if (rows.num_heads != num_heads) {
    return error{error_code::invalid_argument, heads_name, rows.num_heads, num_heads};
  }
  if (rows.head_dim != dim) {
    return error{error_code::invalid_argument, dim_name, rows.head_dim, dim};
  }
  if (static_cast<std::int64_t>(num_slots) > rows.num_tokens) {
    return error{error_code::invalid_argument, "number of slots, more than rows,", static_cast<std::int64_t>(num_slots),
                 rows.num_tokens};
  }
  return {};
}

}  // namespace detail

/// Whether rows fit a storage, and there is one for each slot; for no slots, any do. `values`: null where an operation
/// takes keys alone. Errors: `invalid_argument`.
template <class Number>
[[nodiscard]] result<void> check_row_shapes(const block_storage_view& view, const token_rows<Number>& keys,
                                            const token_rows<Number>* values, std::size_t num_slots) noexcept {
  if (num_slots == 0) {
    return {};
  }
  auto checked = detail::check_row_shapes(keys, view.num_kv_heads, view.head_dim,
                                          "heads of keys in token_rows, which are not the storage's,",
                                          "numbers of a key in token_rows, which are not the storage's,", num_slots);
  if (checked && values != nullptr) {
    checked = detail::check_row_shapes(*values, view.num_kv_heads, view.dim_of_values(),
                                       "heads of values in token_rows, which are not the storage's,",
                                       "numbers of a value in token_rows, which are not the storage's,", num_slots);
  }
  return checked;
}

}  // namespace pagedkv
