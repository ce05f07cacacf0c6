#pragma once

#include <pagedkv/cache/operations/copy_on_write.hpp>
#include <pagedkv/cache/operations/parts/leases.hpp>
#include <pagedkv/cache/operations/parts/prompt_plan.hpp>
#include <pagedkv/cache/operations/parts/run_facts.hpp>
#include <pagedkv/cache/outcomes.hpp>
#include <pagedkv/cache/record_access.hpp>
#include <pagedkv/detail/token_runs.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>

namespace pagedkv::detail {

[[nodiscard]] inline bool is_valid(const block_retention& asked) noexcept {
  return asked.priority <= 100 && asked.duration >= 0;
}

/// Whether every option but the ranges has a value that means something.
[[nodiscard]] inline bool is_valid(const sequence_options& options) noexcept {
  return is_valid(block_retention{options.priority, options.retention}) && options.expected_return >= 0 &&
         options.expected_tokens >= 0 && options.max_cached_tokens >= 0 && options.first_chunk >= 0 &&
         options.num_prompt_tokens >= 0;
}

[[nodiscard]] inline bool has_valid_ranges(const sequence_options& options) noexcept {
  return is_valid(options.answer.value_or(block_retention{})) &&
         std::all_of(options.ranges.begin(), options.ranges.end(), [](const range_retention& range) {
           return 0 <= range.first && range.first <= range.last && is_valid(range.retention);
         });
}

/// Out of line, since what is asked for is nearly always right.
[[nodiscard]] [[gnu::cold]] [[gnu::noinline]] inline error invalid_option(const sequence_options& options) noexcept {
  struct field {
    const char* subject;
    std::int64_t value;
    std::int64_t least;
    std::int64_t most;
  };
  constexpr auto any = sequence_options::no_limit;
  auto wrong = error{error_code::invalid_argument};
  const auto finds_wrong = [&](std::initializer_list<field> fields) {
    for (const auto& [subject, value, least, most] : fields) {
      if (value < least || value > most) {
        wrong = {error_code::invalid_argument, subject, value, value < least ? least : most};
        return true;
      }
    }
    return false;
  };
  if (finds_wrong({{"sequence_options.priority", options.priority, 0, 100},
                   {"sequence_options.retention", options.retention, 0, any},
                   {"sequence_options.expected_return", options.expected_return, 0, any},
                   {"sequence_options.expected_tokens", options.expected_tokens, 0, any},
                   {"sequence_options.max_cached_tokens", options.max_cached_tokens, 0, any},
                   {"sequence_options.first_chunk", options.first_chunk, 0, any},
                   {"sequence_options.num_prompt_tokens", options.num_prompt_tokens, 0, any}})) {
    return wrong;
  }
  for (const auto& [first, last, given] : options.ranges) {
    if (finds_wrong({{"range_retention.first", first, 0, any},
                     {"range_retention.last, before the first,", last, first, any},
                     {"range_retention.retention.priority", given.priority, 0, 100},
                     {"range_retention.retention.duration", given.duration, 0, any}})) {
      return wrong;
    }
  }
  const auto given = options.answer.value_or(block_retention{});
  finds_wrong({{"sequence_options.answer->priority", given.priority, 0, 100},
               {"sequence_options.answer->duration", given.duration, 0, any}});
  return wrong;
}

/// Writes the tokens of blocks from the one at `first` on, as far as there are blocks.
template <class State>
void fill_blocks(State& state, const block_table& blocks, std::size_t first, std::span<const token> tokens) noexcept {
  for (auto i = first; i < blocks.size(); ++i) {
    const auto part = tokens.subspan(i * state.block_size());
    copy_tokens(part.first(std::min(part.size(), state.block_size())), state.index.tokens(blocks[i]));
  }
}

/// Makes an empty sequence one of this prompt: shares the longest published prefix, leaving the last token to compute,
/// and allocates blocks for the first chunk of the rest.
template <class State>
[[nodiscard]] result<void> begin_sequence(State& state, sequence& s, const token_run& prompt,
                                          const sequence_options& options) noexcept {
  const auto tokens = prompt.tokens;
  const auto num_prompt = static_cast<std::int64_t>(tokens.size());
  const bool ranged = has_ranges(options);
  if (!is_valid(options) || (ranged && !has_valid_ranges(options))) {
    return invalid_option(options);
  }
  s.num_tokens = 0;
  s.keys.clear();
  if (!prompt.keys.empty()) {
    if (auto checked = check_keys_within(prompt.keys, 0, num_prompt); !checked) {
      return checked;
    }
  }
  const auto num_blocks = state.blocks_for(num_prompt);
  if (num_blocks > static_cast<std::size_t>(state.pool.size())) {
    return state.never_fits(num_blocks);
  }
  if (!s.blocks.try_reserve(std::max(num_blocks, state.blocks_expected(options))) ||
      !reserve_keys(s, prompt.keys)) {
    return error{error_code::out_of_memory, "number of tokens in the block table",
                 std::max(num_prompt, options.expected_tokens)};
  }
  const auto plan = prompt_plan{num_prompt, state.config.block_size, options.max_cached_tokens, options.first_chunk};
  const auto root = state.index.root(options.salt);
  const auto total = [&](std::size_t num_hits) {
    const auto num_tokens = plan.length(num_hits);
    return num_tokens == num_prompt ? num_blocks : state.blocks_for(num_tokens);
  };
  if (auto leased = lease_prefix(state, s.blocks, root, prompt, plan.max_hits(), total); !leased) {
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

  s.num_tokens = plan.length(num_hits);
  fill_blocks(state, s.blocks, num_hits, tokens.first(static_cast<std::size_t>(s.num_tokens)));
  add_keys(s, prompt.keys);
  s.options = options;
  s.has_ranges = ranged;
  s.num_prompt_tokens = std::min(num_prompt, options.num_prompt_tokens);
  s.num_branch_blocks = num_hits;
  s.num_computed_tokens = s.num_cached_tokens = static_cast<std::int64_t>(num_hits * state.block_size());
  s.num_published_blocks = num_hits;
  s.num_reserved = 0;
  s.num_hashed_blocks = 0;
  note_hashes(state, s, prompt.hashes);
  s.window_start = root;
  s.tail = state.link_before(s, num_hits);
  s.steps = {};
  s.first_step = state.pool.newest_open_step();
  s.unlaunched_step = {};
  s.is_withdrawn = false;
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

/// Reports a sequence that was created.
template <class State>
void report_admission(State& state, sequence_id id, const sequence& s, std::span<const token> prompt) noexcept {
  if (s.num_cached_tokens != 0) {
    report<event_kind::hit>(state.events, [&] {
      return cache_event{.block = s.tail.node,
                         .hash = s.tail.hash,
                         .salt = s.options.salt,
                         .sequence = id,
                         .num_tokens = s.num_cached_tokens,
                         .num_blocks = static_cast<std::int64_t>(s.num_published_blocks)};
    });
  }
  report<event_kind::admitted>(state.events, [&] {
    return cache_event{.salt = s.options.salt,
                       .sequence = id,
                       .num_tokens = static_cast<std::int64_t>(prompt.size()),
                       .num_blocks = static_cast<std::int64_t>(s.blocks.size())};
  });
}

/// Starts a sequence with a prompt. It shares whole blocks, and copies none.
template <class State>
[[nodiscard]] result<admission> create_sequence(State& state, const token_run& prompt, const sequence_options& options,
                                                block_copier) noexcept {
  auto* admitted = static_cast<const sequence*>(nullptr);
  const auto made =
      make_record(state.sequences, "number of sequences, at most cache_config.max_sequences,", [&](sequence& s) {
        admitted = &s;
        return begin_sequence(state, s, prompt, options);
      });
  if (!made) {
    return made.error();
  }
  // No other thread knows the id yet.
  const auto id = static_cast<sequence_id>(*made);
  const auto& s = *admitted;
  report_admission(state, id, s, prompt.tokens);
  const auto num_blocks = static_cast<std::int64_t>(s.blocks.size());
  const auto num_new_blocks = num_blocks - static_cast<std::int64_t>(s.num_branch_blocks);
  return admission{id, s.num_cached_tokens, s.num_tokens, num_blocks, num_new_blocks};
}

}  // namespace pagedkv::detail
