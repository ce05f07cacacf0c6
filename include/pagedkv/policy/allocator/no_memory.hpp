#pragma once

#include <pagedkv/policy/allocator/concept.hpp>

namespace pagedkv {

/// None: K/V lies in tensors of the engine's, which block ids and slots index. A cache with it has no `write`, `read`
/// or `view`; it takes a backend that uses no storage, as `copy_list` does.
struct no_memory {
  static constexpr bool provides_memory = false;

  [[nodiscard]] std::byte* allocate(std::size_t /*bytes*/, std::size_t /*alignment*/) noexcept { return nullptr; }
  void deallocate(std::byte* /*pointer*/, std::size_t /*bytes*/) noexcept {}
};

static_assert(allocator<no_memory> && !provides_memory<no_memory>);

}  // namespace pagedkv
