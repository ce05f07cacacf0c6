#pragma once

#include <pagedkv/host/pieces.hpp>
#include <pagedkv/host/slots.hpp>
#include <pagedkv/policy/backend/concept.hpp>
#include <pagedkv/policy/element/parts/row.hpp>

namespace pagedkv::host {

/// Gathers from a piecewise layout. The slots were checked.
template <element Element, element Output>
void gather_in_pieces(const block_storage_view& view, std::int32_t layer, std::span<const slot> slots,
                      const token_rows<typename Output::storage>& keys,
                      const token_rows<typename Output::storage>& values) noexcept {
  using storage = typename Element::storage;
  const auto dim = static_cast<std::size_t>(view.head_dim);
  for_each_slot(view, slots, [&](std::int64_t i, std::int64_t block, std::int32_t offset) {
    for (auto head = std::int32_t{0}; head < view.num_kv_heads; ++head) {
      auto* const key = keys.data + i * keys.token_stride + head * keys.head_stride;
      auto* const value = values.data + i * values.token_stride + head * values.head_stride;
      auto key_scale = 1.0f;
      auto value_scale = 1.0f;
      if constexpr (Element::scaled) {
        key_scale = *view.key_scale(layer, block, offset, head);
        value_scale = *view.value_scale(layer, block, offset, head);
      }
      read_row<Output, Element>(key_in_pieces<storage>(view, layer, block, offset, head), key_scale, {key, dim});
      read_row<Output, Element>(value_in_pieces<storage>(view, layer, block, offset, head), value_scale, {value, dim});
    }
  });
}

/// Decodes `slots[i]` of one layer into token i of `keys` and `values`, stored as `Output`. A negative slot leaves its
/// token as it is. Errors: `invalid_argument` for a layer or slot outside the storage, or too few rows, before anything
/// is written.
template <element Element, element Output = float32>
[[nodiscard]] result<void> gather(const block_storage_view& view, std::int32_t layer, std::span<const slot> slots,
                                  const token_rows<typename Output::storage>& keys,
                                  const token_rows<typename Output::storage>& values) noexcept {
  static_assert(!Output::scaled, "rows carry no scales");
  using storage = typename Element::storage;
  if (const auto checked = check_slots(view, layer, slots, keys, values); !checked) {
    return checked;
  }
  if (!view.strided()) {
    gather_in_pieces<Element, Output>(view, layer, slots, keys, values);
    return {};
  }
  const auto dim = static_cast<std::size_t>(view.head_dim);
  const auto value_dim = static_cast<std::size_t>(view.dim_of_values());
  for_each_slot(view, slots, [&](std::int64_t i, std::int64_t block, std::int32_t offset) {
    for (auto head = std::int32_t{0}; head < view.num_kv_heads; ++head) {
      auto* const key = keys.data + i * keys.token_stride + head * keys.head_stride;
      auto* const value = values.data + i * values.token_stride + head * values.head_stride;
      auto key_scale = 1.0f;
      auto value_scale = 1.0f;
      if constexpr (Element::scaled) {
        key_scale = *view.key_scale(layer, block, offset, head);
        value_scale = *view.value_scale(layer, block, offset, head);
      }
      recode_row<Output, Element>({view.template key<storage>(layer, block, offset, head), dim}, key_scale, {key, dim});
      recode_row<Output, Element>({view.template value<storage>(layer, block, offset, head), value_dim}, value_scale,
                                  {value, value_dim});
    }
  });
  return {};
}

}  // namespace pagedkv::host
