#include "allocation_failure.hpp"

#include <cstdlib>
#include <new>

namespace {

thread_local auto calls_left = -1L;

}  // namespace

void pagedkv::test::fail_allocations_after(long calls) noexcept { calls_left = calls; }

void* operator new(std::size_t bytes) {
  if (calls_left == 0) {
    throw std::bad_alloc{};
  }
  calls_left -= calls_left > 0 ? 1 : 0;
  if (auto* const memory = std::malloc(bytes == 0 ? 1 : bytes)) {
    return memory;
  }
  throw std::bad_alloc{};
}

// The standard's other forms call the first one, but a sanitizer's need not.
void* operator new[](std::size_t bytes) { return operator new(bytes); }
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  try {
    return operator new(bytes);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
void* operator new[](std::size_t bytes, const std::nothrow_t& no_throw) noexcept { return operator new(bytes, no_throw); }

void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
