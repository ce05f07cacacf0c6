#pragma once

#include "../engine.hpp"
#include "../engine_of.hpp"
#include "memory.hpp"
#include "model.hpp"

#include <memory>
#include <string>

// An engine whose model and cache are on a device. Built by nvcc or hipcc it runs on the GPU; by any other compiler, on
// the host executor.

namespace llama {

namespace device {

template <class Element>
struct passes {
  using model = device::model<Element>;
  using memory = paged_memory<Element>;
  using host_allocator = hip::pinned_allocator;
};

}  // namespace device

template <>
struct passes_over<device::device_cache<pagedkv::float32>> : device::passes<pagedkv::float32> {};
template <>
struct passes_over<device::device_cache<pagedkv::bfloat16>> : device::passes<pagedkv::bfloat16> {};

namespace device {

// Sources of the same names compile them, beside each other.
extern template class model<pagedkv::float32>;
extern template class model<pagedkv::bfloat16>;

/// An engine for such a model, which outlives it. A model serves one engine at a time, with which it shares its stream
/// and the results of passes. `name`: the model's, in sessions: those of another name are refused. Throws
/// `std::invalid_argument` for steps that are larger than those that the model was made for, and what the cache throws.
[[nodiscard]] std::unique_ptr<engine> make_engine(model<pagedkv::float32>& with, const engine_sizes& sizes,
                                                  std::string name);
[[nodiscard]] std::unique_ptr<engine> make_engine(model<pagedkv::bfloat16>& with, const engine_sizes& sizes,
                                                  std::string name);

}  // namespace device

}  // namespace llama
