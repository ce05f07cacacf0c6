#pragma once

#include <pagedkv/attention/attention.hpp>
#include <pagedkv/policy/element/bfloat16.hpp>
#include <pagedkv/policy/element/float16.hpp>
#include <pagedkv/policy/element/int8.hpp>
#include <pagedkv/policy/element/parts/float8.hpp>
#include <pagedkv/policy/element/parts/row.hpp>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>

namespace pagedkv::host::attention {

/// Rows are padded to a multiple of this many numbers in working memory: the widest vector of float32.
inline constexpr auto row_padding = 16;

/// Tokens whose keys, and then values, are processed together.
inline constexpr auto tile_tokens = 64;

/// With at least this many rows, a tile is decoded once for all of them, otherwise once for every few rows.
inline constexpr auto rows_to_decode_for = 17;

/// Rows that the matrix unit multiplies together, where there are many; a panel.
inline constexpr auto panel_rows = 16;

/// Elements whose numbers are sums of two numbers of bfloat16 at most, which panels need.
template <element Element>
inline constexpr bool has_panels_for = std::same_as<Element, bfloat16> || std::same_as<Element, float16> ||
                                       std::same_as<Element, int8> || is_float8<Element>;

/// The arguments that all parts of one operation share. Queries and outputs are accessed through function pointers, so
/// that the code is not instantiated for each of their types.
struct attention_call {
  block_storage_view view;
  std::int32_t layer = 0;
  std::int32_t group_size = 1;
  attention_batch batch;
  attention_options options;
  token_rows<const std::byte> queries;  // strides in numbers
  token_rows<std::byte> output;
  std::int32_t num_heads = 0;
  float* log_sum_exp = nullptr;
  bool has_matrix_unit = false;
  bool has_panels = false;  // the matrix unit multiplies many rows, too
  bool follows_reads = false;  // the processor prefetches behind reads of whole strips, in order
  bool has_pair_products = false;  // sums of products of pairs of 16-bit numbers
  void (*load_query)(const attention_call&, std::int64_t token, std::int32_t head, float* numbers) = nullptr;
  void (*store_output)(const attention_call&, std::int64_t token, std::int32_t head, const float* numbers) = nullptr;

  /// Whether queries are laid out a second time, for products of another kind.
  [[nodiscard]] bool copies_queries() const noexcept { return has_matrix_unit || has_pair_products; }

  /// Length of a key in working memory.
  [[nodiscard]] std::int32_t padded_dim() const noexcept {
    return (view.head_dim + row_padding - 1) / row_padding * row_padding;
  }

  /// Numbers of a value, padded as those of a key.
  [[nodiscard]] std::int32_t padded_value_dim() const noexcept {
    return (view.dim_of_values() + row_padding - 1) / row_padding * row_padding;
  }

  /// Length of a key in panels: whole rows of matrices.
  [[nodiscard]] std::int32_t panel_dim() const noexcept { return (view.head_dim + 31) / 32 * 32; }

  /// Static scales of a KV head; 1 for elements without.
  [[nodiscard]] float key_scale(std::int32_t head) const noexcept {
    const auto* const given = view.static_key_scale(layer, head);
    return given == nullptr ? 1.0f : *given;
  }
  [[nodiscard]] float value_scale(std::int32_t head) const noexcept {
    const auto* const given = view.static_value_scale(layer, head);
    return given == nullptr ? 1.0f : *given;
  }

  [[nodiscard]] std::int64_t first_query(std::size_t row) const noexcept {
    return batch.query_indptr.empty() ? static_cast<std::int64_t>(row) : batch.query_indptr[row];
  }

  [[nodiscard]] std::int32_t num_queries(std::size_t row) const noexcept {
    return static_cast<std::int32_t>(batch.query_indptr.empty() ? 1 : first_query(row + 1) - first_query(row));
  }

  [[nodiscard]] std::span<const block_id> blocks(std::size_t row) const noexcept {
    const auto begin = static_cast<std::size_t>(batch.indptr[row]);
    return batch.indices.subspan(begin, static_cast<std::size_t>(batch.indptr[row + 1]) - begin);
  }

  [[nodiscard]] std::int64_t num_tokens(std::size_t row) const noexcept {
    const auto num_blocks = static_cast<std::int64_t>(blocks(row).size());
    return num_blocks == 0 ? 0 : (num_blocks - 1) * view.block_size + batch.last_block_len[row];
  }

  /// The entries that a row reads in a KV head, of those with lists.
  [[nodiscard]] std::span<const std::int32_t> list(std::size_t row, std::int32_t head) const noexcept {
    const auto& lists = batch.lists;
    const auto begin = static_cast<std::size_t>(lists.indptr[row]);
    const auto all = lists.blocks.subspan(begin, static_cast<std::size_t>(lists.indptr[row + 1]) - begin);
    if (lists.kind == listed_blocks::of_rows) {
      return all;
    }
    const auto each = all.size() / static_cast<std::size_t>(view.num_kv_heads);
    return all.subspan(static_cast<std::size_t>(head) * each, each);
  }

  /// Position of one query of a row; negative before the first token.
  [[nodiscard]] std::int64_t position(std::size_t row, std::int32_t query) const noexcept {
    return num_tokens(row) - num_queries(row) + query;
  }

  /// The tokens of a row's tree that a query sees, one bit each.
  [[nodiscard]] std::uint32_t tree_mask(std::size_t row, std::int32_t query) const noexcept {
    return batch.tree_masks[static_cast<std::size_t>(first_query(row) + query)] | std::uint32_t{1} << query;
  }
};

template <element Input>
void load_query(const attention_call& call, std::int64_t token, std::int32_t head, float* numbers) {
  const auto* const row = reinterpret_cast<const typename Input::storage*>(call.queries.data) +
                          token * call.queries.token_stride + head * call.queries.head_stride;
  const auto dim = static_cast<std::size_t>(call.view.head_dim);
  decode_row<Input>({row, dim}, 1.0f, {numbers, dim});
}

template <element Output>
void store_output(const attention_call& call, std::int64_t token, std::int32_t head, const float* numbers) {
  auto* const row = reinterpret_cast<typename Output::storage*>(call.output.data) + token * call.output.token_stride +
                    head * call.output.head_stride;
  const auto dim = static_cast<std::size_t>(call.view.dim_of_values());
  encode_row<Output>({numbers, dim}, {row, dim});
}

/// Tokens from `begin` up to `end`.
struct token_range {
  std::int64_t begin = 0;
  std::int64_t end = 0;

  [[nodiscard]] std::int64_t size() const noexcept { return end - begin; }
};

/// The tokens that the query at a position sees; none for a negative position.
[[nodiscard]] inline token_range visible_from(std::int64_t position, std::int32_t window) noexcept {
  const auto end = std::max<std::int64_t>(0, position + 1);
  return {window == 0 ? 0 : std::max<std::int64_t>(0, end - window), end};
}

}  // namespace pagedkv::host::attention
