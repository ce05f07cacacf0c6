#pragma once

#include <pagedkv/core/ids.hpp>
#include <pagedkv/core/result.hpp>
#include <pagedkv/core/token_run.hpp>
#include <pagedkv/sequence/sequence.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace pagedkv {

/// Result of `create_sequence`. K/V of the first `num_cached_tokens` is in the cache.
struct admission {
  sequence_id id{};
  std::int64_t num_cached_tokens = 0;
  std::int64_t num_tokens = 0;  // the cached ones and the first chunk
  std::int64_t num_blocks = 0;
  std::int64_t num_new_blocks = 0;  // the last ones of the table; the others are prefix hits
  std::int64_t num_loading_tokens = 0;  // behind the cached ones, on their way from a tier: see `tiered_cache::settle`
};

/// Result of `would_fit` for a prompt that fits.
struct prompt_fit {
  std::int64_t num_cached_tokens = 0;
  std::int64_t num_new_blocks = 0;
};

/// Result of `pin`. The pinned prefix has `num_tokens`, a multiple of the block size; 0 if nothing was cached.
struct pinning {
  pin_id id{};
  std::int64_t num_tokens = 0;
};

/// Result of `gain_of_releasing`: counts blocks more for an allocation.
struct release_gain {
  std::int64_t at_once = 0;
  std::int64_t with_steps = 0;  // when open steps that use them have retired
};

/// Result of `describe`.
struct sequence_info {
  std::int64_t num_tokens = 0;
  std::int64_t num_computed_tokens = 0;
  std::int64_t num_prompt_tokens = 0;
  std::int64_t num_cached_tokens = 0;  // those of the admission, and of loads from tiers that were settled since
  std::int64_t num_blocks = 0;  // positions in the block table, dropped ones included
  std::int64_t num_slots = 0;   // of the tokens and those reserved ahead, see `reserve_slots`
  timestamp created{};
  timestamp last_access{};  // of the last creation, append or commit
  sequence_options options;
};

/// One sequence's part in `append_batch`. A sequence may have several.
struct batch_entry {
  static constexpr auto no_commit = std::int64_t{-1};

  sequence_id id{};                              // to which it belongs
  token_run run = {};                            // to append; may be empty
  std::int64_t num_computed_tokens = no_commit;  // to commit, before the run is appended
  std::int64_t num_ahead = 0;                    // slots to reserve behind the run
};

/// An entry that failed, and why.
struct batch_failure {
  std::size_t entry = 0;
  error reason;
};

/// An entry of a block table that is new: a block that was added, or that replaces one which others can see.
struct new_block {
  std::uint32_t entry = 0;  // of the batch
  std::uint32_t index = 0;  // in the block table
  block_id block{};
  std::uint32_t group = 0;
};

/// Memory of the caller's that `append_batch` fills, each from the start; it may be pinned.
struct batch_buffers {
  std::span<slot> slots = {};              // [group that holds tokens][entry][token, and slot ahead]; `skip_slot` where
                                           // the entry failed
  std::span<batch_failure> failures = {};  // [failed entry]; as many as there are entries have room for all
  std::span<new_block> new_blocks = {};    // [new block], in the order of entries; those that do not fit are counted
};

/// How much of the buffers was filled.
struct batch_outcome {
  std::size_t num_slots = 0;   // of one group
  std::size_t num_groups = 1;  // that have slots
  std::size_t num_failures = 0;
  std::size_t num_new_blocks = 0;  // counts also those that did not fit into the buffer
};

namespace detail {

/// How many slots an entry needs: for its tokens, and ahead of them unless `num_ahead` is negative.
[[nodiscard]] inline std::size_t num_slots_of(const batch_entry& entry) noexcept {
  return entry.run.tokens.size() + static_cast<std::size_t>(std::max(entry.num_ahead, std::int64_t{0}));
}

}  // namespace detail
}  // namespace pagedkv
