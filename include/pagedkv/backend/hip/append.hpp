#pragma once

#include <pagedkv/backend/hip/status.hpp>
#include <pagedkv/kernels/append.hpp>
#include <pagedkv/kernels/rope_append.hpp>
#include <pagedkv/policy/element.hpp>

#include <span>

namespace pagedkv::hip {

[[nodiscard]] inline result<void> check_layer(const block_storage_view& view, std::int32_t layer) noexcept {
  if (layer < 0 || layer >= view.num_layers) {
    return error{error_code::invalid_argument, "layer", layer, view.num_layers};
  }
  return {};
}

/// Enqueues: encodes token i of `keys` and `values`, stored as `Input`, into `slots[i]` of one layer. A negative slot
/// skips its token; of equal slots either may win. Slots and rows are memory that the device can read; slots past the
/// storage are caught by debug builds of the kernels only. Errors: `invalid_argument` for a layer outside the storage.
template <element Element, element Input>
[[nodiscard]] result<void> append(const block_storage_view& view, std::int32_t layer, std::span<const slot> slots,
                                  const token_rows<const typename Input::storage>& keys,
                                  const token_rows<const typename Input::storage>& values,
                                  hipStream_t stream) noexcept {
  if (const auto checked = check_layer(view, layer); !checked) {
    return checked;
  }
  const auto num_tokens = static_cast<std::int64_t>(slots.size());
  return to_result(kernels::append<Element, Input>(view, layer, slots.data(), num_tokens, keys, values, stream),
                   "launch of append");
}

/// The same, with the keys rotated to `positions[i]` on the way. `positions` has as many entries as `slots`.
template <element Element, element Input, kernels::rope_pairing Pairing>
[[nodiscard]] result<void> rope_append(const block_storage_view& view, std::int32_t layer, std::span<const slot> slots,
                                       const token_rows<const typename Input::storage>& keys,
                                       const token_rows<const typename Input::storage>& values,
                                       std::span<const std::int64_t> positions, const kernels::rope_table& table,
                                       hipStream_t stream) noexcept {
  if (const auto checked = check_layer(view, layer); !checked) {
    return checked;
  }
  if (table.rotary_dim < 0 || table.rotary_dim > view.head_dim || table.rotary_dim % 2 != 0) {
    return error{error_code::invalid_argument, "rope_table.rotary_dim", table.rotary_dim, view.head_dim};
  }
  if (positions.size() != slots.size()) {
    return error{error_code::invalid_argument, "positions", static_cast<std::int64_t>(positions.size()),
                 static_cast<std::int64_t>(slots.size())};
  }
  const auto num_tokens = static_cast<std::int64_t>(slots.size());
  return to_result(kernels::rope_append<Element, Input, Pairing>(view, layer, slots.data(), num_tokens, keys, values,
                                                                 positions.data(), table, stream),
                   "launch of rope_append");
}

}  // namespace pagedkv::hip
