#pragma once

#include <pagedkv/policy/allocator/host_allocator.hpp>

#include <cstddef>
#include <cstring>

namespace pagedkv::test {

/// Memory that comes and goes in such small pieces that every change of a pool's size maps or unmaps some. Numbers in
/// memory that is not mapped, or was mapped again, are NaN.
struct small_granules : host_allocator {
  [[nodiscard]] std::size_t granule() const noexcept { return 256; }

  [[nodiscard]] std::byte* reserve(std::size_t bytes, std::size_t alignment) noexcept {
    auto* const pointer = allocate(bytes, alignment);
    if (pointer != nullptr) {
      unmap(pointer, bytes);
    }
    return pointer;
  }

  [[nodiscard]] bool map(std::byte*, std::size_t) noexcept { return true; }
  // Out of line: inlined, g++ takes the size of the memory for 0.
  [[gnu::noinline]] void unmap(std::byte* pointer, std::size_t bytes) noexcept { std::memset(pointer, 0xFF, bytes); }
};

static_assert(resizable_allocator<small_granules>);

}  // namespace pagedkv::test
