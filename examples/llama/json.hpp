#pragma once

#include <nlohmann/json.hpp>

#include <cstddef>
#include <stdexcept>
#include <string_view>

namespace llama {

/// JSON whose arrays and objects lie in each other more than 64 deep. Copies and comparisons of such a value recurse,
/// and a file or a client could have them overflow the stack.
struct deep_json : std::runtime_error {
  deep_json() : std::runtime_error("arrays and objects lie in each other more than 64 deep") {}
};

/// Counts the brackets that open, outside of strings. Text behind a fault may count, too: it is refused either way.
[[nodiscard]] inline bool is_deep_json(std::string_view text) noexcept {
  auto depth = 0;
  auto is_string = false;
  for (auto i = std::size_t{0}; i < text.size(); ++i) {
    const auto letter = text[i];
    if (letter == '"') {
      is_string = !is_string;
    } else if (is_string) {
      i += letter == '\\' ? 1 : 0;
    } else if (letter == '[' || letter == '{') {
      ++depth;
    } else if (letter == ']' || letter == '}') {
      --depth;
    }
    if (depth > 64) {
      return true;
    }
  }
  return false;
}

/// Throws `deep_json`, and `nlohmann::json::parse_error` for what is no JSON. The library's own callback could see the
/// depth, but with one each object takes time for all that come before it in its array.
[[nodiscard]] inline nlohmann::json parse_json(std::string_view text) {
  return is_deep_json(text) ? throw deep_json() : nlohmann::json::parse(text);
}

}  // namespace llama
