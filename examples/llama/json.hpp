#pragma once

#include <nlohmann/json.hpp>

#include <stdexcept>
#include <string>
#include <utility>

namespace llama {

/// JSON whose arrays and objects lie in each other more than 64 deep. Copies and comparisons of such a value recurse, and
/// a file or a client could have them overflow the stack.
struct deep_json : std::runtime_error {
  deep_json() : std::runtime_error("arrays and objects lie in each other more than 64 deep") {}
};

/// Throws `deep_json`, and `nlohmann::json::parse_error` for what is no JSON. `from`: what the library's `parse` takes.
template <class... From>
[[nodiscard]] nlohmann::json parse_json(From&&... from) {
  const auto check = [](int depth, nlohmann::json::parse_event_t /*event*/, const nlohmann::json& /*value*/) {
    return depth <= 64 ? true : throw deep_json();
  };
  return nlohmann::json::parse(std::forward<From>(from)..., check);
}

}  // namespace llama
