#include "engine_of.hpp"
#include "model.hpp"
#include "paged.hpp"

#include <pagedkv/tier/basic_file_tier.hpp>
#include <pagedkv/tier/file_engine.hpp>
#include <pagedkv/tier/redis_client.hpp>
#include <pagedkv/tier/remote_tier.hpp>
#include <pagedkv/tier/tiered_cache.hpp>

#include <memory>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>

namespace llama {

namespace {

using files_tier = pagedkv::basic_file_tier<pagedkv::thread_files>;
using store_tier = pagedkv::remote_tier<pagedkv::redis_client>;

template <class Groups, class... Slower>
[[nodiscard]] std::unique_ptr<engine> make_with_tiers(model& with, const engine_sizes& sizes, const tier_sizes& tiers,
                                                      Slower... slower) {
  using cache = pagedkv::tiered_cache<Groups, pagedkv::float32, Slower...>;
  auto chosen = pagedkv::tier_config{};
  chosen.model = tiers.model;
  chosen.write = pagedkv::write_policy::through;  // so that a restart finds what was never evicted
  chosen.ask_ahead =
      tiers.remote.empty() ? 0 : tiers.host_blocks / 2;  // of other processes; loads find room for so many
  auto made =
      std::make_unique<cache>(config_of<cache>(with.config(), sizes), chosen,
                              pagedkv::host_tier<>{tiers.host_blocks, {}}, std::tuple<Slower...>{std::move(slower)...});
  return std::make_unique<engine_of<cache>>(with, sizes, std::move(made), tiers.model);
}

void check_tiers(const model_config& model, stored_as stored, const tier_sizes& tiers) {
  if (!model.attends_to_all() && !tiers.remote.empty()) {
    throw std::invalid_argument("stores stand behind models whose layers all attend to all tokens");
  }
  if (stored != stored_as::float32) {
    throw std::invalid_argument("tiers of this program hold float32");
  }
  if (tiers.host_blocks == 0) {
    throw std::invalid_argument("files and stores are read and written through host memory, which needs blocks");
  }
}

template <class Groups>
[[nodiscard]] std::unique_ptr<engine> make_for(model& with, const engine_sizes& sizes, const tier_sizes& tiers) {
  using cache = pagedkv::tiered_cache<Groups, pagedkv::float32>;
  const auto format = cache::format_of(config_of<cache>(with.config(), sizes), tiers.model);
  const auto files = [&] {
    auto opened = files_tier::create({tiers.file}, tiers.file_bytes, format);
    if (!opened) {
      throw std::invalid_argument(opened.error().message());
    }
    return *std::move(opened);
  };
  if constexpr (!cache::layers_differ) {
    const auto store = [&] {
      const auto parsed = pagedkv::parse_redis_url(tiers.remote);
      if (!parsed) {
        throw std::invalid_argument(parsed.error().message());
      }
      return store_tier(pagedkv::redis_client(*parsed), format);
    };
    if (!tiers.remote.empty()) {
      return tiers.file.empty() ? make_with_tiers<Groups>(with, sizes, tiers, store())
                                : make_with_tiers<Groups>(with, sizes, tiers, files(), store());
    }
  }
  return tiers.file.empty() ? make_with_tiers<Groups>(with, sizes, tiers)
                            : make_with_tiers<Groups>(with, sizes, tiers, files());
}

}  // namespace

std::unique_ptr<engine> make_tiered_engine(model& with, const engine_sizes& sizes, stored_as stored,
                                           const tier_sizes& tiers) {
  check_tiers(with.config(), stored, tiers);
  return with.config().attends_to_all() ? make_for<pagedkv::one_group>(with, sizes, tiers)
                                        : make_for<pagedkv::layer_groups>(with, sizes, tiers);
}

}  // namespace llama
