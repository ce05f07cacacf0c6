#include "engine.hpp"

#include "engine_of.hpp"
#include "model.hpp"
#include "paged.hpp"

#include <memory>
#include <numeric>
#include <string>
#include <type_traits>

namespace llama {

namespace {

using pagedkv::group_cache;

/// Calls `call` with the type of a cache for every kind of layer.
template <class Call>
[[nodiscard]] auto with_cache(stored_as stored, const Call& call) {
  switch (stored) {
    case stored_as::float16: return call(std::type_identity<group_cache<pagedkv::float16>>{});
    case stored_as::bfloat16: return call(std::type_identity<group_cache<pagedkv::bfloat16>>{});
    case stored_as::int8: return call(std::type_identity<group_cache<pagedkv::int8>>{});
    case stored_as::float8:
      return call(std::type_identity<group_cache<pagedkv::basic_float8_e4m3<pagedkv::token_scale>>>{});
    case stored_as::float32: break;
  }
  return call(std::type_identity<group_cache<pagedkv::float32>>{});
}

template <class Cache>
[[nodiscard]] std::unique_ptr<engine> make_without_tiers(model& with, const engine_sizes& sizes,
                                                         const std::string& name) {
  auto made = std::make_unique<Cache>(config_of<Cache>(with.config(), sizes));
  return std::make_unique<engine_of<Cache>>(with, sizes, std::move(made), name);
}

template <class Cache>
[[nodiscard]] std::vector<float> compute_logits(model& with, const step_tokens& text) {
  const auto size = static_cast<std::int32_t>(text.tokens.size());
  const auto sizes = engine_sizes{.num_blocks = size + 128, .max_rows = 1, .token_budget = size};
  auto cache = Cache(config_of<Cache>(with.config(), sizes));
  auto memory = paged_memory<Cache>(cache, with.config(), limits_of(sizes));
  const auto made = cache.create_sequence(text.tokens).value();
  memory.prepare(text, std::array{made.id}).value();
  const auto logits = with.run(text, memory);
  return {logits.begin(), logits.end()};
}

}  // namespace

std::unique_ptr<engine> make_engine(model& with, const engine_sizes& sizes, stored_as stored, const tier_sizes& tiers) {
  if (tiers.host_blocks > 0 || !tiers.file.empty() || !tiers.remote.empty()) {
    return make_tiered_engine(with, sizes, stored, tiers);
  }
  const bool layers_differ = with.config().has(layer_kind::window) || with.config().has(layer_kind::state);
  if (stored == stored_as::float32 && !layers_differ) {
    return make_without_tiers<pagedkv::kv_cache<pagedkv::float32>>(with, sizes, tiers.model);
  }
  return with_cache(stored, [&]<class Cache>(std::type_identity<Cache>) {
    return make_without_tiers<Cache>(with, sizes, tiers.model);
  });
}

std::vector<float> logits_of(model& with, std::vector<pagedkv::token> text, stored_as stored) {
  auto step = step_tokens{};
  step.tokens = std::move(text);
  step.positions.resize(step.tokens.size());
  std::iota(step.positions.begin(), step.positions.end(), 0);
  step.starts.push_back(static_cast<std::int32_t>(step.tokens.size()));
  step.wanted = step.positions;
  return with_cache(stored, [&]<class Cache>(std::type_identity<Cache>) { return compute_logits<Cache>(with, step); });
}

}  // namespace llama
