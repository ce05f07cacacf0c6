#pragma once

#include <pagedkv/policy/allocator/concept.hpp>

#if __has_include(<sys/mman.h>)
  #include <sys/mman.h>
#else
  #include <pagedkv/policy/allocator/host_allocator.hpp>
#endif

namespace pagedkv {

#if __has_include(<sys/mman.h>)

/// Reserves host addresses and puts pages behind parts of them. Zero-initialised whenever mapped. Thread-safe.
class reserving_allocator {
 public:
  /// The largest page size that is common; every other one divides it.
  [[nodiscard]] std::size_t granule() const noexcept { return std::size_t{64} << 10; }

  [[nodiscard]] std::byte* reserve(std::size_t bytes, std::size_t /*alignment*/) noexcept {
    return map_pages(nullptr, bytes, PROT_NONE, 0);
  }

  [[nodiscard]] bool map(std::byte* pointer, std::size_t bytes) noexcept {
    return ::mprotect(pointer, bytes, PROT_READ | PROT_WRITE) == 0;
  }

  /// Fresh pages without access take the place of the old ones, whose memory the system then has back. Without memory
  /// for its own records, the system keeps the range writable and takes only its contents.
  void unmap(std::byte* pointer, std::size_t bytes) noexcept {
    if (map_pages(pointer, bytes, PROT_NONE, MAP_FIXED) == nullptr) {
      ::madvise(pointer, bytes, MADV_DONTNEED);
    }
  }

  [[nodiscard]] std::byte* allocate(std::size_t bytes, std::size_t /*alignment*/) noexcept {
    return map_pages(nullptr, bytes, PROT_READ | PROT_WRITE, 0);
  }

  void deallocate(std::byte* pointer, std::size_t bytes) noexcept { ::munmap(pointer, bytes); }

 private:
  /// Null when the system refuses. Pages are aligned as much as a caller may ask for.
  [[nodiscard]] static std::byte* map_pages(std::byte* at, std::size_t bytes, int access, int more_flags) noexcept {
    void* const address = ::mmap(at, bytes, access, MAP_PRIVATE | MAP_ANONYMOUS | more_flags, -1, 0);
    return address == MAP_FAILED ? nullptr : static_cast<std::byte*>(address);
  }
};

static_assert(resizable_allocator<reserving_allocator>);

#else

/// Systems without `mmap` have no such memory; a cache that shrinks there keeps its memory.
using reserving_allocator = host_allocator;

#endif

}  // namespace pagedkv
