#pragma once

#include <pagedkv/policy/allocator/host_allocator.hpp>

#if defined(__linux__)
  #include <sys/mman.h>

  #include <cstdint>
#endif

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

}  // namespace pagedkv
