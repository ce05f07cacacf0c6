#pragma once

#include <pagedkv/cache/operations/copy_on_write.hpp>
#include <pagedkv/cache/operations/parts/leases.hpp>
#include <pagedkv/detail/copy_run.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace pagedkv::detail {

/// Makes an empty sequence one of these tokens: shares the longest published prefix, leaving the last token to compute,
/// and allocates blocks for the rest.
template <class State>
[[nodiscard]] result<void> create_sequence(State& state, sequence& s, std::span<const token> tokens,
                                 const sequence_options& options) noexcept {
  const auto num_tokens = static_cast<std::int64_t>(tokens.size());
  const auto num_blocks = state.blocks_for(num_tokens);
  const auto num_full = tokens.size() / state.block_size();
  if (options.priority > 100) {
    return error{error_code::invalid_argument, "sequence_options.priority", options.priority, 100};
  }
  if (options.retention < 0 || options.expected_tokens < 0 || options.expected_return < 0) {
    return error{error_code::invalid_argument, "sequence_options.retention, .expected_tokens or .expected_return",
                 std::min({options.retention, options.expected_tokens, options.expected_return})};
  }
  if (num_blocks > static_cast<std::size_t>(state.config.num_blocks)) {
    return state.never_fits(num_blocks);
  }
  if (!s.blocks.try_reserve(std::max(num_blocks, state.blocks_for(options.expected_tokens)))) {
    return error{error_code::out_of_memory, "number of tokens in the block table",
                 std::max(num_tokens, options.expected_tokens)};
  }
  const auto max_hits = tokens.empty() ? 0 : (tokens.size() - 1) / state.block_size();
  if (auto leased = lease_prefix(state, s.blocks, options.salt, tokens, max_hits, num_blocks); !leased) {
    return leased;
  }
  const auto num_hits = s.blocks.size();
  const auto fresh = s.blocks.extend(num_blocks - num_hits);
  if (auto allocated = state.allocate(fresh, {.shared = s.blocks.all().first(num_hits)}); !allocated) {
    end_leases(state, s.blocks, num_hits);
    s.blocks.clear();
    return allocated;
  }
  reference_leased(state, s.blocks, num_hits);

  for (auto i = num_hits; i < num_blocks; ++i) {
    const auto part = tokens.subspan(i * state.block_size());
    copy_run(part.first(std::min(part.size(), state.block_size())), state.index.tokens(s.blocks[i]));
  }
  s.num_tokens = s.num_prompt_tokens = num_tokens;
  s.num_branch_blocks = num_hits;
  s.num_computed_tokens = s.num_cached_tokens = static_cast<std::int64_t>(num_hits * state.block_size());
  s.num_published_blocks = num_hits;
  s.window_start = state.index.root(options.salt);
  s.tail = state.link_before(s, num_hits);
  s.steps = {};
  s.reuses_slots = false;
  s.options = options;
  s.created = s.last_access = state.time();
  find_room(state, s);

  count<&cache_statistics::prompts>(state.counts, 1);
  count<&cache_statistics::prompt_blocks>(state.counts, static_cast<std::int64_t>(num_full));
  count<&cache_statistics::hit_blocks>(state.counts, static_cast<std::int64_t>(num_hits));
  count<&cache_statistics::hit_tokens>(state.counts, s.num_cached_tokens);
  state.note_peak();
  return {};
}

/// Reports a sequence that `create_sequence` has made.
template <class State>
void report_admission([[maybe_unused]] State& state, [[maybe_unused]] sequence_id id,
                      [[maybe_unused]] const sequence& s) noexcept {
  using stream = typename State::events_type;
  if constexpr (reports<stream, event_kind::hit>) {
    if (s.num_cached_tokens != 0) {
      state.events.emit({.kind = event_kind::hit,
                         .block = s.tail.block,
                         .hash = s.tail.hash,
                         .tag = s.options.salt,
                         .sequence = id,
                         .num_tokens = s.num_cached_tokens,
                         .num_blocks = static_cast<std::int64_t>(s.num_published_blocks)});
    }
  }
  if constexpr (reports<stream, event_kind::admitted>) {
    state.events.emit({.kind = event_kind::admitted,
                       .tag = s.options.salt,
                       .sequence = id,
                       .num_tokens = s.num_tokens,
                       .num_blocks = static_cast<std::int64_t>(s.blocks.size())});
  }
}

}  // namespace pagedkv::detail
