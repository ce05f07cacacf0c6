#pragma once

#include <pagedkv/core/ids.hpp>
#include <pagedkv/sequence/sequence.hpp>

#include <cstdint>

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

}  // namespace pagedkv
