#include "allocation_count.hpp"

#include <atomic>
#include <cstdlib>
#include <new>
#include <utility>

namespace {

auto allocations_so_far = std::atomic<long>{0};
auto fail_at = std::atomic<long>{0};
thread_local auto hook = std::function<void()>{};
thread_local auto in_hook = false;

/// Throws in place of the allocation that is to fail.
void count_allocation() {
  if (hook && !std::exchange(in_hook, true)) {
    hook();
    in_hook = false;
  }
  if (allocations_so_far.fetch_add(1) + 1 == fail_at.load()) {
    throw std::bad_alloc{};
  }
}

}  // namespace

long pagedkv::test::allocation_count() noexcept { return allocations_so_far.load(); }

void pagedkv::test::fail_allocation(long n) noexcept { fail_at.store(n == 0 ? 0 : allocations_so_far.load() + n); }

void pagedkv::test::before_allocations(std::function<void()> called) { hook = std::move(called); }

void* operator new(std::size_t bytes) {
  count_allocation();
  if (auto* memory = std::malloc(bytes == 0 ? 1 : bytes)) {
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
void* operator new[](std::size_t bytes, const std::nothrow_t& no_throw) noexcept {
  return operator new(bytes, no_throw);
}

void* operator new(std::size_t bytes, std::align_val_t alignment) {
  const auto to = static_cast<std::size_t>(alignment);
  count_allocation();
  if (auto* memory = std::aligned_alloc(to, (bytes + to - 1) / to * to)) {
    return memory;
  }
  throw std::bad_alloc{};
}

void* operator new(std::size_t bytes, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  try {
    return operator new(bytes, alignment);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
