#pragma once

#include <pagedkv/cache/operations/copy_on_write.hpp>
#include <pagedkv/cache/operations/parts/leases.hpp>
#include <pagedkv/cache/operations/parts/run_facts.hpp>
#include <pagedkv/detail/copy_run.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace pagedkv::detail {

[[nodiscard]] inline result<void> check_retention(const block_retention& asked, const char* subject) noexcept {
  if (asked.priority > 100) {
    return error{error_code::invalid_argument, subject, asked.priority, 100};
  }
  if (asked.duration < 0) {
    return error{error_code::invalid_argument, subject, asked.duration, 0};
  }
  return {};
}

/// Errors: `invalid_argument`.
[[nodiscard]] inline result<void> check_options(const sequence_options& options) noexcept {
  if (auto checked = check_retention({options.priority, options.retention}, "sequence_options.priority or .retention");
      !checked) {
    return checked;
  }
  const auto least = std::min({options.expected_tokens, options.expected_return, options.max_cached_tokens,
                               options.first_chunk});
  if (least < 0) {
    return error{error_code::invalid_argument,
                 "sequence_options.expected_tokens, .expected_return, .max_cached_tokens or .first_chunk", least};
  }
  for (const auto& range : options.ranges) {
    if (range.first < 0 || range.last < range.first) {
      return error{error_code::invalid_argument, "sequence_options.ranges: end of a range", range.last, range.first};
    }
    if (auto checked = check_retention(range.retention, "sequence_options.ranges: retention"); !checked) {
      return checked;
    }
  }
  return options.answer ? check_retention(*options.answer, "sequence_options.answer") : result<void>{};
}

/// Writes the tokens of blocks from the one at `first` on, as far as there are blocks.
template <class State>
void fill_blocks(State& state, const block_table& blocks, std::size_t first, std::span<const token> tokens) noexcept {
  for (auto i = first; i < blocks.size(); ++i) {
    const auto part = tokens.subspan(i * state.block_size());
    copy_run(part.first(std::min(part.size(), state.block_size())), state.index.tokens(blocks[i]));
  }
}

/// Makes an empty sequence one of this prompt: shares the longest published prefix, leaving the last token to compute,
/// and allocates blocks for the first chunk of the rest.
template <class State>
[[nodiscard]] result<void> create_sequence(State& state, sequence& s, const token_run& prompt,
                                           const sequence_options& options) noexcept {
  const auto tokens = prompt.tokens;
  const auto num_prompt = static_cast<std::int64_t>(tokens.size());
  if (auto checked = check_options(options); !checked) {
    return checked;
  }
  s.num_tokens = 0;
  s.keys.clear();
  if (auto checked = check_keys(prompt.keys, s, num_prompt); !checked) {
    return checked;
  }
  const auto num_blocks = state.blocks_for(num_prompt);
  if (num_blocks > static_cast<std::size_t>(state.config.num_blocks)) {
    return state.never_fits(num_blocks);
  }
  if (!s.blocks.try_reserve(std::max(num_blocks, state.blocks_for(options.expected_tokens))) ||
      !reserve_keys(s, prompt.keys)) {
    return error{error_code::out_of_memory, "number of tokens in the block table",
                 std::max(num_prompt, options.expected_tokens)};
  }
  const auto max_cached = std::min(std::max(num_prompt, std::int64_t{1}) - 1, options.max_cached_tokens);
  const auto length = [&](std::size_t num_hits) {  // after the first chunk
    const auto num_cached = static_cast<std::int64_t>(num_hits * state.block_size());
    return num_cached + std::min(num_prompt - num_cached, options.first_chunk);
  };
  const auto max_hits = static_cast<std::size_t>(max_cached) / state.block_size();
  const auto total = [&](std::size_t num_hits) { return state.blocks_for(length(num_hits)); };
  if (auto leased = lease_prefix(state, s.blocks, options.salt, prompt, max_hits, total); !leased) {
    return leased;
  }
  const auto num_hits = s.blocks.size();
  const auto fresh = s.blocks.extend(total(num_hits) - num_hits);
  if (auto allocated = state.allocate(fresh, {.shared = s.blocks.all().first(num_hits)}); !allocated) {
    end_leases(state, s.blocks, num_hits);
    s.blocks.clear();
    return allocated;
  }
  reference_leased(state, s.blocks, num_hits);

  s.num_tokens = length(num_hits);
  fill_blocks(state, s.blocks, num_hits, tokens.first(static_cast<std::size_t>(s.num_tokens)));
  s.keys.assign(prompt.keys.begin(), prompt.keys.end());
  s.options = options;
  s.num_prompt_tokens = num_prompt;
  s.num_branch_blocks = num_hits;
  s.num_computed_tokens = s.num_cached_tokens = static_cast<std::int64_t>(num_hits * state.block_size());
  s.num_published_blocks = num_hits;
  s.num_reserved = 0;
  s.num_hashed_blocks = 0;
  note_hashes(state, s, prompt.hashes);
  s.window_start = state.index.root(options.salt);
  s.tail = state.link_before(s, num_hits);
  s.steps = {};
  s.reuses_slots = false;
  s.created = s.last_access = state.time();
  find_room(state, s);

  count<&cache_statistics::prompts>(state.counts, 1);
  count<&cache_statistics::prompt_blocks>(state.counts, static_cast<std::int64_t>(tokens.size() / state.block_size()));
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
                       .num_tokens = s.num_prompt_tokens,
                       .num_blocks = static_cast<std::int64_t>(s.blocks.size())});
  }
}

}  // namespace pagedkv::detail
