#pragma once

#include <pagedkv/backend/concept.hpp>
#include <pagedkv/host/rows_in_pieces.hpp>
#include <pagedkv/host/slots.hpp>
#include <pagedkv/policy/element/parts/row.hpp>
#include <pagedkv/storage/packed_parts.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace pagedkv::host {

/// Appends rows: `write_key(block, offset, head, row)` and `write_value` encode one and return its scale, which lies in
/// the block unless the engine gives it. The slots were checked.
template <element Element, class Number, class WriteKey, class WriteValue>
void append_rows(const block_storage_view& view, std::int32_t layer, std::span<const slot> slots,
                 const token_rows<Number>& keys, const token_rows<Number>& values, WriteKey write_key,
                 WriteValue write_value) noexcept {
  const auto dim = static_cast<std::size_t>(view.head_dim);
  const auto value_dim = static_cast<std::size_t>(view.dim_of_values());
  for_each_slot(view, slots, [&](std::int64_t i, std::int64_t block, std::int32_t offset) {
    for (auto head = std::int32_t{0}; head < view.num_kv_heads; ++head) {
      const auto key_scale = write_key(block, offset, head, row_of(keys, i, head, dim));
      if constexpr (Element::scaled) {
        *view.key_scale(layer, block, offset, head) = key_scale;
      }
      if (view.is_latent()) {
        continue;
      }
      const auto value_scale = write_value(block, offset, head, row_of(values, i, head, value_dim));
      if constexpr (Element::scaled) {
        *view.value_scale(layer, block, offset, head) = value_scale;
      }
    }
  });
}

/// Encodes token i of `keys` and `values`, stored as `Input`, into `slots[i]` of one layer. A negative slot skips its
/// token; of equal slots the last wins. Latent storage takes the keys alone. Linear in the rows. Errors:
/// `invalid_argument` for a layer or slot outside the storage, and rows that do not fit, before anything is written.
template <element Element, element Input = float32>
  requires(!packs_tokens<Element>)
[[nodiscard]] result<void> append(const block_storage_view& view, std::int32_t layer, std::span<const slot> slots,
                                  const token_rows<const typename Input::storage>& keys,
                                  const token_rows<const typename Input::storage>& values) noexcept {
  static_assert(is_unscaled<Input>, "rows carry no scales");
  using storage = typename Element::storage;
  if (const auto checked = check_slots(view, layer, slots, keys, view.is_latent() ? nullptr : &values); !checked) {
    return checked;
  }
  using row = std::span<const typename Input::storage>;
  const auto write_to = [](storage* to, row from, float given) noexcept {
    return recode_row<Element, Input>(from, 1, {to, from.size()}, given);
  };
  const auto key_scale = [&](std::int32_t head) { return static_scale<Element>(view.static_key_scale(layer, head)); };
  const auto value_scale = [&](std::int32_t head) {
    return static_scale<Element>(view.static_value_scale(layer, head));
  };
  if (view.strided()) {
    append_rows<Element>(
        view, layer, slots, keys, values,
        [&](auto block, auto offset, auto head, row key) {
          return write_to(view.template key<storage>(layer, block, offset, head), key, key_scale(head));
        },
        [&](auto block, auto offset, auto head, row value) {
          return write_to(view.template value<storage>(layer, block, offset, head), value, value_scale(head));
        });
  } else {
    append_rows<Element>(
        view, layer, slots, keys, values,
        [&](auto block, auto offset, auto head, row key) {
          return write_row<Element, Input>(key_in_pieces<storage>(view, layer, block, offset, head), key,
                                           key_scale(head));
        },
        [&](auto block, auto offset, auto head, row value) {
          return write_row<Element, Input>(value_in_pieces<storage>(view, layer, block, offset, head), value,
                                           value_scale(head));
        });
  }
  return {};
}

/// Appends packed tokens; values are the start of keys.
template <element Element, element Input = float32>
  requires packs_tokens<Element>
[[nodiscard]] result<void> append(const block_storage_view& view, std::int32_t layer, std::span<const slot> slots,
                                  const token_rows<const typename Input::storage>& keys,
                                  const token_rows<const typename Input::storage>& /*values*/) noexcept {
  constexpr auto& packed = Element::packed;
  using rotated = typename Element::rotated;
  const auto* const no_values = static_cast<decltype(&keys)>(nullptr);
  if (const auto checked = check_slots(view, layer, slots, keys, no_values); !checked || slots.empty()) {
    return checked;
  }
  const auto part = latent_part(packed, keys);
  const auto rest = rotated_part(packed, keys);
  const auto appended = append<typename Element::latent, Input>(latent_part(packed, view), layer, slots, part, part);
  return appended ? append<rotated, Input>(rotated_part(packed, view, sizeof(typename rotated::storage)), layer, slots,
                                           rest, rest)
                  : appended;
}

/// Gathers rows: `read_key(block, offset, head, scale, row)` and `read_value` decode one. The slots were checked.
template <element Element, class Number, class ReadKey, class ReadValue>
void gather_rows(const block_storage_view& view, std::int32_t layer, std::span<const slot> slots,
                 const token_rows<Number>& keys, const token_rows<Number>& values, ReadKey read_key,
                 ReadValue read_value) noexcept {
  const auto dim = static_cast<std::size_t>(view.head_dim);
  const auto value_dim = static_cast<std::size_t>(view.dim_of_values());
  for_each_slot(view, slots, [&](std::int64_t i, std::int64_t block, std::int32_t offset) {
    for (auto head = std::int32_t{0}; head < view.num_kv_heads; ++head) {
      auto key_scale = static_scale<Element>(view.static_key_scale(layer, head));
      auto value_scale = static_scale<Element>(view.static_value_scale(layer, head));
      if constexpr (Element::scaled) {
        key_scale = *view.key_scale(layer, block, offset, head);
        value_scale = *view.value_scale(layer, block, offset, head);
      }
      read_key(block, offset, head, key_scale, row_of(keys, i, head, dim));
      read_value(block, offset, head, value_scale, row_of(values, i, head, value_dim));
    }
  });
}

/// Decodes `slots[i]` of one layer into token i of `keys` and `values`, stored as `Output`. A negative slot leaves its
/// token as it is. Linear in the rows. Errors: `invalid_argument` for a layer or slot outside the storage, and rows
/// that do not fit, before anything is written.
template <element Element, element Output = float32>
  requires(!packs_tokens<Element>)
[[nodiscard]] result<void> gather(const block_storage_view& view, std::int32_t layer, std::span<const slot> slots,
                                  const token_rows<typename Output::storage>& keys,
                                  const token_rows<typename Output::storage>& values) noexcept {
  static_assert(is_unscaled<Output>, "rows carry no scales");
  using storage = typename Element::storage;
  if (const auto checked = check_slots(view, layer, slots, keys, &values); !checked) {
    return checked;
  }
  using row = std::span<typename Output::storage>;
  const auto read_from = [](const storage* from, float scale, row to) noexcept {
    recode_row<Output, Element>({from, to.size()}, scale, to);
  };
  if (view.strided()) {
    gather_rows<Element>(
        view, layer, slots, keys, values,
        [&](auto block, auto offset, auto head, float scale, row key) {
          read_from(view.template key<storage>(layer, block, offset, head), scale, key);
        },
        [&](auto block, auto offset, auto head, float scale, row value) {
          read_from(view.template value<storage>(layer, block, offset, head), scale, value);
        });
  } else {
    gather_rows<Element>(
        view, layer, slots, keys, values,
        [&](auto block, auto offset, auto head, float scale, row key) {
          read_row<Output, Element>(key_in_pieces<storage>(view, layer, block, offset, head), scale, key);
        },
        [&](auto block, auto offset, auto head, float scale, row value) {
          read_row<Output, Element>(value_in_pieces<storage>(view, layer, block, offset, head), scale, value);
        });
  }
  return {};
}

/// Gathers packed tokens.
template <element Element, element Output = float32>
  requires packs_tokens<Element>
[[nodiscard]] result<void> gather(const block_storage_view& view, std::int32_t layer, std::span<const slot> slots,
                                  const token_rows<typename Output::storage>& keys,
                                  const token_rows<typename Output::storage>& values) noexcept {
  constexpr auto& packed = Element::packed;
  using rotated = typename Element::rotated;
  if (const auto checked = check_slots(view, layer, slots, keys, &values); !checked || slots.empty()) {
    return checked;
  }
  const auto rest = rotated_part(packed, keys);
  const auto gathered = gather<typename Element::latent, Output>(
      latent_part(packed, view), layer, slots, latent_part(packed, keys), latent_part(packed, values));
  return gathered ? gather<rotated, Output>(rotated_part(packed, view, sizeof(typename rotated::storage)), layer, slots,
                                            rest, rest)
                  : gathered;
}

}  // namespace pagedkv::host
