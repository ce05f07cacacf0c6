#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>

namespace pagedkv {

/// Where block storage comes from. Exhaustion is a value: a null pointer.
///
/// | requirement                          | meaning                                                               |
/// |--------------------------------------|-----------------------------------------------------------------------|
/// | `a.allocate(bytes, alignment)`       | memory, or null; `bytes` > 0, `alignment` a power of two up to 4096   |
/// | `a.deallocate(pointer, bytes)`       | gives back what `allocate(bytes, …)` returned; never fails            |
template <class A>
concept allocator = std::move_constructible<A> && requires(A a, std::size_t bytes, std::byte* pointer) {
  { a.allocate(bytes, bytes) } noexcept -> std::same_as<std::byte*>;
  { a.deallocate(pointer, bytes) } noexcept;
};

}  // namespace pagedkv
