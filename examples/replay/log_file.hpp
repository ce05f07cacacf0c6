#pragma once

#include "options.hpp"

#include <pagedkv/events/event_log.hpp>

#include <cstdio>
#include <string>
#include <string_view>

namespace pagedkv::replay {

/// The lines of a cache's log in a file, on standard error for the name "-", or nowhere for an empty name. Thread-safe.
class log_file {
 public:
  /// Throws `option_error` when the file cannot be written.
  explicit log_file(const std::string& name) : name_(name) {
    if (name == "-") {
      file_ = stderr;
    } else if (!name.empty() && (file_ = std::fopen(name.c_str(), "w")) == nullptr) {
      fail();
    }
  }
  log_file(const log_file&) = delete;
  log_file& operator=(const log_file&) = delete;
  ~log_file() {
    if (file_ != nullptr && file_ != stderr) {
      std::fclose(file_);
    }
  }

  [[nodiscard]] event_log log() noexcept { return file_ == nullptr ? event_log{} : event_log{add_line, file_}; }

  /// Throws `option_error` when a line could not be written, on a full disk for example.
  void flush() {
    if (file_ != nullptr && (std::fflush(file_) != 0 || std::ferror(file_) != 0)) {
      fail();
    }
  }

 private:
  static void add_line(void* file, std::string_view line) noexcept {
    std::fprintf(static_cast<std::FILE*>(file), "%.*s\n", static_cast<int>(line.size()), line.data());
  }

  [[noreturn]] void fail() const { throw option_error("--log " + name_ + ": cannot be written"); }

  std::string name_;
  std::FILE* file_ = nullptr;
};

}  // namespace pagedkv::replay
