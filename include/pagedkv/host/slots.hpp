#pragma once

#include <pagedkv/core/ids.hpp>
#include <pagedkv/core/result.hpp>
#include <pagedkv/core/storage_formats.hpp>
#include <pagedkv/policy/element/concept.hpp>
#include <pagedkv/storage/row_shapes.hpp>
#include <pagedkv/storage/view.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace pagedkv::host {

/// Whether `layer` and every slot that is not skipped lie in the storage, and rows of its shape are there
/// for every slot. `values`: null if they are not read.
template <class Number>
[[nodiscard]] result<void> check_slots(const block_storage_view& view, std::int32_t layer, std::span<const slot> slots,
                                       const token_rows<Number>& keys, const token_rows<Number>* values) noexcept {
  if (layer < 0 || layer >= view.num_layers) {
    return pagedkv::detail::bad_index("layer", layer, view.num_layers);
  }
  const auto num_slots = std::int64_t{view.num_blocks} * view.block_size;
  for (const auto s : slots) {
    if (static_cast<std::int64_t>(s) >= num_slots) {
      return pagedkv::detail::bad_index("slot", static_cast<std::int64_t>(s), num_slots);
    }
  }
  return check_row_shapes(view, keys, values, slots.size());
}

/// Calls `visit(index, block, offset)` for every slot that is not skipped.
template <class Visitor>
void for_each_slot(const block_storage_view& view, std::span<const slot> slots, Visitor visit) noexcept {
  for (auto i = std::size_t{0}; i < slots.size(); ++i) {
    const auto position = static_cast<std::int64_t>(slots[i]);
    if (position >= 0) {
      visit(static_cast<std::int64_t>(i), position / view.block_size,
            static_cast<std::int32_t>(position % view.block_size));
    }
  }
}

/// The row of one token and head.
template <class Number>
[[nodiscard]] std::span<Number> row_of(const token_rows<Number>& rows, std::int64_t token, std::int32_t head,
                                       std::size_t dim) noexcept {
  return {rows.data + token * rows.token_stride + head * rows.head_stride, dim};
}

/// The scale that the engine gives, for which null is 1; 1 for elements without static scales.
template <element Element>
[[nodiscard]] float static_scale(const float* given) noexcept {
  return !has_static_scales<Element> || given == nullptr ? 1.0f : *given;
}

}  // namespace pagedkv::host
