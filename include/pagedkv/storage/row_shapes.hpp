#pragma once

#include <pagedkv/core/formats.hpp>
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
                                            const char* dim_name, std::size_t num_slots) noexcept {
  if (rows.num_heads != num_heads) {
    return error{error_code::invalid_argument, "heads in token_rows, which are not the storage's,", rows.num_heads,
                 num_heads};
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
                                          "numbers of a key in token_rows, which are not the storage's,", num_slots);
  if (checked && values != nullptr) {
    checked = detail::check_row_shapes(*values, view.num_kv_heads, view.dim_of_values(),
                                       "numbers of a value in token_rows, which are not the storage's,", num_slots);
  }
  return checked;
}

}  // namespace pagedkv

// The two kinds of numbers of packed tokens, each as storage of its own element, so that what moves rows moves them.

namespace pagedkv {

/// The quantised numbers, each part of them as a KV head. Keys and values are the same rows.
[[nodiscard]] inline block_storage_view latent_part(const packed_token& packed,
                                                    const block_storage_view& view) noexcept {
  auto part = view;
  part.num_kv_heads = packed.num_parts();
  part.head_dim = part.value_dim = packed.part_dim;
  part.head_stride = part.value_head_stride = packed.part_dim;
  part.scale_head_stride = 1;
  return part;
}

/// The wider numbers. Keys and values are the same rows.
[[nodiscard]] inline block_storage_view rotated_part(const packed_token& packed, const block_storage_view& view,
                                                     std::int64_t number_bytes) noexcept {
  auto part = view.keys_alone();
  part.base += packed.rotated_offset;
  part.head_dim = packed.rotated_dim;
  part.token_stride = part.head_stride = packed.bytes / number_bytes;
  return part;
}

/// The parts of rows in the caller's memory.
template <class Number>
[[nodiscard]] token_rows<Number> latent_part(const packed_token& packed, const token_rows<Number>& rows) noexcept {
  return {rows.data, rows.token_stride, packed.part_dim, rows.num_tokens, packed.num_parts(), packed.part_dim};
}

template <class Number>
[[nodiscard]] token_rows<Number> rotated_part(const packed_token& packed, const token_rows<Number>& rows) noexcept {
  return {rows.data + packed.latent_dim, rows.token_stride, packed.rotated_dim, rows.num_tokens, 1, packed.rotated_dim};
}

}  // namespace pagedkv
