#pragma once

#include "trace_request.hpp"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <fstream>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

namespace pagedkv::support {

/// An unreadable file or a malformed line; the message names it.
class trace_error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A whole number from 0 to `largest`; the JSON library by itself would convert any other number to one.
[[nodiscard]] inline std::uint64_t whole_number(const nlohmann::json& value, const char* name, std::uint64_t largest) {
  if (!value.is_number_unsigned() || value.get<std::uint64_t>() > largest) {
    // To write arrays in arrays, the library recurses: a file could have them overflow the stack.
    const auto found = value.is_structured() ? std::string{"an "} + value.type_name() : value.dump();
    throw trace_error{std::string{name} + " is " + found + ", not a whole number from 0 to " + std::to_string(largest)};
  }
  return value.get<std::uint64_t>();
}

/// One line in the format of the Mooncake traces: an object with `timestamp` (ms), `input_length`, `output_length`
/// (tokens) and `hash_ids`. The lengths and the time may be missing. Throws `trace_error`, or what the JSON library
/// throws.
[[nodiscard]] inline trace_request parse_trace_line(const std::string& line) {
  constexpr auto latest_ms = std::uint64_t{9'000'000'000'000};  // fits an int64 also in nanoseconds
  constexpr auto most_tokens = std::uint64_t{std::numeric_limits<std::int32_t>::max()};
  constexpr auto any_id = std::numeric_limits<std::uint64_t>::max();
  const auto row = nlohmann::json::parse(line);
  const auto number = [&](const char* name, std::uint64_t largest) {
    return row.contains(name) ? whole_number(row.at(name), name, largest) : 0;
  };
  auto request = trace_request{};
  request.arrival_ms = static_cast<std::int64_t>(number("timestamp", latest_ms));
  request.num_prompt_tokens = static_cast<std::uint32_t>(number("input_length", most_tokens));
  request.num_output_tokens = static_cast<std::uint32_t>(number("output_length", most_tokens));
  for (const auto& id : row.at("hash_ids").get_ref<const nlohmann::json::array_t&>()) {
    request.blocks.push_back(whole_number(id, "hash_ids", any_id));
  }
  return request;
}

/// Reads at most `limit` requests. Throws `trace_error`.
[[nodiscard]] inline std::vector<trace_request> read_trace(const std::string& path, std::size_t limit = SIZE_MAX) {
  auto file = std::ifstream{path};
  if (!file) {
    throw trace_error{path + ": cannot be read"};
  }
  auto requests = std::vector<trace_request>{};
  auto line = std::string{};
  for (auto number = 1; requests.size() < limit && std::getline(file, line); ++number) {
    try {
      requests.push_back(parse_trace_line(line));
    } catch (const std::exception& e) {
      throw trace_error{path + ": line " + std::to_string(number) + ": " + e.what()};
    }
  }
  if (file.bad()) {
    throw trace_error{path + ": cannot be read"};
  }
  return requests;
}

}  // namespace pagedkv::support
