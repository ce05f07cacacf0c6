#pragma once

#include "engine_of.hpp"

#include <pagedkv/tier/basic_file_tier.hpp>
#include <pagedkv/tier/file_engine.hpp>
#include <pagedkv/tier/tiered_cache.hpp>

#include <memory>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>

// Engines with tiers behind their caches, on hosts and devices, for the sources that compile them.

namespace llama {

/// The caches with these policies, a host tier's among them, and slower tiers.
template <class... Policies>
struct tiered_with {
  template <class... Slower>
  using cache = pagedkv::tiered_cache<Policies..., Slower...>;
};

template <class Caches>
using model_over = typename passes_over<typename Caches::template cache<>>::model;

using files_tier = pagedkv::basic_file_tier<pagedkv::thread_files>;

/// The format of records behind such a cache.
template <class Caches>
[[nodiscard]] pagedkv::record_format format_of(const model_config& model, const engine_sizes& sizes,
                                               const tier_sizes& tiers) {
  using cache = typename Caches::template cache<>;
  return cache::format_of(config_of<cache>(model, sizes), tiers.model);
}

/// Throws `std::invalid_argument`.
[[nodiscard]] inline files_tier open_files(const tier_sizes& tiers, const pagedkv::record_format& format) {
  auto opened = files_tier::create({tiers.file}, tiers.file_bytes, format);
  if (!opened) {
    throw std::invalid_argument(opened.error().message());
  }
  return *std::move(opened);
}

/// Throws `std::invalid_argument`.
inline void require_host_memory(const tier_sizes& tiers) {
  if (tiers.host_blocks == 0) {
    throw std::invalid_argument("files and stores are read and written through host memory, which needs blocks");
  }
}

/// An engine with host memory behind the cache, and these tiers behind that.
template <class Caches, class... Slower>
[[nodiscard]] std::unique_ptr<engine> make_with_tiers(model_over<Caches>& with, const engine_sizes& sizes,
                                                      const tier_sizes& tiers, Slower... slower) {
  using cache = typename Caches::template cache<Slower...>;
  auto chosen = pagedkv::tier_config{};
  chosen.model = tiers.model;
  chosen.write = pagedkv::write_policy::through;  // so that a restart finds what was never evicted
  chosen.ask_ahead =
      tiers.remote.empty() ? 0 : tiers.host_blocks / 2;  // of other processes; loads find room for so many
  auto made = std::make_unique<cache>(config_of<cache>(with.config(), sizes), chosen,
                                      typename cache::host_tier_type{tiers.host_blocks, {}},
                                      std::tuple<Slower...>{std::move(slower)...});
  return std::make_unique<engine_of<cache>>(with, sizes, std::move(made), tiers.model);
}

/// The same with a file, if one is named. Throws `std::invalid_argument` for a file that cannot be taken.
template <class Caches>
[[nodiscard]] std::unique_ptr<engine> make_with_files(model_over<Caches>& with, const engine_sizes& sizes,
                                                      const tier_sizes& tiers) {
  if (tiers.file.empty()) {
    return make_with_tiers<Caches>(with, sizes, tiers);
  }
  return make_with_tiers<Caches>(with, sizes, tiers,
                                 open_files(tiers, format_of<Caches>(with.config(), sizes, tiers)));
}

}  // namespace llama
