#pragma once

#include "../engine_steps.hpp"
#include "engine.hpp"

#include <memory>

namespace llama::device {

template <class Element>
[[nodiscard]] std::unique_ptr<engine> make_engine_for(model<Element>& with, const engine_sizes& sizes) {
  using cache = device_cache<Element>;
  auto made = std::make_unique<cache>(config_of<cache>(with.config(), sizes));
  return std::make_unique<engine_of<cache>>(with, sizes, std::move(made), "", with.stream());
}

}  // namespace llama::device
