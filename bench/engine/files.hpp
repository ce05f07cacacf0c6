#pragma once

#include <fstream>
#include <stdexcept>
#include <string>

namespace llama::bench {

/// Throws `std::runtime_error`.
inline void write_file(const std::string& path, const std::string& text) {
  auto file = std::ofstream(path);
  file << text;
  file.close();
  if (!file) {
    throw std::runtime_error(path + ": cannot be written");
  }
}

}  // namespace llama::bench
