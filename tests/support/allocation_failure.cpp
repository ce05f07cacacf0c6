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

void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
