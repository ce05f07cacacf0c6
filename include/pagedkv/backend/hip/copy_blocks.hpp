#pragma once

#include <pagedkv/backend/hip/status.hpp>
#include <pagedkv/core/block_pairs.hpp>
#include <pagedkv/kernels/convert_blocks.hpp>
#include <pagedkv/kernels/swap_blocks.hpp>
#include <pagedkv/policy/element.hpp>

namespace pagedkv::hip {

/// Enqueues the copy of blocks in every layer, in one launch for each 256; no destination is also a source. The pairs
/// may go when the call returns. Errors: `invalid_argument` for a block outside the storage, before anything is
/// enqueued.
[[nodiscard]] inline result<void> copy_blocks(const block_storage_view& view, std::span<const block_pair> pairs,
                                              hipStream_t stream) noexcept {
  if (const auto checked = check_pairs(view, pairs); !checked) {
    return checked;
  }
  return to_result(kernels::copy_blocks(view, view, pairs, stream), "launch of copy_blocks");
}

/// Whether every source lies in `from`, every destination in `to`, and the two agree in what a block holds.
[[nodiscard]] inline result<void> check_pairs_between(const block_storage_view& from, const block_storage_view& to,
                                                      std::span<const block_pair> pairs) noexcept {
  const auto same_shape = from.num_layers == to.num_layers && from.block_size == to.block_size &&
                          from.num_kv_heads == to.num_kv_heads && from.head_dim == to.head_dim;
  if (!same_shape) {
    return error{error_code::invalid_argument, "num_layers, block_size, num_kv_heads or head_dim of two storages", 0};
  }
  for (const auto& [source, destination] : pairs) {
    if (source < 0 || source >= from.num_blocks) {
      return error{error_code::invalid_argument, "source block", source, from.num_blocks};
    }
    if (destination < 0 || destination >= to.num_blocks) {
      return error{error_code::invalid_argument, "destination block", destination, to.num_blocks};
    }
  }
  return {};
}

/// Enqueues the copy of blocks between a device's storage and one in pinned host memory, of the same element and inner
/// layout. Runs of neighbouring blocks are copied as one; where runs are short, one launch takes all blocks. Sorted
/// pairs make the longest runs. Errors: `invalid_argument` for blocks or storages that do not fit, before anything is
/// enqueued.
[[nodiscard]] inline result<void> swap_blocks(const block_storage_view& from, const block_storage_view& to,
                                              std::span<const block_pair> pairs, hipMemcpyKind kind,
                                              hipStream_t stream) noexcept {
  if (const auto checked = check_pairs_between(from, to, pairs); !checked) {
    return checked;
  }
  if (from.layer_bytes() != to.layer_bytes() || from.token_stride != to.token_stride) {
    return error{error_code::invalid_argument, "bytes of a block's layer", to.layer_bytes(), from.layer_bytes()};
  }
  return to_result(kernels::swap_blocks(from, to, pairs, kind, stream), "swap_blocks");
}

/// Enqueues the conversion of blocks to another element, in another storage. Errors: `invalid_argument` for blocks or
/// storages that do not fit, before anything is enqueued.
template <element To, element From>
[[nodiscard]] result<void> convert_blocks(const block_storage_view& from, const block_storage_view& to,
                                          std::span<const block_pair> pairs, hipStream_t stream) noexcept {
  if (const auto checked = check_pairs_between(from, to, pairs); !checked) {
    return checked;
  }
  return to_result(kernels::convert_blocks<To, From>(from, to, pairs, stream), "launch of convert_blocks");
}

}  // namespace pagedkv::hip
