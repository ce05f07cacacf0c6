#pragma once

#include <pagedkv/core/ids.hpp>
#include <pagedkv/core/result.hpp>
#include <pagedkv/kernels/launchers.hpp>
#include <pagedkv/storage/move_order.hpp>
#include <pagedkv/storage/row_shapes.hpp>

#include <algorithm>
#include <limits>
#include <span>
#include <utility>

// Checks that precede every enqueued operation.

namespace pagedkv::hip {

/// Kernels index the numbers of one layer of one block with 31 bits.
[[nodiscard]] inline result<void> check_strides(const block_storage_view& view) noexcept {
  constexpr auto most = std::int64_t{std::numeric_limits<std::int32_t>::max()};
  for (const auto& [stride, steps] :
       {std::pair{view.token_stride, view.block_size}, std::pair{view.head_stride, view.num_kv_heads},
        std::pair{view.scale_token_stride, view.block_size}, std::pair{view.scale_head_stride, view.num_kv_heads},
        std::pair{view.value_token_stride, view.block_size}, std::pair{view.value_head_stride, view.num_kv_heads},
        std::pair{view.key_pieces.token_stride, view.block_size},
        std::pair{view.key_pieces.head_stride, view.num_kv_heads},
        std::pair{view.key_pieces.dim_stride, view.head_dim},
        std::pair{view.value_pieces.token_stride, view.block_size},
        std::pair{view.value_pieces.head_stride, view.num_kv_heads},
        std::pair{view.value_pieces.dim_stride, view.head_dim}}) {
    const auto limit = most / 2 / std::max(steps, 1);
    if (stride > limit || stride < -limit) {
      return error{error_code::invalid_argument, "stride within a block", stride, limit};
    }
  }
  return {};
}

/// Checks storage for kernels that read and write rows only.
[[nodiscard]] inline result<void> check_strided(const block_storage_view& view) noexcept {
  if (!view.strided()) {
    return error{error_code::invalid_argument,
                 "numbers in a piece of the layout, of which this kernel needs a strided one: nhd or hnd,",
                 view.key_pieces.piece, 0};
  }
  return {};
}

/// Checks that all operations over rows share. `values`: null if they are not read.
template <class Number>
[[nodiscard]] result<void> check_rows(const block_storage_view& view, std::int32_t layer, std::span<const slot> slots,
                                      const token_rows<Number>& keys, const token_rows<Number>* values) noexcept {
  if (layer < 0 || layer >= view.num_layers) {
    return pagedkv::detail::bad_index("layer", layer, view.num_layers);
  }
  if (const auto checked = check_strides(view); !checked) {
    return checked;
  }
  if (slots.size() > static_cast<std::size_t>(kernels::max_tokens_per_launch)) {
    return error{error_code::invalid_argument, "number of tokens in one call", static_cast<std::int64_t>(slots.size()),
                 kernels::max_tokens_per_launch};
  }
  return check_row_shapes(view, keys, values, slots.size());
}

/// Checks that every source lies in `from`, every destination in `to`, and both have blocks of equal contents.
[[nodiscard]] inline result<void> check_pairs_between(const block_storage_view& from, const block_storage_view& to,
                                                      std::span<const block_pair> pairs) noexcept {
  struct field {
    const char* subject;
    std::int32_t source;
    std::int32_t destination;
  };
  for (const auto& [subject, source, destination] :
       {field{"num_layers of the destination, which is not the source's,", from.num_layers, to.num_layers},
        field{"block_size of the destination, which is not the source's,", from.block_size, to.block_size},
        field{"num_kv_heads of the destination, which is not the source's,", from.num_kv_heads, to.num_kv_heads},
        field{"head_dim of the destination, which is not the source's,", from.head_dim, to.head_dim},
        field{"value_dim of the destination, which is not the source's,", from.value_dim, to.value_dim},
        field{"latent vectors in the destination, unlike the source,", from.is_latent(), to.is_latent()}}) {
    if (source != destination) {
      return error{error_code::invalid_argument, subject, destination, source};
    }
  }
  return check_pairs(from, to, pairs);
}

}  // namespace pagedkv::hip
