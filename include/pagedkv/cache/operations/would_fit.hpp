#pragma once

#include <pagedkv/cache/operations/create_sequence.hpp>
#include <pagedkv/cache/operations/find_prefix.hpp>
#include <pagedkv/cache/outcomes.hpp>
#include <pagedkv/detail/with_memory.hpp>

#include <cstddef>
#include <cstdint>
#include <iterator>

namespace pagedkv::detail {

/// The answer of `create_sequence`, without its effects: nothing is taken, counted or reported.
template <class State>
[[nodiscard]] result<prompt_fit> would_fit(const State& state, const token_run& prompt,
                                           const sequence_options& options) noexcept {
  const auto num_tokens = std::ssize(prompt.tokens);
  if (const auto capacity = state.sequences.capacity(); state.sequences.size() >= capacity) {
    return error{error_code::limit_reached, "number of sequences, at most cache_config.max_sequences,",
                 std::int64_t{capacity} + 1, capacity};
  }
  if (!is_valid(options) || (has_ranges(options) && !has_valid_ranges(options))) {
    return invalid_option(options);
  }
  if (const auto checked = check_keys_within(prompt.keys, 0, num_tokens); !checked) {
    return checked.error();
  }
  const auto num_blocks = state.blocks_for(num_tokens);
  if (num_blocks > static_cast<std::size_t>(state.pool.size())) {
    return state.exceeds_pool(num_blocks);
  }
  const auto plan =
      prompt_plan{num_tokens, state.config.block_size, options.max_cached_tokens, options.first_chunk};
  const auto forecast = [&]() -> result<prompt_fit> {
    const auto shared = find_shared(state, prompt, options.salt, plan.max_hits());
    const auto num_more = state.blocks_for(plan.length(shared.size())) - shared.size();
    const auto num_available = num_more != 0 ? state.pool.num_available(shared) : 0;
    if (static_cast<std::int64_t>(num_more) > num_available) {
      return state.refusal(num_more, num_available, {.shared = shared});
    }
    return prompt_fit{static_cast<std::int64_t>(shared.size() * state.block_size()),
                      static_cast<std::int64_t>(num_more)};
  };
  return with_memory(forecast, error{error_code::out_of_memory, "number of tokens to look up", num_tokens});
}

}  // namespace pagedkv::detail
