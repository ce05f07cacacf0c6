#pragma once

#include <pagedkv/cache/groups/create_sequence.hpp>
#include <pagedkv/cache/groups/tables.hpp>
#include <pagedkv/cache/operations/look_up.hpp>
#include <pagedkv/cache/outcomes.hpp>
#include <pagedkv/core/token_run.hpp>
#include <pagedkv/detail/memory.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

// Questions about prompts and sequences of several groups that change nothing.

namespace pagedkv::detail {

/// Whether a prompt fits with a hit, of which creation takes so many tokens. Errors: those of
/// `admission_plan::check_room`, with the blocks that the hit shares in `shared`. May throw `std::bad_alloc`.
template <layered State>
[[nodiscard]] result<prompt_fit> fit_with(const State& state, const hit& found, std::int64_t num_tokens,
                                          std::vector<block_id>& shared) {
  group_tables tables;
  auto plan = admission_plan<const State>(state, tables, found, num_tokens);
  if (const auto checked = plan.check_room(); !checked) {
    shared = plan.take_shared();
    return checked.error();
  }
  return prompt_fit{static_cast<std::int64_t>(found.num_nodes) * state.granularity(), plan.num_fresh()};
}

/// The answer of `create_sequence`, without its effects: nothing is taken, counted or reported.
template <layered State>
[[nodiscard]] result<prompt_fit> would_fit(const State& state, const token_run& prompt,
                                           const sequence_options& options) noexcept {
  const auto num_tokens = std::ssize(prompt.tokens);
  if (const auto checked = check_num_sequences(state); !checked) {
    return checked.error();
  }
  if (const auto checked = check_prompt(prompt, options); !checked) {
    return checked.error();
  }
  const auto guard = state.guard_nodes();
  const auto found = longest_hit_of_prompt(state, prompt, options.salt, options.max_cached_tokens);
  if (!found) {
    return found.error();
  }
  if (const auto most = most_blocks(state, *found, num_tokens, options.first_chunk); most > state.pool.size()) {
    return state.refusal(most, state.pool.num_available());
  }
  const auto chunks = prompt_plan{num_tokens, state.granularity(), options.max_cached_tokens, options.first_chunk};
  const auto forecast = [&]() -> result<prompt_fit> {
    auto shared = std::vector<block_id>{};
    const auto fit = fit_with(state, *found, chunks.length(found->num_nodes), shared);
    if (fit) {
      return fit;
    }
    auto reason = fit.error();
    if (fits_without(state, *found, num_tokens, options)) {
      auto none = std::vector<block_id>{};
      const auto without = fit_with(state, hit{}, chunks.length(0), none);
      if (without) {
        return without;
      }
      if (const auto& chosen = nearer(reason, without.error(), state.pool.size()); &chosen != &reason) {
        shared.clear();
        reason = chosen;
      }
    }
    return state.refusal(reason.value, reason.limit, {.shared = shared});
  };
  return with_memory(forecast, error{error_code::out_of_memory, "number of tokens to look up", num_tokens});
}

/// Length of the prefix, in tokens, that a sequence of this prompt would share; 0 where memory for the search is
/// exhausted.
template <layered State>
[[nodiscard]] std::int64_t find_prefix(const State& state, const token_run& run, salt salt) noexcept {
  const auto guard = state.guard_nodes();
  const auto found = longest_hit_of_prompt(state, run, salt, std::ssize(run.tokens));
  return found ? static_cast<std::int64_t>(found->num_nodes) * state.granularity() : 0;
}

/// A function: blocks that a sequence of this prompt would share or copy. May throw `std::bad_alloc`.
template <layered State>
[[nodiscard]] auto shared_by(const State& state, const token_run& prompt, salt salt) noexcept {
  return [&, salt] {
    const auto guard = state.guard_nodes();
    const auto found = longest_hit_of_prompt(state, prompt, salt, std::ssize(prompt.tokens));
    if (!found || found->num_nodes == 0) {
      return std::vector<block_id>{};
    }
    group_tables tables;
    const auto length = static_cast<std::int64_t>(found->num_nodes) * state.granularity();
    return admission_plan<const State>(state, tables, *found, length).used();
  };
}

/// How many full blocks all sequences have in common at the start of their tables; 0 if one has released its first.
template <layered State>
[[nodiscard]] result<std::int64_t> common_prefix(const State& state, std::span<const sequence_id> ids,
                                                 std::size_t group) noexcept {
  if (const auto checked = check_group(state, group); !checked) {
    return checked.error();
  }
  return common_prefix(state, ids, [&](const group_sequence& s, std::size_t first) {
    const auto& table = s.tables[group];
    const auto num_full = table.first() != 0 ? 0 : state.place_of(group, s.num_tokens);
    return table.all().first(num_full).subspan(std::min(first, num_full));
  });
}

}  // namespace pagedkv::detail
