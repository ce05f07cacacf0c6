#pragma once

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <pagedkv/core/result.hpp>
#include <pagedkv/detail/deadline.hpp>
#include <pagedkv/policy/allocator/host_allocator.hpp>
#include <pagedkv/tier/file_descriptor.hpp>
#include <pagedkv/tier/record.hpp>
#include <pagedkv/tier/sealed_header.hpp>

#include <algorithm>
#include <array>
#include <cassert>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace pagedkv::detail {

struct c_memory_deleter {
  void operator()(std::byte* memory) const noexcept { std::free(memory); }
};
using transfer_memory = std::unique_ptr<std::byte, c_memory_deleter>;

/// At `record_alignment`, as transfers without the page cache need it. Null when there is none.
[[nodiscard]] inline transfer_memory allocate_transfer_memory(std::size_t bytes) noexcept {
  return transfer_memory{host_allocator{}.allocate(bytes, record_alignment)};
}

struct file_numbers {
  static constexpr auto kind = 'f';
  static constexpr auto num_parts = std::size_t{1};  // the text of the records' format

  std::uint64_t record_bytes = 0;
};

/// The first bytes of each file, as many as a record's header has.
[[nodiscard]] inline result<transfer_memory> make_file_header(const record_format& format) noexcept {
  const auto size = format.header_bytes();
  auto memory = allocate_transfer_memory(size);
  if (memory == nullptr) {
    return error{error_code::out_of_memory, "bytes of a file's header", static_cast<std::int64_t>(size)};
  }
  [[maybe_unused]] const auto fits = sealed_header<file_numbers>::seal(
      {format.record_bytes()}, {std::as_bytes(std::span{format.text})}, {memory.get(), size});
  assert(fits && "a record's header has the text, too");
  return memory;
}

/// The text of the records' format in a file's header; empty where it is damaged.
[[nodiscard]] inline std::string_view format_in(std::span<const std::byte> header) noexcept {
  const auto opened = sealed_header<file_numbers>::open(header);
  return opened ? std::string_view{reinterpret_cast<const char*>(opened->parts[0].data()), opened->parts[0].size()}
                : std::string_view{};
}

enum class file_contents : std::uint8_t { nothing, records, other_records, something_else };

/// `found`: the file's first bytes, `wanted`: its header as this process writes it.
[[nodiscard]] inline file_contents compare_file_headers(std::span<const std::byte> found,
                                                        std::span<const std::byte> wanted) noexcept {
  if (std::ranges::equal(found, wanted)) {
    return file_contents::records;
  }
  if (std::ranges::all_of(found, [](std::byte byte) { return byte == std::byte{}; })) {
    return file_contents::nothing;
  }
  constexpr auto magic_size = sizeof(sealed_header<file_numbers>::fields::magic);
  const auto is_ours =
      found.size() >= magic_size && std::ranges::equal(found.first(magic_size), wanted.first(magic_size));
  return is_ours ? file_contents::other_records : file_contents::something_else;
}

/// One file of a fixed size, locked for this process.
class preallocated_file {
 public:
  /// Opens a file with this header, or makes one, and locks it. Changes no bytes.
  [[nodiscard]] result<void> open(const std::string& path, std::span<const std::byte> header,
                                  std::chrono::nanoseconds patience) noexcept {
    struct stat about {};
    do {  // the holder of the lock may have removed the file since it was opened
      is_new_ = ::access(path.c_str(), F_OK) != 0;
      if (auto locked = open_and_lock(path, patience); !locked) {
        is_new_ = is_new_ && locked.error().code != error_code::in_use;  // another process has made it meanwhile
        return locked;
      }
      if (::fstat(descriptor(), &about) != 0) {
        return system_error("querying a file of a tier", errno);
      }
    } while (about.st_nlink == 0);
    if (!S_ISREG(about.st_mode)) {
      return error{error_code::invalid_argument, "type of a tier's file, which is not regular,",
                   about.st_mode & S_IFMT};
    }
    size_before_ = about.st_size;
    is_new_ = is_new_ && size_before_ == 0;
    return size_before_ == 0 ? result<void>{} : check_contents(header);
  }

  /// Has so many bytes on the disk, or more, and the header.
  [[nodiscard]] result<void> allocate(std::int64_t bytes, std::span<const std::byte> header) noexcept {
    may_have_grown_ = true;
    auto failed = ::fallocate(descriptor(), 0, 0, bytes) != 0 ? errno : 0;
    if (failed == EOPNOTSUPP) {  // then a full disk shows when records are written
      failed = ::ftruncate(descriptor(), std::max(bytes, size_before_)) != 0 ? errno : 0;
    }
    if (failed != 0) {
      return system_error("allocating a file of a tier", failed);
    }
    return has_header_ ? result<void>{} : write_header(header);
  }

  /// Gives back what is behind so many bytes. If the system refuses, the file stays longer.
  void cut(std::int64_t bytes) noexcept { static_cast<void>(::ftruncate(descriptor(), bytes) == 0); }

  /// Removes the file if `open` has made it, or takes back what `allocate` did to it.
  void undo(const std::string& path) noexcept {
    if (is_new_) {
      ::unlink(path.c_str());
      return;
    }
    // The header's bytes were zeros before.
    for (auto at = std::size_t{0}; at < header_bytes_; at += no_bytes.size()) {
      static_cast<void>(::pwrite(descriptor(), no_bytes.data(), no_bytes.size(), static_cast<::off_t>(at)) == 0);
    }
    if (may_have_grown_) {
      cut(size_before_);
    }
  }

  [[nodiscard]] int descriptor() const noexcept { return descriptor_.number(); }
  [[nodiscard]] bool direct() const noexcept { return direct_; }

 private:
  [[nodiscard]] result<void> open_and_lock(const std::string& path, std::chrono::nanoseconds patience) noexcept {
    constexpr auto flags = O_RDWR | O_CREAT | O_CLOEXEC;
    constexpr auto mode = S_IRUSR | S_IWUSR;  // prompts are private
    descriptor_ = file_descriptor{::open(path.c_str(), flags | O_DIRECT, mode)};
    direct_ = static_cast<bool>(descriptor_);
    if (!direct_ && errno == EINVAL) {
      descriptor_ = file_descriptor{::open(path.c_str(), flags, mode)};
    }
    if (!descriptor_) {
      return system_error("opening a file of a tier", errno);
    }
    return lock(patience);
  }

  /// The kernel completes a dead process's last requests first, which hold the lock for that long.
  [[nodiscard]] result<void> lock(std::chrono::nanoseconds patience) const noexcept {
    constexpr auto pause = std::chrono::milliseconds{1};
    const auto deadline = deadline_in(patience);
    while (::flock(descriptor(), LOCK_EX | LOCK_NB) != 0) {
      if (errno != EWOULDBLOCK && errno != EINTR) {
        return system_error("locking a file of a tier", errno);
      }
      if (std::chrono::steady_clock::now() >= deadline) {
        return error{error_code::in_use, "descriptor of a tier's file, which another tier has locked,", descriptor()};
      }
      std::this_thread::sleep_for(pause);
    }
    return {};
  }

  [[nodiscard]] result<void> check_contents(std::span<const std::byte> header) noexcept {
    const auto found = allocate_transfer_memory(header.size());
    if (found == nullptr) {
      return error{error_code::out_of_memory, "bytes of a file's header", static_cast<std::int64_t>(header.size())};
    }
    const auto size = ::pread(descriptor(), found.get(), header.size(), 0);
    if (size < 0) {
      return system_error("reading a file of a tier", errno);
    }
    switch (compare_file_headers({found.get(), static_cast<std::size_t>(size)}, header)) {
      case file_contents::something_else:
        return error{error_code::invalid_argument, "size of a file that holds something else than records,",
                     size_before_};
      case file_contents::other_records:
        return another_format("size of a file with records of another format,", size_before_,
                              format_in({found.get(), static_cast<std::size_t>(size)}), format_in(header));
      case file_contents::records: has_header_ = true; break;
      case file_contents::nothing: break;
    }
    return {};
  }

  [[nodiscard]] result<void> write_header(std::span<const std::byte> header) noexcept {
    assert(header.size() % no_bytes.size() == 0 && "whole units of direct access");
    header_bytes_ = header.size();
    const auto written = ::pwrite(descriptor(), header.data(), header.size(), 0);
    if (written != static_cast<ssize_t>(header.size())) {
      return system_error("writing the header of a tier's file", written < 0 ? errno : ENOSPC);
    }
    return ::fsync(descriptor()) != 0 ? result<void>{system_error("syncing a file of a tier", errno)} : result<void>{};
  }

  alignas(record_alignment) static constexpr auto no_bytes = std::array<std::byte, record_alignment>{};

  file_descriptor descriptor_;
  std::int64_t size_before_ = 0;
  std::size_t header_bytes_ = 0;  // that this process may have written
  bool direct_ = false;
  bool is_new_ = false;
  bool has_header_ = false;
  bool may_have_grown_ = false;
};

/// Records in places, in turn over files. A place begins at a multiple of `record_alignment`.
class file_set {
 public:
  struct location {
    int descriptor;
    std::int64_t offset;
  };

  /// `bytes`: of all files together. Errors: see `basic_file_tier::create`.
  [[nodiscard]] static result<file_set> open(const std::vector<std::string>& paths, std::int64_t bytes,
                                             const record_format& format, std::chrono::nanoseconds patience) {
    auto set = file_set{};
    const auto num_files = static_cast<std::int64_t>(paths.size());
    if (num_files == 0) {
      return error{error_code::invalid_argument, "number of a tier's files", 0, 1};
    }
    set.header_bytes_ = static_cast<std::int64_t>(format.header_bytes());
    set.record_bytes_ = static_cast<std::int64_t>(format.record_bytes());
    set.places_per_file_ = (std::max(bytes, std::int64_t{0}) / num_files - set.header_bytes_) / set.record_bytes_;
    if (set.places_per_file_ < 1) {
      return error{error_code::invalid_argument, "bytes of a tier's files", bytes,
                   num_files * (set.header_bytes_ + set.record_bytes_)};
    }
    const auto header = make_file_header(format);
    if (!header) {
      return header.error();
    }
    const auto file_bytes = set.header_bytes_ + set.places_per_file_ * set.record_bytes_;
    const auto done = set.prepare(paths, file_bytes, {header->get(), format.header_bytes()}, patience);
    return done ? result<file_set>{std::move(set)} : done.error();
  }

  [[nodiscard]] std::int64_t num_places() const noexcept { return places_per_file_ * num_files(); }
  [[nodiscard]] std::size_t record_bytes() const noexcept { return static_cast<std::size_t>(record_bytes_); }

  /// Whether all transfers bypass the page cache.
  [[nodiscard]] bool direct() const noexcept { return std::ranges::all_of(files_, &preallocated_file::direct); }

  [[nodiscard]] location locate(std::int64_t place) const noexcept {
    const auto& file = files_[static_cast<std::size_t>(place % num_files())];
    return {file.descriptor(), header_bytes_ + place / num_files() * record_bytes_};
  }

 private:
  [[nodiscard]] std::int64_t num_files() const noexcept { return static_cast<std::int64_t>(files_.size()); }

  /// Opens all files, then allocates all, and cuts them only when nothing can fail any more.
  [[nodiscard]] result<void> prepare(const std::vector<std::string>& paths, std::int64_t bytes,
                                     std::span<const std::byte> header, std::chrono::nanoseconds patience) {
    files_.resize(paths.size());
    auto done = result<void>{};
    for (std::size_t i = 0; done && i < paths.size(); ++i) {
      done = about_file(files_[i].open(paths[i], header, patience), paths[i]);
    }
    for (std::size_t i = 0; done && i < paths.size(); ++i) {
      done = about_file(files_[i].allocate(bytes, header), paths[i]);
    }
    for (std::size_t i = 0; i < paths.size(); ++i) {
      done ? files_[i].cut(bytes) : files_[i].undo(paths[i]);
    }
    return done;
  }

  std::vector<preallocated_file> files_;
  std::int64_t header_bytes_ = 0;
  std::int64_t record_bytes_ = 0;
  std::int64_t places_per_file_ = 0;
};

}  // namespace pagedkv::detail
