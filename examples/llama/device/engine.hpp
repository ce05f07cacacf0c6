#pragma once

#include "../engine.hpp"
#include "../engine_of.hpp"
#include "memory.hpp"
#include "model.hpp"

#include <concepts>
#include <memory>

// An engine whose model and cache are on a device. Built by nvcc or hipcc it runs on the GPU; by any other compiler, on
// the host executor.

namespace llama {

template <class Cache>
  requires std::same_as<typename Cache::backend_type, pagedkv::hip_backend>
struct passes_over<Cache> {
  using model = device::model<typename Cache::element_type>;
  using memory = device::paged_memory<Cache>;
  using host_allocator = pagedkv::hip::pinned_allocator;
};

namespace device {

// Sources of the same names compile them, beside each other.
extern template class model<pagedkv::float32>;
extern template class model<pagedkv::bfloat16>;

/// An engine for such a model, which outlives it. A model serves one engine at a time, with which it shares its stream
/// and the results of passes. Tiers hold K and V as the cache does. Throws `std::invalid_argument` for steps that are
/// larger than those that the model was made for, for a store, for a file without host memory or that cannot be taken,
/// and what the cache throws.
[[nodiscard]] std::unique_ptr<engine> make_engine(model<pagedkv::float32>& with, const engine_sizes& sizes,
                                                  const tier_sizes& tiers = {});
[[nodiscard]] std::unique_ptr<engine> make_engine(model<pagedkv::bfloat16>& with, const engine_sizes& sizes,
                                                  const tier_sizes& tiers = {});

}  // namespace device

}  // namespace llama
