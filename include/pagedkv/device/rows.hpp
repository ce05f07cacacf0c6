#pragma once

#include <pagedkv/device/checks.hpp>
#include <pagedkv/device/device.hpp>
#include <pagedkv/kernels/launchers.hpp>
#include <pagedkv/policy/element/concept.hpp>
#include <pagedkv/storage/packed_parts.hpp>
#include <pagedkv/storage/row_shapes.hpp>

#include <algorithm>
#include <cstdint>

#if defined(PAGEDKV_COMPILES_KERNELS)
  #include <pagedkv/kernels/transfer/append.hpp>
  #include <pagedkv/kernels/transfer/gather.hpp>
  #include <pagedkv/kernels/transfer/rope_append.hpp>
#endif

namespace pagedkv::hip {

/// Enqueues: encodes token i of `keys` and `values`, stored as `Input`, into `slots[i]` of one layer. A negative slot
/// skips its token, but the token's rows may still be read; with equal slots, the stored token is unspecified. Slots
/// and rows are device-readable memory; only debug builds of the kernels detect slots past the storage. Latent storage
/// takes the keys alone; values with rows of their own take a second launch. Constant time for the caller; on the
/// device, linear in the rows. Errors: `invalid_argument` for a layer outside the storage, rows that do not fit it,
/// strides that kernels cannot index, and more tokens than a launch takes, 16 million; `backend_failure` when a launch
/// fails.
template <element Element, element Input>
  requires(!packs_tokens<Element>)
[[nodiscard]] result<void> append(const block_storage_view& view, std::int32_t layer, std::span<const slot> slots,
                                  const token_rows<const typename Input::storage>& keys,
                                  const token_rows<const typename Input::storage>& values,
                                  runtime::stream stream) noexcept {
  const auto latent = view.is_latent();
  if (const auto checked = check_rows(view, layer, slots, keys, latent ? nullptr : &values); !checked) {
    return checked;
  }
  const auto enqueue = [&](const block_storage_view& to, const auto& first, const auto& second) {
    return kernels::append<Element, Input>(to, layer, slots.data(), static_cast<std::int64_t>(slots.size()), first,
                                           second, stream);
  };
  if (!view.has_own_values()) {
    return to_result(enqueue(view, keys, values), "launch of append");
  }
  // The kernel writes a key and a value of equal length: here both times the same row.
  auto launched = enqueue(view.keys_alone(), keys, keys);
  if (launched == runtime::success && !latent) {
    launched = enqueue(view.values_alone(), values, values);
  }
  return to_result(launched, "launch of append");
}

/// Appends packed tokens, in two launches; values are the start of keys.
template <element Element, element Input>
  requires packs_tokens<Element>
[[nodiscard]] result<void> append(const block_storage_view& view, std::int32_t layer, std::span<const slot> slots,
                                  const token_rows<const typename Input::storage>& keys,
                                  const token_rows<const typename Input::storage>& /*values*/,
                                  runtime::stream stream) noexcept {
  constexpr auto& packed = Element::packed;
  using rotated = typename Element::rotated;
  const auto* const no_values = static_cast<decltype(&keys)>(nullptr);
  if (const auto checked = check_rows(view, layer, slots, keys, no_values); !checked || slots.empty()) {
    return checked;
  }
  const auto part = latent_part(packed, keys);
  const auto rest = rotated_part(packed, keys);
  const auto appended =
      append<typename Element::latent, Input>(latent_part(packed, view), layer, slots, part, part, stream);
  return appended ? append<rotated, Input>(rotated_part(packed, view, sizeof(typename rotated::storage)), layer, slots,
                                           rest, rest, stream)
                  : appended;
}

/// Whether the rows of queries, if there are any, hold what is rotated for so many tokens. Constant time. Errors:
/// `invalid_argument`.
template <class Storage>
[[nodiscard]] result<void> check_rotated(const block_storage_view& view, const kernels::rope_queries<Storage>& queries,
                                         std::int64_t num_tokens) noexcept {
  if (queries.num_heads == 0 || num_tokens == 0) {
    return {};
  }
  const auto checked = pagedkv::detail::check_row_shape(
      queries.from, num_tokens, queries.num_heads, view.head_dim,
      {"num_tokens of rope_queries.from", "num_heads of rope_queries.from", "head_dim of rope_queries.from"});
  return checked ? pagedkv::detail::check_row_shape(
                       queries.to, num_tokens, queries.num_heads, view.head_dim,
                       {"num_tokens of rope_queries.to", "num_heads of rope_queries.to", "head_dim of rope_queries.to"})
                 : checked;
}

/// Appends, and rotates the keys and the same number of queries to `positions[i]`; queries are rotated also where the
/// slot is negative. `positions` has as many entries as `slots`. Costs what `append` does: constant time for the
/// caller. Errors: those of `append`, and `invalid_argument` for an odd head dimension, a rotary dimension that does
/// not fit it, numbers of tokens that differ, queries of another shape, or values that are not like keys.
template <element Element, element Input, kernels::rope_pairing Pairing>
[[nodiscard]] result<void> rope_append(const block_storage_view& view, std::int32_t layer, std::span<const slot> slots,
                                       const token_rows<const typename Input::storage>& keys,
                                       const token_rows<const typename Input::storage>& values,
                                       std::span<const std::int64_t> positions, const kernels::rope_table& table,
                                       const kernels::rope_queries<typename Input::storage>& queries,
                                       runtime::stream stream) noexcept {
  static_assert(!packs_tokens<Element>,
                "rope_append rotates no part of a latent vector: rotate the part first, then call append");
  if (const auto checked = check_rows(view, layer, slots, keys, &values); !checked) {
    return checked;
  }
  if (view.has_own_values()) {
    return error{error_code::invalid_argument, "value_dim, unlike keys, of storage for rope_append,", view.value_dim,
                 view.head_dim};
  }
  if (const auto checked = check_strided(view); !checked) {
    return checked;
  }
  if (view.head_dim % 2 != 0) {
    return error{error_code::invalid_argument, "head_dim, odd where numbers rotate in pairs,", view.head_dim};
  }
  if (table.rotary_dim < 0 || table.rotary_dim > view.head_dim || table.rotary_dim % 2 != 0) {
    return error{error_code::invalid_argument, "rope_table.rotary_dim, which has to be even,", table.rotary_dim,
                 table.rotary_dim < 0 ? 0 : std::min(table.rotary_dim - table.rotary_dim % 2, view.head_dim)};
  }
  if (positions.size() != slots.size()) {
    return error{error_code::invalid_argument, "number of positions", static_cast<std::int64_t>(positions.size()),
                 static_cast<std::int64_t>(slots.size())};
  }
  const auto num_tokens = static_cast<std::int64_t>(slots.size());
  if (const auto checked = check_rotated(view, queries, num_tokens); !checked) {
    return checked;
  }
  return to_result(kernels::rope_append<Element, Input, Pairing>(view, layer, slots.data(), num_tokens, keys, values,
                                                                 positions.data(), table, queries, stream),
                   "launch of rope_append");
}

/// Enqueues: decodes `slots[i]` of one layer into token i of `keys` and `values`, stored as `Output`. A negative slot
/// leaves its token unchanged. Values with rows of their own take a second launch. Slots and rows are device-accessible
/// memory; only debug builds of the kernels detect slots past the storage. Costs what `append` does: constant time for
/// the caller. Errors: those of `append`.
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
