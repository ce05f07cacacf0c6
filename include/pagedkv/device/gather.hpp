#pragma once

#include <pagedkv/device/append.hpp>
#include <pagedkv/kernels/launchers.hpp>
#include <pagedkv/storage/packed_parts.hpp>

#if defined(PAGEDKV_COMPILES_KERNELS)
  #include <pagedkv/kernels/transfer/gather.hpp>
#endif

namespace pagedkv::hip {

/// Enqueues: decodes `slots[i]` of one layer into token i of `keys` and `values`, stored as `Output`. A negative slot
/// leaves its token unchanged. Values with rows of their own take a second launch. Slots and rows are device-accessible
/// memory; only debug builds of the kernels detect slots past the storage. Errors: `invalid_argument` for a layer
/// outside the storage, and for more tokens than a launch takes, 16 million.
template <element Element, element Output>
  requires(!packs_tokens<Element>)
[[nodiscard]] result<void> gather(const block_storage_view& view, std::int32_t layer, std::span<const slot> slots,
                                  const token_rows<typename Output::storage>& keys,
                                  const token_rows<typename Output::storage>& values, runtime::stream stream) noexcept {
  if (const auto checked = check_rows(view, layer, slots, keys, &values); !checked) {
    return checked;
  }
  const auto enqueue = [&](const block_storage_view& from, const auto& first, const auto& second) {
    return kernels::gather<Element, Output>(from, layer, slots.data(), static_cast<std::int64_t>(slots.size()), first,
                                            second, stream);
  };
  if (!view.has_own_values()) {
    return to_result(enqueue(view, keys, values), "launch of gather");
  }
  // The kernel reads a key and a value of equal length: here both times the same row.
  auto launched = enqueue(view.keys_alone(), keys, keys);
  if (launched == runtime::success) {
    launched = enqueue(view.values_alone(), values, values);
  }
  return to_result(launched, "launch of gather");
}

/// Gathers packed tokens, in three launches.
template <element Element, element Output>
  requires packs_tokens<Element>
[[nodiscard]] result<void> gather(const block_storage_view& view, std::int32_t layer, std::span<const slot> slots,
                                  const token_rows<typename Output::storage>& keys,
                                  const token_rows<typename Output::storage>& values, runtime::stream stream) noexcept {
  constexpr auto& packed = Element::packed;
  using rotated = typename Element::rotated;
  if (const auto checked = check_rows(view, layer, slots, keys, &values); !checked || slots.empty()) {
    return checked;
  }
  const auto rest = rotated_part(packed, keys);
  const auto gathered = gather<typename Element::latent, Output>(
      latent_part(packed, view), layer, slots, latent_part(packed, keys), latent_part(packed, values), stream);
  return gathered ? gather<rotated, Output>(rotated_part(packed, view, sizeof(typename rotated::storage)), layer, slots,
                                            rest, rest, stream)
                  : gathered;
}

}  // namespace pagedkv::hip
