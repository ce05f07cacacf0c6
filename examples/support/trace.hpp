#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace pagedkv::support {

/// One request of a trace. Equal ids in `blocks` stand for blocks of equal tokens behind equal prefixes.
struct trace_request {
  std::int64_t arrival_ms = 0;
  std::uint32_t num_prompt_tokens = 0;
  std::uint32_t num_output_tokens = 0;
  std::vector<std::uint64_t> blocks;
};

/// An unreadable file or a malformed line; the message names it.
class trace_error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// One line in the format of the Mooncake traces: an object with `timestamp` (ms), `input_length`, `output_length` (tokens)
/// and `hash_ids`. The lengths and the time may be missing.
[[nodiscard]] inline trace_request parse_trace_line(const std::string& line) {
  const auto row = nlohmann::json::parse(line);
  auto request = trace_request{};
  request.arrival_ms = row.value("timestamp", std::int64_t{0});
  request.num_prompt_tokens = row.value("input_length", std::uint32_t{0});
  request.num_output_tokens = row.value("output_length", std::uint32_t{0});
  request.blocks = row.at("hash_ids").get<std::vector<std::uint64_t>>();
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
    } catch (const nlohmann::json::exception& e) {
      throw trace_error{path + ": line " + std::to_string(number) + ": " + e.what()};
    }
  }
  if (file.bad()) {
    throw trace_error{path + ": cannot be read"};
  }
  return requests;
}

}  // namespace pagedkv::support
