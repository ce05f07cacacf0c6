#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <pagedkv/core/result.hpp>
#include <pagedkv/tier/file_descriptor.hpp>

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string>
#include <utility>

namespace pagedkv::detail {

/// A file that appears under its name when it is complete and on the disk, or not at all; one of that name is replaced.
class atomic_file {
 public:
  /// May throw `std::bad_alloc`.
  [[nodiscard]] static result<atomic_file> create(const std::string& path) {
    auto file = atomic_file{path};
    file.temporary_ = path + ".XXXXXX";  // beside it, since a file cannot be renamed to another file system
    file.descriptor_ = file_descriptor{::mkostemp(file.temporary_.data(), O_CLOEXEC)};
    if (!file.descriptor_) {
      file.temporary_.clear();
      return system_error("making a file", errno);
    }
    return file;
  }

  atomic_file(atomic_file&& other) noexcept
      : path_(std::move(other.path_)),
        temporary_(std::exchange(other.temporary_, {})),
        descriptor_(std::move(other.descriptor_)) {}
  atomic_file& operator=(atomic_file&&) = delete;
  ~atomic_file() {
    if (!temporary_.empty()) {
      ::unlink(temporary_.c_str());
    }
  }

  [[nodiscard]] result<void> write(std::span<const std::byte> bytes) noexcept {
    return write_whole(descriptor_, bytes);
  }

  /// Once, after everything was written. May throw `std::bad_alloc`.
  [[nodiscard]] result<void> finish() {
    if (::fsync(descriptor_.number()) != 0) {
      return system_error("syncing a file", errno);
    }
    if (std::rename(temporary_.c_str(), path_.c_str()) != 0) {
      return system_error("renaming a file", errno);
    }
    temporary_.clear();
    const auto slash = path_.rfind('/');
    const auto folder = slash == std::string::npos ? std::string{"."} : path_.substr(0, slash + 1);
    const auto opened = file_descriptor{::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
    if (!opened || ::fsync(opened.number()) != 0) {
      return system_error("syncing a folder", errno);
    }
    return {};
  }

 private:
  explicit atomic_file(const std::string& path) : path_(path) {}

  std::string path_;
  std::string temporary_;
  file_descriptor descriptor_;
};

}  // namespace pagedkv::detail
