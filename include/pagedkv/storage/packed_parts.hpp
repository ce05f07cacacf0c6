#pragma once

#include <pagedkv/core/storage_formats.hpp>
#include <pagedkv/storage/view.hpp>

#include <cstdint>

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
