#pragma once

#include "cache_operations.hpp"
#include "model_sequence.hpp"

#include <pagedkv/core/token_run.hpp>

#include <cstdint>
#include <span>
#include <vector>

// Prompts, options and appends, drawn from the numbers of an operation.

namespace pagedkv::test {

/// Sizes that draws depend on.
struct draw_sizes {
  std::int64_t granularity;
  std::int64_t room;   // tokens: a prompt rarely has more, mostly half of them at most
  std::int64_t run;    // tokens: an append has fewer
  std::int64_t ahead;  // slots: fewer are reserved
};

/// An append: its tokens, with keys among them, and its slots ahead.
struct model_growth {
  std::vector<token> tokens;
  std::vector<prefix_key> keys;
  std::int64_t num_ahead = 0;

  [[nodiscard]] bool is_empty() const noexcept { return tokens.empty() && num_ahead == 0; }
};

[[nodiscard]] salt draw_salt(std::uint32_t number);

/// Three texts that part and meet often, and what sequences held before, so that prefixes really overlap; some with
/// keys.
[[nodiscard]] named_text draw_prompt(const operation& next, std::span<const named_text* const> sources,
                                     const draw_sizes& sizes);

[[nodiscard]] sequence_options draw_options(const operation& next, salt tag, const draw_sizes& sizes);

/// The rest of the prompt if there is some, else a few tokens of an answer, sometimes with a key.
[[nodiscard]] model_growth draw_growth(const model_sequence& s, std::uint32_t b, std::uint32_t c, bool run,
                                       const draw_sizes& sizes);

}  // namespace pagedkv::test
