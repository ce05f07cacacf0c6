#include "engine.hpp"

#include "engine_of.hpp"
#include "model.hpp"
#include "paged.hpp"

#include <memory>
#include <string>
#include <type_traits>

namespace llama {

namespace {

template <class Cache>
[[nodiscard]] std::unique_ptr<engine> make_without_tiers(model& with, const engine_sizes& sizes,
                                                         const std::string& name) {
  auto made = std::make_unique<Cache>(config_of<Cache>(with.config(), sizes));
  return std::make_unique<engine_of<Cache>>(with, sizes, std::move(made), name);
}

}  // namespace

std::unique_ptr<engine> make_engine(model& with, const engine_sizes& sizes, stored_as stored, const tier_sizes& tiers) {
  if (tiers.any()) {
    return make_tiered_engine(with, sizes, stored, tiers);
  }
  if (stored == stored_as::float32 && with.config().attends_to_all()) {
    return make_without_tiers<pagedkv::kv_cache<pagedkv::float32>>(with, sizes, tiers.model);
  }
  return with_cache(stored, [&]<class Cache>(std::type_identity<Cache>) {
    return make_without_tiers<Cache>(with, sizes, tiers.model);
  });
}

}  // namespace llama
