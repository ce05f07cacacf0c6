#pragma once

#include <pagedkv/core/ids.hpp>
#include <pagedkv/core/storage_formats.hpp>
#include <pagedkv/detail/memory.hpp>
#include <pagedkv/device/checks.hpp>
#include <pagedkv/device/device.hpp>
#include <pagedkv/kernels/launchers.hpp>
#include <pagedkv/kernels/transfer/move_blocks.hpp>
#include <pagedkv/kernels/transfer/swap_blocks.hpp>
#include <pagedkv/policy/element/concept.hpp>
#include <pagedkv/storage/move_order.hpp>

#if defined(PAGEDKV_COMPILES_KERNELS)
  #include <pagedkv/kernels/transfer/convert_blocks.hpp>
#endif

namespace pagedkv::hip {

/// Enqueues the copy of blocks in every layer, one launch for each 400 pairs; no destination is also a source or the
/// destination of another pair. The pairs are not used after the call returns. Linear in the pairs; on the device, in
/// the bytes of their blocks. Errors: `invalid_argument` for a block outside the storage, before anything is enqueued;
/// `backend_failure` when a launch fails.
[[nodiscard]] inline result<void> copy_blocks(const block_storage_view& view, std::span<const block_pair> pairs,
                                              runtime::stream stream) noexcept {
  if (const auto checked = check_pairs(view, pairs); !checked) {
    return checked;
  }
  return to_result(kernels::copy_blocks(view, view, pairs, stream), "launch of copy_blocks");
}

/// Enqueues the copy of blocks between a device's storage and one in pinned host memory, or of a peer device, of the
/// same element and inner layout. Neighbouring blocks are copied as one run; where runs are short, a launch copies each
/// 400 pairs. Sorted pairs make the longest runs. Linear in the pairs; on the device, in the bytes of their blocks.
/// Errors: `invalid_argument` for blocks or storages that do not fit, before anything is enqueued; `backend_failure`
/// when a copy or a launch fails, after those before it have ended.
[[nodiscard]] inline result<void> swap_blocks(const block_storage_view& from, const block_storage_view& to,
                                              std::span<const block_pair> pairs, runtime::copy_kind kind,
                                              runtime::stream stream) noexcept {
  if (const auto checked = check_pairs_between(from, to, pairs); !checked) {
    return checked;
  }
  const auto same_bytes = from.layer_bytes() == to.layer_bytes() && from.value_offset == to.value_offset &&
                          from.key_scale_offset == to.key_scale_offset && from.token_stride == to.token_stride &&
                          from.head_stride == to.head_stride && from.value_token_stride == to.value_token_stride &&
                          from.key_pieces == to.key_pieces && from.value_pieces == to.value_pieces;
  if (!same_bytes) {
    return error{error_code::invalid_argument,
                 "bytes of a block's layer, unlike the source's in number or order,", to.layer_bytes(),
                 from.layer_bytes()};
  }
  const auto swapped = kernels::swap_blocks(from, to, pairs, kind, stream);
  if (swapped != runtime::success) {
    // Copies that were enqueued before would still write to blocks that the caller now takes for unused.
    static_cast<void>(runtime::synchronize_stream(stream));
  }
  return to_result(swapped, "swap_blocks");
}

/// Enqueues the conversion of blocks to another element, to another layout, or both, in another storage. Numbers of the
/// same element keep their bits, so that static scales of the two storages have to be equal then. Linear in the pairs;
/// on the device, in the numbers of their blocks. Errors: `invalid_argument` for blocks or storages that do not
/// fit, before anything is enqueued; `backend_failure` when a launch fails.
template <element To, element From>
[[nodiscard]] result<void> convert_blocks(const block_storage_view& from, const block_storage_view& to,
                                          std::span<const block_pair> pairs, runtime::stream stream) noexcept {
  static_assert(!packs_tokens<To> && !packs_tokens<From>,
                "no conversion reads or writes the tokens of `float8_latent`: gather them, then append them");
  if (const auto checked = check_pairs_between(from, to, pairs); !checked) {
    return checked;
  }
  for (const auto* view : {&from, &to}) {
    if (const auto checked = check_strides(*view); !checked) {
      return checked;
    }
  }
  if (!from.has_own_values()) {
    return to_result(kernels::convert_blocks<To, From>(from, to, pairs, stream), "launch of convert_blocks");
  }
  // The kernel converts a key and a value of equal length: here both times the same row.
  auto launched = kernels::convert_blocks<To, From>(from.keys_alone(), to.keys_alone(), pairs, stream);
  if (launched == runtime::success && !from.is_latent()) {
    launched = kernels::convert_blocks<To, From>(from.values_alone(), to.values_alone(), pairs, stream);
  }
  return to_result(launched, "launch of convert_blocks");
}

/// Enqueues the copy of blocks in every layer as if all sources were read first; chains and cycles are allowed and need
/// no second buffer. The pairs are not used after the call returns. O(n log n) in the pairs; on the device, linear in
/// the bytes of their blocks. Errors, before anything is enqueued: `invalid_argument` for a block outside the storage
/// or the destination of two moves; `out_of_memory` for the working memory, which is proportional to the moves. Then
/// `backend_failure` when a launch fails.
[[nodiscard]] inline result<void> move_blocks(const block_storage_view& view, std::span<const block_pair> pairs,
                                              runtime::stream stream) noexcept {
  if (const auto checked = check_pairs(view, pairs); !checked) {
    return checked;
  }
  const auto move = [&]() -> result<void> {
    auto order = move_order{pairs};
    if (const auto twice = order.ambiguous_destination()) {
      return error{error_code::invalid_argument, "destination block of two moves", *twice};
    }
    return to_result(kernels::move_blocks(view, order, stream), "launch of move_blocks");
  };
  const auto num_moves = static_cast<std::int64_t>(pairs.size());
  return detail::with_memory(move, error{error_code::out_of_memory, "moves", num_moves});
}

}  // namespace pagedkv::hip
