#pragma once

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <string>

namespace device_bench {

/// Objects of JSON, one a measurement, as a list.
class records {
 public:
  void add(const std::string& record) { text_ += (text_.empty() ? "" : ",\n") + record; }

  [[nodiscard]] std::string list() const { return "[\n" + text_ + "\n]"; }

 private:
  std::string text_;
};

/// Throws `std::runtime_error`, which names the file.
inline void write_file(const std::string& path, const std::string& text) {
  auto* const file = std::fopen(path.c_str(), "w");
  const auto written = file != nullptr && std::fputs(text.c_str(), file) >= 0;
  if (file == nullptr || std::fclose(file) != 0 || !written) {
    throw std::runtime_error(path + ": " + std::strerror(errno));
  }
}

}  // namespace device_bench
