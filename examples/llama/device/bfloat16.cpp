#include "engine_for.hpp"
#include "model_passes.hpp"

namespace llama::device {

template class model<pagedkv::bfloat16>;

std::unique_ptr<engine> make_engine(model<pagedkv::bfloat16>& with, const engine_sizes& sizes) {
  return make_engine_for(with, sizes);
}

}  // namespace llama::device
