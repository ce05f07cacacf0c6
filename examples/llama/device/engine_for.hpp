#pragma once

#include "../engine_of.hpp"
#include "../engine_tiers.hpp"
#include "engine.hpp"

#include <memory>
#include <stdexcept>
#include <utility>

namespace llama::device {

/// Throws `std::invalid_argument`.
template <class Element>
void check_limits(const model<Element>& with, const engine_sizes& sizes) {
  const auto wanted = limits_of(sizes);
  const auto& most = with.limits();
  if (wanted.max_rows > most.max_rows || wanted.max_tokens > most.max_tokens || wanted.max_wanted > most.max_wanted) {
    throw std::invalid_argument("the model was made for smaller steps than the engine is to compute");
  }
}

template <class Element>
[[nodiscard]] std::unique_ptr<engine> make_engine_for(model<Element>& with, const engine_sizes& sizes,
                                                      const tier_sizes& tiers) {
  using caches = tiered_with<Element, pagedkv::layer_groups, pagedkv::hip_backend, pagedkv::hnd_layer_major,
                             pagedkv::host_tier<hip::pinned_allocator>>;
  check_limits(with, sizes);
  if (!tiers.any()) {
    using cache = device_cache<Element>;
    auto made = std::make_unique<cache>(config_of<cache>(with.config(), sizes));
    return std::make_unique<engine_of<cache>>(with, sizes, std::move(made), tiers.model);
  }
  if (!tiers.remote.empty()) {
    throw std::invalid_argument("stores stand behind engines of the host");
  }
  require_host_memory(tiers);
  return make_with_files<caches>(with, sizes, tiers);
}

}  // namespace llama::device
