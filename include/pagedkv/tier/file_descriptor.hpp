#pragma once

#include <string.h>
#include <unistd.h>
#include <pagedkv/core/result.hpp>
#include <pagedkv/detail/memory.hpp>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace pagedkv::detail {

/// A copy of a text that lasts until the program ends, as the texts of an `error` do. Equal texts share one. Returns
/// `instead` when all copies would take more than 64 KiB, or memory is exhausted. For the paths of files whose errors
/// are reported.
[[nodiscard]] inline const char* lasting_text(std::string text, const char* instead) noexcept {
  constexpr auto most_bytes = std::size_t{1} << 16;
  struct copies {
    std::mutex mutex;
    std::set<std::string> texts;
    std::size_t num_bytes = 0;
  };
  const auto keep = [&]() -> const char* {
    static auto& kept = *new copies;  // errors may be read while static objects end
    const auto guard = std::lock_guard{kept.mutex};
    const auto found = kept.texts.find(text);
    if (found != kept.texts.end()) {
      return found->c_str();
    }
    if (text.size() > most_bytes - kept.num_bytes) {
      return instead;
    }
    const auto& added = *kept.texts.insert(std::move(text)).first;
    kept.num_bytes += added.size();
    return added.c_str();
  };
  return with_memory(keep, instead);
}

/// The error of a call of the operating system that set `errno` to this number.
[[nodiscard]] inline error system_error(const char* call, int number) noexcept {
  const auto* const words = strerrordesc_np(number);
  return {error_code::backend_failure, call, number, error::no_limit, words == nullptr ? "unknown" : words};
}

/// An error, or success, of something that was done to a file, with the path behind its words.
[[nodiscard]] inline error about_file(error reason, const std::string& path) noexcept {
  const auto compose = [&] {
    auto text = std::string{reason.detail};
    text.append(text.empty() ? "" : ": ").append(path);
    return lasting_text(std::move(text), reason.detail);
  };
  if (reason.code != error_code::out_of_memory) {
    reason.detail = with_memory(compose, reason.detail);
  }
  return reason;
}
[[nodiscard]] inline result<void> about_file(const result<void>& done, const std::string& path) noexcept {
  return done ? done : result<void>{about_file(done.error(), path)};
}

/// The refusal of records of another format, with the words in which the formats differ first.
[[nodiscard]] inline error another_format(const char* subject, std::int64_t value, std::string_view found,
                                          std::string_view wanted) noexcept {
  const auto next_word = [](std::string_view& text) {
    const auto word = text.substr(0, text.find(' '));
    text.remove_prefix(std::min(word.size() + 1, text.size()));
    return word;
  };
  auto has = std::string_view{};
  auto lacks = std::string_view{};
  while (has == lacks && !(found.empty() && wanted.empty())) {
    has = next_word(found);
    lacks = next_word(wanted);
  }
  const auto compose = [&] { return lasting_text(std::string{"has "}.append(has).append(", not ").append(lacks), ""); };
  const bool is_told = has != lacks && !has.empty() && !lacks.empty();
  return {error_code::invalid_argument, subject, value, error::no_limit, is_told ? with_memory(compose, "") : ""};
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
