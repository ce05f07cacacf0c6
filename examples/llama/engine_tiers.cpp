#include "engine_tiers.hpp"

#include "model.hpp"
#include "paged.hpp"

#include <pagedkv/tier/redis_client.hpp>
#include <pagedkv/tier/remote_tier.hpp>

#include <memory>
#include <stdexcept>
#include <utility>

namespace llama {

namespace {

using store_tier = pagedkv::remote_tier<pagedkv::redis_client>;

template <class Groups>
using tiered_on_host = tiered_with<Groups, pagedkv::float32, pagedkv::host_tier<>>;

void check_tiers(const model_config& model, stored_as stored, const tier_sizes& tiers) {
  if (!model.attends_to_all() && !tiers.remote.empty()) {
    throw std::invalid_argument("stores stand behind models whose layers all attend to all tokens");
  }
  if (stored != stored_as::float32) {
    throw std::invalid_argument("tiers of this program hold float32");
  }
  require_host_memory(tiers);
}

/// An engine with a store behind the tiers.
[[nodiscard]] std::unique_ptr<engine> make_with_store(model& with, const engine_sizes& sizes, const tier_sizes& tiers) {
  using caches = tiered_on_host<pagedkv::one_group>;
  const auto parsed = pagedkv::parse_redis_url(tiers.remote);
  if (!parsed) {
    throw std::invalid_argument(parsed.error().message());
  }
  const auto format = format_of<caches>(with.config(), sizes, tiers);
  auto store = store_tier(pagedkv::redis_client(*parsed), format);
  return tiers.file.empty()
             ? make_with_tiers<caches>(with, sizes, tiers, std::move(store))
             : make_with_tiers<caches>(with, sizes, tiers, open_files(tiers, format), std::move(store));
}

}  // namespace

std::unique_ptr<engine> make_tiered_engine(model& with, const engine_sizes& sizes, stored_as stored,
                                           const tier_sizes& tiers) {
  check_tiers(with.config(), stored, tiers);
  if (!tiers.remote.empty()) {
    return make_with_store(with, sizes, tiers);
  }
  return with.config().attends_to_all() ? make_with_files<tiered_on_host<pagedkv::one_group>>(with, sizes, tiers)
                                        : make_with_files<tiered_on_host<pagedkv::layer_groups>>(with, sizes, tiers);
}

}  // namespace llama
