#include "engine_for.hpp"
#include "model_passes.hpp"

#include <memory>
#include <string>
#include <utility>

namespace llama::device {

template class model<pagedkv::float32>;

std::unique_ptr<engine> make_engine(model<pagedkv::float32>& with, const engine_sizes& sizes, std::string name) {
  return make_engine_for(with, sizes, std::move(name));
}

}  // namespace llama::device
