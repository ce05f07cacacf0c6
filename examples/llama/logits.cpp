#include "logits.hpp"

#include "engine_of.hpp"
#include "model.hpp"
#include "paged.hpp"

#include <array>
#include <cstdint>
#include <numeric>
#include <type_traits>
#include <utility>

namespace llama {

std::vector<float> logits_of(model& with, std::vector<pagedkv::token> text, stored_as stored) {
  const auto size = static_cast<std::int32_t>(text.size());
  auto step = step_tokens{};
  step.tokens = std::move(text);
  step.positions.resize(step.tokens.size());
  std::iota(step.positions.begin(), step.positions.end(), 0);
  step.starts.push_back(size);
  step.is_long.assign(step.tokens.size(), with.config().is_long(size));
  step.wanted = step.positions;
  return with_cache(stored, [&]<class Cache>(std::type_identity<Cache>) {
    const auto sizes = engine_sizes{.num_blocks = size + 128, .max_rows = 1, .token_budget = size};
    auto cache = Cache(config_of<Cache>(with.config(), sizes));
    auto memory = paged_memory<Cache>(cache, with.config(), limits_of(sizes));
    const auto made = cache.create_sequence(step.tokens).value();
    memory.prepare(step, std::array{made.id}).value();
    const auto logits = with.run(step, memory);
    return std::vector<float>(logits.begin(), logits.end());
  });
}

}  // namespace llama
