#pragma once

#include <pagedkv/core/result.hpp>
#include <pagedkv/host/attention/call.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace pagedkv::host::attention {

[[nodiscard]] inline error wrong(const char* subject, std::int64_t value, std::int64_t limit = error::no_limit) {
  return {error_code::invalid_argument, subject, value, limit};
}

[[nodiscard]] inline result<void> check_numbers(const attention_call& call) noexcept {
  if (call.layer < 0 || call.layer >= call.view.num_layers) {
    return pagedkv::detail::bad_index("layer", call.layer, call.view.num_layers);
  }
  if (!call.view.strided()) {
    return wrong("numbers in a piece of the layout, of which attention needs a strided one: nhd or hnd,",
                 call.view.key_pieces.piece, 0);
  }
  if (call.num_heads <= 0 || call.num_heads % call.view.num_kv_heads != 0) {
    const auto num_kv_heads = std::int64_t{call.view.num_kv_heads};
    const auto group_size = std::max((call.num_heads + (num_kv_heads - 1) / 2) / num_kv_heads, std::int64_t{1});
    return wrong("num_heads of the queries, no multiple of the KV heads,", call.num_heads,
                 group_size * num_kv_heads);
  }
  return validate(call.options);
}

/// Whether `indptr` has one entry more than there are rows, and never decreases. `size_name`, `entry_name`: subjects of
/// the errors.
[[nodiscard]] inline result<void> check_row_pointer(std::span<const std::int32_t> indptr, std::size_t num_rows,
                                                    const char* size_name, const char* entry_name) noexcept {
  if (indptr.size() != num_rows + 1) {
    return wrong(size_name, static_cast<std::int64_t>(indptr.size()), static_cast<std::int64_t>(num_rows) + 1);
  }
  auto least = 0;
  for (const auto entry : indptr) {
    if (entry < least) {
      return wrong(entry_name, entry, least);
    }
    least = entry;
  }
  return {};
}

[[nodiscard]] inline result<void> check_block(const attention_call& call, block_id id) noexcept {
  const auto block = static_cast<std::int32_t>(id);
  if (block < 0 || block >= call.view.num_blocks) {
    return pagedkv::detail::bad_index("block in attention_batch.indices", block, call.view.num_blocks);
  }
  return {};
}

/// Whether every entry of the row's lists is in its table, and every block that a query of the row sees in the storage.
[[nodiscard]] inline result<void> check_listed(const attention_call& call, std::size_t row) noexcept {
  const auto blocks = call.blocks(row);
  const auto seen = visible_from(call.position(row, 0), call.options.window).begin;
  const auto begin = static_cast<std::size_t>(call.batch.lists.indptr[row]);
  const auto end = static_cast<std::size_t>(call.batch.lists.indptr[row + 1]);
  for (const auto entry : call.batch.lists.blocks.subspan(begin, end - begin)) {
    if (entry >= static_cast<std::int64_t>(blocks.size())) {
      return wrong("entry of attention_batch.lists.blocks, beyond its row's blocks,", entry,
                   static_cast<std::int64_t>(blocks.size()) - 1);
    }
    if (entry >= seen / call.view.block_size) {
      if (const auto checked = check_block(call, blocks[static_cast<std::size_t>(entry)]); !checked) {
        return checked;
      }
    }
  }
  return {};
}

/// Whether every block that a query of the row sees is in the storage.
[[nodiscard]] inline result<void> check_row(const attention_call& call, std::size_t row) noexcept {
  const auto blocks = call.blocks(row);
  const auto last_block_len = call.batch.last_block_len[row];
  if (last_block_len < (blocks.empty() ? 0 : 1) || last_block_len > (blocks.empty() ? 0 : call.view.block_size)) {
    const auto most = blocks.empty() ? 0 : call.view.block_size;
    return wrong("attention_batch.last_block_len", last_block_len, last_block_len > most ? most : std::min(most, 1));
  }
  if (!call.batch.tree_masks.empty() && call.num_queries(row) > largest_attention_tree) {
    return wrong("queries of a row with tree masks", call.num_queries(row), largest_attention_tree);
  }
  if (call.num_queries(row) == 0) {
    return {};
  }
  if (call.batch.lists.kind != listed_blocks::none) {
    return check_listed(call, row);
  }
  const auto seen = visible_from(call.position(row, 0), call.options.window).begin;
  for (auto i = static_cast<std::size_t>(seen / call.view.block_size); i < blocks.size(); ++i) {
    if (const auto checked = check_block(call, blocks[i]); !checked) {
      return checked;
    }
  }
  return {};
}

[[nodiscard]] inline result<void> check(const attention_call& call) noexcept {
  if (const auto checked = check_numbers(call); !checked) {
    return checked;
  }
  const auto& batch = call.batch;
  const auto num_rows = batch.num_rows();
  if (num_rows == 0) {
    return {};
  }
  if (const auto checked = check_row_pointer(batch.indptr, num_rows, "size of attention_batch.indptr",
                                             "entry of attention_batch.indptr, below the one before it,");
      !checked) {
    return checked;
  }
  if (static_cast<std::size_t>(batch.indptr.back()) > batch.indices.size()) {
    return wrong("last entry of attention_batch.indptr, beyond its indices,", batch.indptr.back(),
                 static_cast<std::int64_t>(batch.indices.size()));
  }
  if (!batch.query_indptr.empty()) {
    if (const auto checked = check_row_pointer(batch.query_indptr, num_rows, "size of attention_batch.query_indptr",
                                               "entry of attention_batch.query_indptr, below the one before it,");
        !checked) {
      return checked;
    }
  }
  const auto num_queries = call.first_query(num_rows);
  if (const auto checked = validate(call.view, call.queries, call.output, num_queries); !checked) {
    return checked;
  }
  if (!batch.tree_masks.empty() && static_cast<std::int64_t>(batch.tree_masks.size()) < num_queries) {
    return wrong("size of attention_batch.tree_masks", static_cast<std::int64_t>(batch.tree_masks.size()), num_queries);
  }
  const auto of_heads = batch.lists.kind == listed_blocks::of_heads;
  if (const auto checked = validate(batch.lists, num_rows, of_heads ? call.view.num_kv_heads : 1); !checked) {
    return checked;
  }
  for (auto row = std::size_t{0}; row < num_rows; ++row) {
    if (const auto checked = check_row(call, row); !checked) {
      return checked;
    }
  }
  return {};
}

}  // namespace pagedkv::host::attention
