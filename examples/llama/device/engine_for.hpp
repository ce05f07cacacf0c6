#pragma once

#include "../engine_of.hpp"
#include "engine.hpp"

#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

namespace llama::device {

template <class Element>
[[nodiscard]] std::unique_ptr<engine> make_engine_for(model<Element>& with, const engine_sizes& sizes,
                                                      std::string name) {
  using cache = device_cache<Element>;
  const auto wanted = limits_of(sizes);
  const auto& most = with.limits();
  if (wanted.max_rows > most.max_rows || wanted.max_tokens > most.max_tokens || wanted.max_wanted > most.max_wanted) {
    throw std::invalid_argument("the model was made for smaller steps than the engine is to compute");
  }
  auto made = std::make_unique<cache>(config_of<cache>(with.config(), sizes));
  return std::make_unique<engine_of<cache>>(with, sizes, std::move(made), std::move(name), with.stream());
}

}  // namespace llama::device
