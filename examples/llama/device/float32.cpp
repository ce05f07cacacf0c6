#include "engine_for.hpp"
#include "model_passes.hpp"

#include <memory>

namespace llama::device {

template class model<pagedkv::float32>;

std::unique_ptr<engine> make_engine(model<pagedkv::float32>& with, const engine_sizes& sizes, const tier_sizes& tiers) {
  return make_engine_for(with, sizes, tiers);
}

}  // namespace llama::device
