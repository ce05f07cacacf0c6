#pragma once

#include <pagedkv/core/host_device.hpp>
#include <pagedkv/core/storage_formats.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

namespace pagedkv {

/// The address arithmetic of block storage, which kernels take by value; owns nothing. Its functions take constant
/// time.
///
/// One layer of one block is contiguous: K, then V, then (if the element has scales) K scales, then V scales. A key is
/// `head_dim` neighbouring elements. A value is as many, with the strides of keys, unless `value_dim` is set: then
/// values have their own length and strides. In latent storage a value is the first `value_dim` elements of its key,
/// whose scale it shares. In a piecewise layout neither is a row: strides of elements are 0, and `key_pieces` and
/// `value_pieces` say where each number lies. All offsets are 64-bit.
///
/// Static scales, which the engine gives, lie outside the blocks, in memory of the engine.
struct block_storage_view {
  std::byte* base = nullptr;
  std::int64_t block_stride = 0;        // bytes from a block to the next, within one layer
  std::int64_t layer_stride = 0;        // bytes from a layer to the next, within one block
  std::int64_t value_offset = 0;        // bytes from the start of a block's layer to V; 0 in latent storage
  std::int64_t key_scale_offset = 0;    // bytes to the K scales; 0 without scales
  std::int64_t value_scale_offset = 0;  // bytes to the V scales; 0 without scales
  std::int64_t token_stride = 0;        // elements from a token to the next
  std::int64_t head_stride = 0;         // elements from a KV head to the next
  std::int64_t scale_token_stride = 0;  // scales from a token to the next
  std::int64_t scale_head_stride = 0;   // scales from a KV head to the next
  std::int32_t num_blocks = 0;
  std::int32_t num_layers = 0;
  std::int32_t block_size = 0;  // tokens
  std::int32_t num_kv_heads = 0;
  std::int32_t head_dim = 0;
  std::int32_t value_dim = 0;            // 0: values are like keys, and the next two are not read
  std::int64_t value_token_stride = 0;   // elements from a token's value to the next token's
  std::int64_t value_head_stride = 0;    // elements from a KV head's value to the next head's

  piece_order key_pieces;                // of a piecewise layout; empty in a strided one
  piece_order value_pieces;

  const float* static_scales = nullptr;  // [layer][KV head], of keys; null: all are 1, or there are none
  std::int32_t static_layer_stride = 0;  // scales from a layer to the next
  std::int32_t static_head_stride = 0;   // scales from a KV head to the next; 0: heads share one
  std::int32_t static_value_offset = 0;  // scales from that of keys to that of values; 0 in latent storage

  /// Whether keys and values are rows.
  [[nodiscard]] PAGEDKV_HOST_DEVICE bool strided() const noexcept { return key_pieces.piece == 0; }
  [[nodiscard]] PAGEDKV_HOST_DEVICE bool has_own_values() const noexcept { return value_dim != 0; }
  [[nodiscard]] PAGEDKV_HOST_DEVICE bool is_latent() const noexcept { return value_offset == 0 && value_dim != 0; }

  /// Elements of a value.
  [[nodiscard]] PAGEDKV_HOST_DEVICE std::int32_t dim_of_values() const noexcept {
    return value_dim != 0 ? value_dim : head_dim;
  }

  /// Storage with one row per token and head, which is its key and its value: the keys of this storage.
  [[nodiscard]] block_storage_view keys_alone() const noexcept {
    auto alone = *this;
    alone.value_offset = 0;
    alone.value_scale_offset = key_scale_offset;
    alone.value_dim = 0;
    alone.static_value_offset = 0;
    return alone;
  }

  /// The storage's values alone.
  [[nodiscard]] block_storage_view values_alone() const noexcept {
    auto alone = keys_alone();
    alone.base = base == nullptr ? nullptr : base + value_offset;  // a view without memory is for arithmetic only
    alone.key_scale_offset = alone.value_scale_offset = value_scale_offset - value_offset;
    alone.head_dim = dim_of_values();
    alone.token_stride = has_own_values() ? value_token_stride : token_stride;
    alone.head_stride = has_own_values() ? value_head_stride : head_stride;
    if (static_scales != nullptr) {
      alone.static_scales += static_value_offset;
    }
    return alone;
  }

  /// Bytes of one layer of one block, padding included: the smaller of the two strides.
  [[nodiscard]] PAGEDKV_HOST_DEVICE std::int64_t layer_bytes() const noexcept {
    return block_stride < layer_stride ? block_stride : layer_stride;
  }

  /// First byte of one layer of one block.
  [[nodiscard]] PAGEDKV_HOST_DEVICE std::byte* block(std::int32_t layer, std::int64_t block) const noexcept {
    return base + layer * layer_stride + block * block_stride;
  }

  /// First element of the key of one token and head, in a strided layout. `Storage` is the element's storage type.
  template <class Storage>
  [[nodiscard]] PAGEDKV_HOST_DEVICE Storage* key(std::int32_t layer, std::int64_t block, std::int32_t offset,
                                                 std::int32_t head) const noexcept {
    return row<Storage>(layer, block, 0, offset * token_stride + head * head_stride);
  }

  /// First element of the value of one token and head.
  template <class Storage>
  [[nodiscard]] PAGEDKV_HOST_DEVICE Storage* value(std::int32_t layer, std::int64_t block, std::int32_t offset,
                                                   std::int32_t head) const noexcept {
    return row<Storage>(layer, block, value_offset,
                        value_dim != 0 ? offset * value_token_stride + head * value_head_stride
                                       : offset * token_stride + head * head_stride);
  }

  /// Scale of the key of one token and head, for an element with scales in its blocks.
  [[nodiscard]] PAGEDKV_HOST_DEVICE float* key_scale(std::int32_t layer, std::int64_t block, std::int32_t offset,
                                                     std::int32_t head) const noexcept {
    return row<float>(layer, block, key_scale_offset, offset * scale_token_stride + head * scale_head_stride);
  }

  /// Scale of the value of one token and head.
  [[nodiscard]] PAGEDKV_HOST_DEVICE float* value_scale(std::int32_t layer, std::int64_t block, std::int32_t offset,
                                                       std::int32_t head) const noexcept {
    return row<float>(layer, block, value_scale_offset, offset * scale_token_stride + head * scale_head_stride);
  }

  /// The static scale of a KV head's keys in a layer; null if it is 1.
  [[nodiscard]] const float* static_key_scale(std::int32_t layer, std::int32_t head) const noexcept {
    return static_scales == nullptr ? nullptr : static_scales + static_key_index(layer, head);
  }
  [[nodiscard]] const float* static_value_scale(std::int32_t layer, std::int32_t head) const noexcept {
    return static_scales == nullptr ? nullptr : static_scales + static_value_index(layer, head);
  }

  /// Where they are, if there are any.
  [[nodiscard]] PAGEDKV_HOST_DEVICE std::int32_t static_key_index(std::int32_t layer,
                                                                  std::int32_t head) const noexcept {
    return layer * static_layer_stride + head * static_head_stride;
  }
  [[nodiscard]] PAGEDKV_HOST_DEVICE std::int32_t static_value_index(std::int32_t layer,
                                                                    std::int32_t head) const noexcept {
    return static_key_index(layer, head) + static_value_offset;
  }

 private:
  template <class T>
  [[nodiscard]] PAGEDKV_HOST_DEVICE T* row(std::int32_t layer, std::int64_t block_index, std::int64_t bytes,
                                           std::int64_t elements) const noexcept {
    return reinterpret_cast<T*>(block(layer, block_index) + bytes) + elements;
  }
};

static_assert(std::is_trivially_copyable_v<block_storage_view>, "kernels take the view by value");

/// Keys or values of consecutive tokens in the caller's memory: `[token][head][dim]`, with strides in numbers; the
/// numbers of one head are contiguous. `Number` is the storage type of an unscaled element. A cache reads and writes
/// rows of its own heads and dimension only, for at most `num_tokens` tokens.
template <class Number>
struct token_rows {
  Number* data = nullptr;
  std::int64_t token_stride = 0;
  std::int64_t head_stride = 0;
  std::int64_t num_tokens = 0;
  std::int32_t num_heads = 0;
  std::int32_t head_dim = 0;

  template <class Constant>
    requires(!std::is_const_v<Number> && std::is_same_v<Constant, const Number>)
  constexpr operator token_rows<Constant>() const noexcept {
    return {data, token_stride, head_stride, num_tokens, num_heads, head_dim};
  }
};

/// The rows in an array `[token][head][dim]` without gaps, as many as it holds. They refer to it: a temporary is a span
/// of numbers that stay.
template <class Numbers>
  requires(std::is_lvalue_reference_v<Numbers> || std::ranges::enable_borrowed_range<std::remove_cv_t<Numbers>>)
[[nodiscard]] auto contiguous_rows(Numbers&& numbers, std::int32_t num_kv_heads, std::int32_t head_dim) noexcept {
  const auto all = std::span(numbers);
  const auto token_stride = std::int64_t{num_kv_heads} * head_dim;
  return token_rows<typename decltype(all)::element_type>{
      all.data(), token_stride, head_dim, static_cast<std::int64_t>(all.size()) / token_stride, num_kv_heads, head_dim};
}

}  // namespace pagedkv
