#pragma once

#include <pagedkv/policy/allocator/concept.hpp>
#include <pagedkv/policy/allocator/host_allocator.hpp>

#include <cstddef>
#include <cstdint>

#if __has_include(<sys/mman.h>)
  #include <sys/mman.h>
#endif

// Allocators that ask the system for pages: huge ones, or addresses with pages behind a part of them.

namespace pagedkv {

#if defined(__linux__)

/// Memory aligned to a huge page, for which the kernel is asked to use huge pages: they reduce translation misses in
/// large caches. Without a free huge page, the kernel uses ordinary memory. Requests below one huge page go to
/// `host_allocator`. Zero-initialised from one huge page up. Thread-safe.
class huge_page_allocator {
 public:
  /// On x86-64, and on AArch64 with 4 KiB pages. Where huge pages are larger, the request has no effect.
  static constexpr std::size_t huge_page_bytes = std::size_t{2} << 20;

  [[nodiscard]] std::byte* allocate(std::size_t bytes, std::size_t alignment) noexcept {
    return bytes < huge_page_bytes ? small_.allocate(bytes, alignment) : map(bytes);
  }

  void deallocate(std::byte* pointer, std::size_t bytes) noexcept {
    if (bytes < huge_page_bytes) {
      small_.deallocate(pointer, bytes);
    } else {
      unmap(pointer, whole_pages(bytes));
    }
  }

 private:
  [[nodiscard]] static std::size_t whole_pages(std::size_t bytes) noexcept {
    return (bytes + huge_page_bytes - 1) / huge_page_bytes * huge_page_bytes;
  }

  /// Maps one huge page too many, and unmaps the parts outside the aligned range.
  [[nodiscard]] static std::byte* map(std::size_t bytes) noexcept {
    const auto length = whole_pages(bytes);
    const auto mapped = length + huge_page_bytes;
    if (length < bytes || mapped < length) {
      return nullptr;
    }
    void* const address = ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (address == MAP_FAILED) {
      return nullptr;
    }
    auto* const start = static_cast<std::byte*>(address);
    const auto before = (huge_page_bytes - reinterpret_cast<std::uintptr_t>(start) % huge_page_bytes) % huge_page_bytes;
    unmap(start, before);
    unmap(start + before + length, huge_page_bytes - before);
    ::madvise(start + before, length, MADV_HUGEPAGE);
    return start + before;
  }

  static void unmap(std::byte* pointer, std::size_t bytes) noexcept {
    if (bytes != 0) {
      ::munmap(pointer, bytes);
    }
  }

  host_allocator small_;
};

static_assert(allocator<huge_page_allocator>);

#else

/// Other systems than Linux have no such request.
using huge_page_allocator = host_allocator;

#endif

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
