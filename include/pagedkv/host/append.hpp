#pragma once

#include <pagedkv/host/pieces.hpp>
#include <pagedkv/host/slots.hpp>
#include <pagedkv/policy/backend/concept.hpp>
#include <pagedkv/policy/element/parts/row.hpp>

namespace pagedkv::host {

/// Appends to a piecewise layout. The slots were checked.
template <element Element, element Input>
void append_in_pieces(const block_storage_view& view, std::int32_t layer, std::span<const slot> slots,
                      const token_rows<const typename Input::storage>& keys,
                      const token_rows<const typename Input::storage>& values) noexcept {
  using storage = typename Element::storage;
  const auto dim = static_cast<std::size_t>(view.head_dim);
  for_each_slot(view, slots, [&](std::int64_t i, std::int64_t block, std::int32_t offset) {
    for (auto head = std::int32_t{0}; head < view.num_kv_heads; ++head) {
      const auto* const key = keys.data + i * keys.token_stride + head * keys.head_stride;
      const auto* const value = values.data + i * values.token_stride + head * values.head_stride;
      const auto key_scale =
          write_row<Element, Input>(key_in_pieces<storage>(view, layer, block, offset, head), {key, dim});
      const auto value_scale =
          write_row<Element, Input>(value_in_pieces<storage>(view, layer, block, offset, head), {value, dim});
      if constexpr (Element::scaled) {
        *view.key_scale(layer, block, offset, head) = key_scale;
        *view.value_scale(layer, block, offset, head) = value_scale;
      }
    }
  });
}

/// Encodes token i of `keys` and `values`, stored as `Input`, into `slots[i]` of one layer. A negative slot skips its
/// token; of equal slots the last wins. Latent storage takes the keys alone. Errors: `invalid_argument` for a layer or
/// slot outside the storage, or too few rows, before anything is written.
template <element Element, element Input = float32>
[[nodiscard]] result<void> append(const block_storage_view& view, std::int32_t layer, std::span<const slot> slots,
                                  const token_rows<const typename Input::storage>& keys,
                                  const token_rows<const typename Input::storage>& values) noexcept {
  static_assert(!Input::scaled, "rows carry no scales");
  using storage = typename Element::storage;
  if (const auto checked = check_slots(view, layer, slots, keys, view.is_latent() ? keys : values);
      !checked) {
    return checked;
  }
  if (!view.strided()) {
    append_in_pieces<Element, Input>(view, layer, slots, keys, values);
    return {};
  }
  const auto dim = static_cast<std::size_t>(view.head_dim);
  const auto value_dim = static_cast<std::size_t>(view.dim_of_values());
  for_each_slot(view, slots, [&](std::int64_t i, std::int64_t block, std::int32_t offset) {
    for (auto head = std::int32_t{0}; head < view.num_kv_heads; ++head) {
      const auto* const key = keys.data + i * keys.token_stride + head * keys.head_stride;
      const auto key_scale =
          recode_row<Element, Input>({key, dim}, 1, {view.template key<storage>(layer, block, offset, head), dim});
      if constexpr (Element::scaled) {
        *view.key_scale(layer, block, offset, head) = key_scale;
      }
      if (view.is_latent()) {
        continue;
      }
      const auto* const value = values.data + i * values.token_stride + head * values.head_stride;
      const auto value_scale = recode_row<Element, Input>(
          {value, value_dim}, 1, {view.template value<storage>(layer, block, offset, head), value_dim});
      if constexpr (Element::scaled) {
        *view.value_scale(layer, block, offset, head) = value_scale;
      }
    }
  });
  return {};
}

}  // namespace pagedkv::host
