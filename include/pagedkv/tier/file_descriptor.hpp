#pragma once

#include <string.h>
#include <unistd.h>
#include <pagedkv/core/error.hpp>
#include <pagedkv/core/result.hpp>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

namespace pagedkv::detail {

/// The error of a call of the operating system that set `errno` to this number.
[[nodiscard]] inline error system_error(const char* call, int number) noexcept {
  const auto* const words = strerrordesc_np(number);
  return {error_code::backend_failure, call, number, error::no_limit, words == nullptr ? "unknown" : words};
}

/// Owns a descriptor.
class file_descriptor {
 public:
  file_descriptor() noexcept = default;
  explicit file_descriptor(int number) noexcept : number_(number) {}
  file_descriptor(file_descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  file_descriptor& operator=(file_descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  ~file_descriptor() {
    if (number_ >= 0) {
      ::close(number_);
    }
  }

  [[nodiscard]] int number() const noexcept { return number_; }
  [[nodiscard]] explicit operator bool() const noexcept { return number_ >= 0; }

 private:
  int number_ = -1;
};

/// Writes all of these bytes at the file's position.
[[nodiscard]] inline result<void> write_whole(const file_descriptor& file, std::span<const std::byte> bytes) noexcept {
  while (!bytes.empty()) {
    const auto size = ::write(file.number(), bytes.data(), bytes.size());
    if (size < 0 && errno != EINTR) {
      return system_error("writing a file", errno);
    }
    bytes = bytes.subspan(size < 0 ? 0 : static_cast<std::size_t>(size));
  }
  return {};
}

/// Reads from this offset on; returns how many bytes there were.
[[nodiscard]] inline result<std::size_t> read_at(const file_descriptor& file, std::int64_t offset,
                                                 std::span<std::byte> bytes) noexcept {
  auto filled = std::size_t{0};
  while (filled < bytes.size()) {
    const auto size = ::pread(file.number(), bytes.data() + filled, bytes.size() - filled,
                              offset + static_cast<std::int64_t>(filled));
    if (size < 0 && errno != EINTR) {
      return system_error("reading a file", errno);
    }
    if (size == 0) {
      break;
    }
    filled += size < 0 ? 0 : static_cast<std::size_t>(size);
  }
  return filled;
}

}  // namespace pagedkv::detail
