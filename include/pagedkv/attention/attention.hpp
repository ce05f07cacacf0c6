#pragma once

#include <pagedkv/core/ids.hpp>
#include <pagedkv/core/result.hpp>
#include <pagedkv/storage/row_shapes.hpp>
#include <pagedkv/storage/view.hpp>

#include <algorithm>
#include <cstdint>
#include <span>

namespace pagedkv {

/// Which keys a query sees, and how scores become weights. The score of a query and a key is `scale * (q . k)`, then
/// capped, then biased; weights are the softmax of the scores. Pointers are memory that the backend reads.
struct attention_options {
  float scale = 0;                      // a factor of scores; 0 means 1 / sqrt(head_dim)
  float soft_cap = 0;                   // of scores: a cap c makes one c * tanh(score / c); 0 means none
  std::int32_t window = 0;              // a query sees this many latest tokens, its own included; 0 means all
  const float* alibi_slopes = nullptr;  // [query head]: adds slope * (position of the key - position of the query)
  const float* sinks = nullptr;         // [query head]: a logit that counts in the denominator only
};

/// Errors: `invalid_argument` for a negative window or cap.
[[nodiscard]] inline result<void> validate(const attention_options& options) noexcept {
  if (options.window < 0) {
    return error{error_code::invalid_argument, "attention_options.window", options.window, 0};
  }
  if (options.soft_cap < 0) {
    auto rounded = static_cast<std::int64_t>(std::max(options.soft_cap, -1e18F));
    rounded -= static_cast<float>(rounded) > options.soft_cap ? 1 : 0;
    return error{error_code::invalid_argument, "attention_options.soft_cap, rounded down,", rounded, 0};
  }
  return {};
}

/// Times by which a planner decides whether rows share the read of a prefix, measured on an H200. The unit is the time
/// in which a wave that decodes reads a tile of a prefix again: half of that of other tiles, because the second-level
/// cache holds it.
struct attention_prefix_costs {
  std::int32_t tile = 2;     // units for all queries of a prefix: their products take longer than the read
  std::int32_t launch = 58;  // units of each share, for one more kernel and the merge of its results

  /// Partial results of a task, and their merge.
  [[nodiscard]] static constexpr std::int64_t of_merge(std::int32_t num_queries, std::int32_t group_size) noexcept {
    return 4 + 2 * std::int64_t{num_queries} * group_size;
  }
};

/// Which blocks rows read: all of their tables, those of a list for each row, or of a list for each KV head of a row.
enum class listed_blocks : std::uint8_t { none, of_rows, of_heads };

/// The kernel that reads a batch on a device.
enum class kernel_kind : std::uint8_t {
  plain,   // plain arithmetic, for all lengths and alignments
  waves,   // matrix instructions, each wave or pair of waves with tasks of its own: decoding
  groups,  // matrix instructions, the waves of a workgroup share a task: prompts, trees, values unlike keys
  latent,  // the same for latent vectors
};

/// The shape that an attention plan is made for: the same for all layers of a group.
struct attention_shape {
  std::int32_t block_size = 16;  // tokens in a block
  std::int32_t num_kv_heads = 1;
  std::int32_t group_size = 1;    // query heads of each KV head
  std::int32_t window = 0;        // as in `attention_options::window`
  kernel_kind kernel = kernel_kind::waves;  // the device says, as it does with the next three
  std::int32_t columns = 8;                 // of a task: pairs of query token and head that are processed together
  std::int32_t num_shares = 1;              // that run at once: each of a wave, of two, or of a workgroup
  std::int32_t joined_shares = 1;           // of a workgroup, which join their results of one task
  std::int32_t split_tokens = 0;  // pieces end at multiples of this, a multiple of 16; 0: wherever a share ends
  std::int32_t max_rows = 1;
  // Partial results. 0: twice the shares, and with `prefix_columns` one for each KV head of each row, which suffices
  // without `split_tokens`; rows of several queries that share a prefix may need more, or keep to themselves.
  std::int32_t max_partials = 0;
  std::int32_t max_query_tokens = 0;  // of a batch of chunks of prompts; 0: rows have few queries
  bool deals_tasks = false;           // shares may be whole tasks that do not follow each other; the device says
  std::int32_t prefix_columns = 0;    // as `columns`, for prefixes that sequences share; 0: each reads its own
  std::int32_t prefix_shares = 0;     // workgroups that read shared prefixes at once; the device says
  attention_prefix_costs prefix_costs = {};
  listed_blocks lists = listed_blocks::none;  // as in `attention_batch::lists`
  // Entries of a batch's block tables whose blocks become 16-bit numbers in the workspace before they are read, and the
  // bytes of such a block; 0: none, blocks are read as they are stored. The device says.
  std::int32_t expanded_blocks = 0;
  std::int64_t expanded_block_bytes = 0;

  /// Whether the waves of a workgroup share a task.
  [[nodiscard]] constexpr bool shares_tasks() const noexcept {
    return kernel == kernel_kind::groups || kernel == kernel_kind::latent;
  }

  /// Whether plans let sequences share the read of a prefix. Not where it would change bits or save nothing: fixed
  /// splits, windows (which leave little of a prefix, and move), prompts (whose arithmetic takes longer than the read),
  /// and lists of blocks.
  [[nodiscard]] constexpr bool may_share_prefixes() const noexcept {
    return prefix_columns >= group_size && prefix_shares > 0 && split_tokens == 0 && window <= 0 &&
           max_query_tokens == 0 && lists == listed_blocks::none;
  }

  /// Lists that a row has.
  [[nodiscard]] constexpr std::int32_t lists_of_row() const noexcept {
    return lists == listed_blocks::of_heads ? num_kv_heads : 1;
  }
};

/// How a device divides the work on a batch into shares, made by `attention_planner`, and working memory. Pointers are
/// memory that the backend reads and writes. Host backends need neither. Copy the words on the call's stream, or write
/// them on the host before the call. No kernel that may still run when the call starts writes them: the call may read
/// them before earlier kernels have ended. All else that it reads may come from these.
struct attention_plan {
  attention_shape shape;
  const std::byte* words = nullptr;  // `attention_planner::bytes`
  std::byte* workspace = nullptr;    // `attention_workspace_bytes`, aligned to 16; one call at a time uses it
  bool with_prefixes = true;         // false launches nothing for shared prefixes; only if the plan has none

  /// Whether a call launches the kernels for prefixes that sequences share.
  [[nodiscard]] constexpr bool launches_prefixes() const noexcept {
    return with_prefixes && shape.may_share_prefixes();
  }
};

/// The blocks that each row reads, for engines with sparse attention. An entry is a position in the row's block table.
/// The queries of a row see those tokens of the listed blocks that they would see without a list: none after their own,
/// and with a window none before it. Nothing else is read, so unlisted blocks may be `no_block`. A query sees its own
/// token only if the list has its block. A query that sees no token gives zeros and minus infinity, with a sink, too.
///
/// Entries may be in any order; their order changes the last bits of a result. A negative entry is skipped. The tokens
/// of a block that is listed twice count twice.
///
/// On a device, plans depend on `indptr` alone: a kernel may write `blocks` after the plan was made, and before each
/// layer.
struct attention_lists {
  listed_blocks kind = listed_blocks::none;
  std::span<const std::int32_t> indptr = {};  // [rows + 1]: where the entries of a row start; devices do not read it
  std::span<const std::int32_t> blocks = {};  // [row][KV head, with `of_heads`][entry]: lists of a row are equally long
};

/// Errors: `invalid_argument` for an `indptr` that has not one entry more than there are rows, starts below zero,
/// decreases, or ends past `blocks`, or for a row whose entries are not equally long lists of its KV heads.
/// `lists_of_row`: their number; 1 unless KV heads have their own.
[[nodiscard]] inline result<void> validate(const attention_lists& lists, std::size_t num_rows,
                                           std::int32_t lists_of_row) noexcept {
  if (lists.kind == listed_blocks::none) {
    return {};
  }
  if (lists.indptr.size() != num_rows + 1) {
    return error{error_code::invalid_argument, "size of attention_batch.lists.indptr",
                 static_cast<std::int64_t>(lists.indptr.size()), static_cast<std::int64_t>(num_rows) + 1};
  }
  auto least = std::int32_t{0};
  for (const auto entry : lists.indptr) {
    if (entry < least) {
      return error{error_code::invalid_argument, "entry of attention_batch.lists.indptr, below the one before it,",
                   entry, least};
    }
    if (const auto rest = (entry - lists.indptr.front()) % lists_of_row; rest != 0) {
      return error{error_code::invalid_argument,
                   "entry of attention_batch.lists.indptr, where a row needs equal lists of all KV heads,", entry,
                   entry - rest};
    }
    least = entry;
  }
  if (static_cast<std::size_t>(least) > lists.blocks.size()) {
    return error{error_code::invalid_argument, "last entry of attention_batch.lists.indptr, beyond its blocks,", least,
                 static_cast<std::int64_t>(lists.blocks.size())};
  }
  return {};
}

/// The query tokens of a row that has tree masks.
inline constexpr std::int32_t largest_attention_tree = 32;

/// The sequences of a batch, as `compressed_batch` holds them; every span is memory that the backend reads. The queries
/// of row i belong to the last tokens of its sequence, in order: a query sees its own token's key and all earlier ones.
///
/// With tree masks, the query tokens of each row are the tokens of a tree of drafts, each after its ancestors. A query
/// sees its own token, all tokens before the tree, and the j-th token of the tree if that comes earlier and bit j of
/// the query's mask is set. Windows and ALiBi count tokens in the order of the sequence, not along branches.
///
/// With `shares_prefixes`, rows whose blocks start with the same ids may share the read of these, where that saves
/// time. The bits of a row's result then depend on the other rows.
struct attention_batch {
  std::span<const std::int32_t> indptr;          // [rows + 1]: where the blocks of a row start in `indices`
  std::span<const block_id> indices;             // [indptr.back()]: of all rows; `no_block` where a window dropped one
  std::span<const std::int32_t> last_block_len;  // [rows]: tokens in the last block; 0 for an empty sequence
  std::span<const std::int32_t> query_indptr = {};  // [rows + 1]: where a row's queries start; empty: one query a row
  attention_plan plan = {};                         // for devices
  std::span<const std::uint32_t> tree_masks = {};   // [query token], see above; empty: no trees
  bool shares_prefixes = false;                     // for hosts; for devices, the plan says it
  attention_lists lists = {};                       // rows with lists share no prefixes

  /// Sequences in the batch.
  [[nodiscard]] std::size_t num_rows() const noexcept { return last_block_len.size(); }
};

/// Where results are written: rows like those of the queries, as long as values, and, for each query token and head,
/// the natural logarithm of the sum of the exponentials of its scores, sink included. An empty sequence gives zeros and
/// minus infinity.
template <class Number>
struct attention_output {
  token_rows<Number> rows;
  float* log_sum_exp = nullptr;  // [token][head]; null: not computed
};

/// Whether queries and results hold what attention over the storage reads and writes for `num_queries` query tokens.
///
/// Errors: `invalid_argument` for fewer tokens, or for heads of another number or length.
template <class Number, class Result>
[[nodiscard]] result<void> validate(const block_storage_view& view, const token_rows<Number>& queries,
                                    const token_rows<Result>& results, std::int64_t num_queries) noexcept {
  const auto checked =
      detail::check_row_shape(queries, num_queries, queries.num_heads, view.head_dim,
                              {"num_tokens of the queries", "num_heads of the queries", "head_dim of the queries"});
  return checked ? detail::check_row_shape(
                       results, num_queries, queries.num_heads, view.dim_of_values(),
                       {"num_tokens of the outputs", "num_heads of the outputs", "head_dim of the outputs"})
                 : checked;
}

}  // namespace pagedkv
