#pragma once

#include "model_text.hpp"

#include <pagedkv/core/ids.hpp>
#include <pagedkv/sequence/sequence.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

namespace pagedkv::test {

/// The block table of one group by place, also of blocks that were released: `no_block`.
struct model_table {
  std::size_t num_sinks = 0;
  std::size_t first = 0;  // the first place behind the sinks that is held; 0 if none was released
  std::vector<block_id> blocks;

  [[nodiscard]] std::size_t num_skipped() const noexcept { return first > num_sinks ? first - num_sinks : 0; }
  [[nodiscard]] bool holds(block_id block) const {
    return block != no_block && std::ranges::find(blocks, block) != blocks.end();
  }
};

/// A sequence as the model knows it: what a caller was told, and nothing else.
struct model_sequence {
  static constexpr auto all_tokens = std::numeric_limits<std::int64_t>::max();

  sequence_id id{};
  sequence_options options;
  named_text text;
  std::vector<token> rest;  // of the prompt: still to be appended
  std::int64_t num_computed = 0;
  std::int64_t num_written = 0;
  std::int64_t num_prompt = 0;
  std::int64_t num_cached = 0;
  std::int64_t num_shared = 0;          // of the cached ones: in blocks that were published when it began
  std::int64_t num_reserved = 0;        // tokens that slots were reserved for, 0 for none
  std::int64_t num_valid = all_tokens;  // at the start, that no invalidation has hidden
  std::optional<std::int64_t> branch;   // where its prompt left the prefix cache; unknown behind an eviction
  std::optional<std::int64_t> newest;   // the length of its second state
  bool is_withdrawn = false;            // nothing that continues its published tokens is published
  bool reuses_slots = false;            // the rest of its last block has held other tokens
  std::vector<model_table> tables;      // of each group
  timestamp created{};
  timestamp last_access{};

  [[nodiscard]] std::int64_t num_slots() const noexcept { return std::max(text.size(), num_reserved); }
  [[nodiscard]] bool holds(block_id block) const {
    return std::ranges::any_of(tables, [&](const model_table& table) { return table.holds(block); });
  }
};

struct model_pin {
  pin_id id{};
  std::int64_t num_tokens = 0;
  named_text longer;  // with one token more, which a look-up leaves to compute
  std::int64_t num_valid = model_sequence::all_tokens;
};

}  // namespace pagedkv::test
