#pragma once

#include <pagedkv/policy/allocator/concept.hpp>

#include <algorithm>
#include <cstdlib>

namespace pagedkv {

/// Aligned memory of the C library. Not initialised. Thread-safe.
struct host_allocator {
  [[nodiscard]] std::byte* allocate(std::size_t bytes, std::size_t alignment) noexcept {
    // `aligned_alloc` needs an alignment of at least a pointer's, and a size that is a multiple of it.
    const auto unit = std::max(alignment, alignof(std::max_align_t));
    const auto padded = (bytes + unit - 1) / unit * unit;
    return padded < bytes ? nullptr : static_cast<std::byte*>(std::aligned_alloc(unit, padded));
  }

  void deallocate(std::byte* pointer, std::size_t /*bytes*/) noexcept { std::free(pointer); }
};

static_assert(allocator<host_allocator>);

}  // namespace pagedkv
