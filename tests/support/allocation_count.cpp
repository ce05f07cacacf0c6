#include "allocation_count.hpp"

#include <atomic>
#include <cstdlib>
#include <new>

namespace {

auto count = std::atomic<long>{0};

}  // namespace

long pagedkv::test::allocation_count() noexcept { return count.load(); }

void* operator new(std::size_t bytes) {
  count.fetch_add(1);
  if (auto* memory = std::malloc(bytes == 0 ? 1 : bytes)) {
    return memory;
  }
  throw std::bad_alloc{};
}

void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
