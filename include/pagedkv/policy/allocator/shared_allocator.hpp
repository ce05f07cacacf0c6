#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>
#include <pagedkv/policy/allocator/concept.hpp>

#include <cstddef>
#include <memory>
#include <utility>

namespace pagedkv {

/// Host memory that other processes on this host can map, by a file descriptor which they inherit or receive over a
/// Unix socket. Zero-initialised. One allocation at a time, which suffices a cache; copies of the allocator share it,
/// so a caller keeps one to ask for the descriptor. Linux only.
class shared_allocator {
 public:
  [[nodiscard]] std::byte* allocate(std::size_t bytes, std::size_t /*alignment*/) noexcept {
    if (*descriptor_ >= 0) {
      return nullptr;
    }
    const auto made = ::memfd_create("pagedkv", MFD_CLOEXEC);
    if (made < 0) {
      return nullptr;
    }
    auto* const address =
        ::ftruncate(made, static_cast<::off_t>(bytes)) == 0
            ? ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, made, 0)
            : MAP_FAILED;
    if (address == MAP_FAILED) {
      ::close(made);
      return nullptr;
    }
    *descriptor_ = made;
    return static_cast<std::byte*>(address);
  }

  void deallocate(std::byte* pointer, std::size_t bytes) noexcept {
    ::munmap(pointer, bytes);
    ::close(std::exchange(*descriptor_, -1));
  }

  /// The allocation's descriptor; -1 without one. Closed with it.
  [[nodiscard]] int descriptor() const noexcept { return *descriptor_; }

 private:
  std::shared_ptr<int> descriptor_ = std::make_shared<int>(-1);
};

static_assert(allocator<shared_allocator>);

/// Another process's memory of a `shared_allocator`, read only, until the end of the scope.
class shared_mapping {
 public:
  /// Null data when the system refuses.
  shared_mapping(int descriptor, std::size_t bytes) noexcept : bytes_(bytes) {
    auto* const address = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, descriptor, 0);
    start_ = address == MAP_FAILED ? nullptr : static_cast<std::byte*>(address);
  }
  shared_mapping(const shared_mapping&) = delete;
  shared_mapping& operator=(const shared_mapping&) = delete;
  ~shared_mapping() {
    if (start_ != nullptr) {
      ::munmap(start_, bytes_);
    }
  }

  /// The start of the memory; null when the system refused.
  [[nodiscard]] std::byte* data() const noexcept { return start_; }

 private:
  std::size_t bytes_;
  std::byte* start_;
};

}  // namespace pagedkv
