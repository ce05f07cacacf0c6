#pragma once

#include <pagedkv/cache/block_copier.hpp>
#include <pagedkv/cache/index_model.hpp>
#include <pagedkv/cache/operations/append.hpp>
#include <pagedkv/cache/operations/checks.hpp>
#include <pagedkv/cache/operations/leases.hpp>
#include <pagedkv/cache/operations/prompt.hpp>
#include <pagedkv/cache/operations/unlaunched.hpp>
#include <pagedkv/cache/outcomes.hpp>
#include <pagedkv/cache/record_map.hpp>
#include <pagedkv/detail/runs.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>

// How a sequence begins: with a prompt, or as a fork of another one.

namespace pagedkv::detail {

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

/// Makes an empty sequence share every block of another, but for reserved ones. Errors: `invalid_argument` while the
/// other has tokens that are not computed: their K/V would be written into shared blocks.
template <class State>
[[nodiscard]] result<void> fork(State& state, sequence& from, sequence& to) noexcept {
  if (from.num_computed_tokens != from.num_tokens) {
    return error{error_code::invalid_argument, "number of tokens to fork that are not committed",
                 from.num_tokens - from.num_computed_tokens, 0};
  }
  const auto num_blocks = state.blocks_for(from.num_tokens);
  const auto num_reserved = std::max(num_blocks, state.blocks_expected(from.options));
  to.keys.clear();
  if (!to.blocks.try_reserve(num_reserved) || !reserve_keys(to, from.keys)) {
    return error{error_code::out_of_memory, "number of blocks to fork", static_cast<std::int64_t>(num_reserved)};
  }
  const auto held = from.blocks.held().first(num_blocks - from.blocks.num_dropped());
  for (std::size_t i = 0; i < held.size(); ++i) {
    if (!state.pool.reference(held[i])) {
      for (; i > 0; --i) {
        state.pool.release(held[i - 1], release_as_before(state.time()), 0);
      }
      return error{error_code::limit_reached, "reference count", block_state::max_count + 1, block_state::max_count};
    }
  }
  to.blocks.copy(from.blocks, num_blocks);
  add_keys(to, from.keys);
  to.continue_as(from, state.time());
  to.first_step = state.pool.newest_open_step();
  to.tail = from.tail;
  to.window_start = from.window_start;
  to.num_hashed_blocks = from.num_hashed_blocks;
  to.num_branch_blocks = num_blocks;
  note_unlaunched(state, from);
  from.forget_room();
  return {};
}

/// Makes a second sequence of the first. `copy` is for states. Errors: `in_use` where the first was withdrawn: it has
/// tokens that no launch writes.
template <class State>
[[nodiscard]] result<sequence_id> fork(State& state, sequence_id id, block_copier copy) noexcept {
  return visit_sequence(state, id, [&](auto& from) -> result<sequence_id> {
    if (from.is_withdrawn) {
      return error{error_code::in_use, "id of a sequence that gives way, to fork", static_cast<std::int64_t>(id)};
    }
    const auto made =
        make_record(state.sequences, "number of sequences, at most cache_config.max_sequences,", [&](auto& to) {
          if constexpr (layered<State>) {
            return fork(state, from, to, copy);
          } else {
            return fork(state, from, to);
          }
        });
    if (!made) {
      return made.error();
    }
    const auto forked = static_cast<sequence_id>(*made);
    report<event_kind::forked>(state.events, [&] { return cache_event{.sequence = forked, .source = id}; });
    return forked;
  });
}

}  // namespace pagedkv::detail
