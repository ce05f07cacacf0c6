#pragma once

#include "../../examples/llama/config.hpp"
#include "../../examples/llama/device/arrays.hpp"
#include "../../examples/llama/device/kernels.hpp"
#include "../../examples/llama/device/weights.hpp"

#include <pagedkv/device/stream.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace llama::device {

/// Random numbers in [-scale, scale), from a hash of their place. x counts workgroups, and lanes stride over the grid.
template <class Element>
PAGEDKV_KERNEL void fill_randomly(storage_of<Element>* numbers, std::int64_t count, std::uint64_t seed, float scale) {
  const auto stride = std::int64_t{kernels::grid_extent().x} * workgroup_size;
  for (auto i = std::int64_t{index_of_workgroup()} * workgroup_size + lane_of_workgroup(); i < count; i += stride) {
    auto z = (seed << 40) + static_cast<std::uint64_t>(i) * 0x9e3779b97f4a7c15U;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
    const auto unit = static_cast<float>((z ^ (z >> 31)) >> 40) / 8388608.0F - 1;
    kernels::store(numbers + i, Element::encode(unit * scale, 1));
  }
}

/// Random weights, for measurements.
template <class Element>
class random_weights {
 public:
  explicit random_weights(const model_config& config) : config_(config), sizes_(config) {}

  [[nodiscard]] model_weights<Element> draw() {
    auto made = model_weights<Element>{};
    made.embeddings = matrix(sizes_.vocabulary, sizes_.hidden);
    if (!config_.tied_embeddings) {
      made.head = matrix(sizes_.vocabulary, sizes_.hidden);
    }
    made.norm = ones(sizes_.hidden);
    for (auto i = std::size_t{0}; i < config_.layers.size(); ++i) {
      auto& layer = made.layers.emplace_back();
      layer.norm = ones(sizes_.hidden);
      layer.projections = matrix(sizes_.projected(), sizes_.hidden);
      layer.output = matrix(sizes_.hidden, sizes_.queries);
      layer.feed_norm = ones(sizes_.hidden);
      layer.gates = matrix(2 * sizes_.intermediate, sizes_.hidden);
      layer.down = matrix(sizes_.hidden, sizes_.intermediate);
    }
    stream_.synchronize().value();
    return made;
  }

 private:
  [[nodiscard]] device_array<storage_of<Element>> matrix(std::size_t num_out, std::size_t num_in) {
    auto made = device_array<storage_of<Element>>(num_out * num_in);
    const auto scale = static_cast<float>(1 / std::sqrt(static_cast<double>(num_in)));
    hip::require(kernels::launch<fill_randomly<Element>>({{1024}, {workgroup_size}}, stream_.get(), made.data(),
                                                         static_cast<std::int64_t>(made.size()), ++seed_, scale),
                 "the launch of random numbers");
    return made;
  }

  [[nodiscard]] device_array<float> ones(std::size_t size) {
    auto made = device_array<float>(size);
    const auto numbers = std::vector<float>(size, 1);
    copy(made.data(), numbers.data(), size, runtime::host_to_device, stream_.get());
    stream_.synchronize().value();
    return made;
  }

  const model_config& config_;
  matrix_sizes sizes_;
  std::uint64_t seed_ = 0;
  hip::stream stream_;
};

}  // namespace llama::device
