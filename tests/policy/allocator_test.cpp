#include "../support/failing_allocator.hpp"
#include "../support/on_threads.hpp"

#include <pagedkv/policy/allocator/all.hpp>

#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <limits>
#include <memory>
#include <vector>

#include <unistd.h>

using namespace pagedkv;
using namespace pagedkv::test;

// Otherwise, a sanitizer would end the program where allocators must return null.
extern "C" const char* __asan_default_options() { return "allocator_may_return_null=1"; }
extern "C" const char* __tsan_default_options() { return "allocator_may_return_null=1"; }

namespace {

/// A user's allocator: allocates from a fixed arena, from front to back, and reuses nothing.
class arena_allocator {
 public:
  static constexpr auto arena_bytes = std::size_t{64} << 20;

  [[nodiscard]] std::byte* allocate(std::size_t bytes, std::size_t alignment) noexcept {
    void* next = arena_.get() + used_;
    auto left = arena_bytes - used_;
    if (std::align(alignment, bytes, next, left) == nullptr) {
      return nullptr;
    }
    used_ = arena_bytes - left + bytes;
    return static_cast<std::byte*>(next);
  }

  void deallocate(std::byte*, std::size_t) noexcept {}

 private:
  std::unique_ptr<std::byte[]> arena_ = std::make_unique_for_overwrite<std::byte[]>(arena_bytes);
  std::size_t used_ = 0;
};

static_assert(allocator<arena_allocator>);

using allocators = decltype(all_host_allocators{} + policy_list<arena_allocator>{});

struct allocation {
  std::byte* pointer;
  std::size_t bytes;
};

constexpr std::size_t sizes[] = {1, 3, 255, 256, 4096, 4097, (2u << 20) - 1, 2u << 20, (2u << 20) + 1, 5u << 20};

}  // namespace

TEMPLATE_LIST_TEST_CASE("allocations are aligned, apart and usable to the last byte", "[allocator]", allocators) {
  auto memory = TestType{};
  auto live = std::vector<allocation>{};
  for (const auto bytes : sizes) {
    for (auto alignment = std::size_t{1}; alignment <= 4096; alignment *= 64) {
      auto* const pointer = memory.allocate(bytes, alignment);
      CAPTURE(bytes, alignment);
      REQUIRE(pointer != nullptr);
      CHECK(reinterpret_cast<std::uintptr_t>(pointer) % alignment == 0);
      std::memset(pointer, static_cast<int>(live.size()) + 1, bytes);
      live.push_back({pointer, bytes});
    }
  }
  for (auto i = std::size_t{0}; i < live.size(); ++i) {
    const auto* const begin = live[i].pointer;
    CHECK(std::all_of(begin, begin + live[i].bytes, [i](std::byte b) { return b == static_cast<std::byte>(i + 1); }));
  }
  for (const auto& [pointer, bytes] : live) {
    memory.deallocate(pointer, bytes);
  }
}

TEMPLATE_LIST_TEST_CASE("exhaustion is a null pointer, after which the allocator still works", "[allocator]", allocators) {
  constexpr auto most = std::numeric_limits<std::size_t>::max();
  auto memory = TestType{};
  for (const auto bytes : {most, most - 4095, most - (std::size_t{2} << 20), most / 2, std::size_t{1} << 60}) {
    CAPTURE(bytes);
    CHECK(memory.allocate(bytes, 256) == nullptr);
  }
  auto* const pointer = memory.allocate(100, 256);
  REQUIRE(pointer != nullptr);
  memory.deallocate(pointer, 100);
}

TEMPLATE_LIST_TEST_CASE("memory survives the move of its allocator", "[allocator]", allocators) {
  for (const auto bytes : sizes) {
    auto first = TestType{};
    auto* const pointer = first.allocate(bytes, 256);
    REQUIRE(pointer != nullptr);
    std::memset(pointer, 0x5a, bytes);
    auto second = std::move(first);
    CHECK(std::all_of(pointer, pointer + bytes, [](std::byte b) { return b == std::byte{0x5a}; }));
    second.deallocate(pointer, bytes);
  }
}

TEMPLATE_LIST_TEST_CASE("threads share an allocator of the library", "[allocator]", all_host_allocators) {
  auto memory = TestType{};
  on_threads(4, [&](int) {
    for (auto i = 0; i < 20; ++i) {
      for (const auto bytes : {std::size_t{300}, std::size_t{2} << 20}) {
        auto* const pointer = memory.allocate(bytes, 256);
        if (pointer != nullptr) {
          pointer[bytes - 1] = std::byte{1};
          memory.deallocate(pointer, bytes);
        }
      }
    }
  });
  SUCCEED();
}

#if defined(__linux__)
TEST_CASE("large requests start on a huge page", "[allocator]") {
  auto memory = huge_page_allocator{};
  for (const auto bytes : {huge_page_allocator::huge_page_bytes, 3 * huge_page_allocator::huge_page_bytes + 5}) {
    auto* const pointer = memory.allocate(bytes, 256);
    REQUIRE(pointer != nullptr);
    CHECK(reinterpret_cast<std::uintptr_t>(pointer) % huge_page_allocator::huge_page_bytes == 0);
    CHECK(std::all_of(pointer, pointer + bytes, [](std::byte b) { return b == std::byte{0}; }));
    memory.deallocate(pointer, bytes);
  }
}

TEST_CASE("huge pages give all of their address space back", "[allocator]") {
  const auto mapped_bytes = [] {
    auto pages = std::int64_t{0};
    std::ifstream{"/proc/self/statm"} >> pages;
    return pages * static_cast<std::int64_t>(::sysconf(_SC_PAGESIZE));
  };
  constexpr auto bytes = 5 * huge_page_allocator::huge_page_bytes + 1;
  auto memory = huge_page_allocator{};
  const auto before = mapped_bytes();
  REQUIRE(before > 0);
  for (auto i = 0; i < 1000; ++i) {
    auto* const pointer = memory.allocate(bytes, 256);
    REQUIRE(pointer != nullptr);
    memory.deallocate(pointer, bytes);
  }
  // One huge page kept per call would be 2 GB; the test framework's own allocations are small.
  CHECK(mapped_bytes() - before < 200 * static_cast<std::int64_t>(huge_page_allocator::huge_page_bytes));
}
#endif

using resizable_allocators = policy_list<reserving_allocator>;

TEMPLATE_LIST_TEST_CASE("memory comes and goes behind addresses that stay", "[allocator]", resizable_allocators) {
  auto memory = TestType{};
  const auto granule = memory.granule();
  auto* const start = memory.reserve(8 * granule, 256);
  REQUIRE(start != nullptr);
  CHECK(reinterpret_cast<std::uintptr_t>(start) % 4096 == 0);
  for (auto round = 0; round < 3; ++round) {
    REQUIRE(memory.map(start, 2 * granule));
    REQUIRE(memory.map(start + 2 * granule, granule));
    std::memset(start, 0x5a, 3 * granule);
    memory.unmap(start + granule, 2 * granule);
    REQUIRE(memory.map(start + granule, 7 * granule));
    CHECK(std::all_of(start, start + granule, [](std::byte b) { return b == std::byte{0x5a}; }));
    std::memset(start + granule, 0x3c, 7 * granule);
    memory.unmap(start, 8 * granule);
  }
  REQUIRE(memory.map(start + 4 * granule, granule));
  memory.deallocate(start, 8 * granule);
}

#if defined(__linux__)
TEST_CASE("memory that was unmapped is the system's again", "[allocator]") {
  const auto resident_pages = [] {
    auto pages = std::int64_t{0};
    std::ifstream{"/proc/self/statm"} >> pages >> pages;
    return pages;
  };
  constexpr auto bytes = std::size_t{64} << 20;
  const auto pages = static_cast<std::int64_t>(bytes) / ::sysconf(_SC_PAGESIZE);
  auto memory = reserving_allocator{};
  auto* const start = memory.reserve(bytes, 256);
  REQUIRE(start != nullptr);
  REQUIRE(memory.map(start, bytes));
  const auto before = resident_pages();
  std::memset(start, 1, bytes);
  CHECK(resident_pages() - before > pages / 2);
  memory.unmap(start, bytes);
  CHECK(resident_pages() - before < pages / 2);
  REQUIRE(memory.map(start, bytes));
  CHECK(start[bytes / 2] == std::byte{0});
  memory.deallocate(start, bytes);
}
#endif

TEST_CASE("a failing allocator fails once, at the call it was told", "[allocator]") {
  auto log = allocation_log{.fail_at = 2};
  auto memory = failing_allocator<>{log};
  auto* const first = memory.allocate(100, 256);
  CHECK(first != nullptr);
  CHECK(memory.allocate(100, 256) == nullptr);
  auto copy = memory;
  auto* const third = copy.allocate(50, 256);
  CHECK(third != nullptr);
  CHECK(log.live == 2);
  CHECK(log.live_bytes == 150);
  memory.deallocate(first, 100);
  memory.deallocate(third, 50);
  CHECK(log.live == 0);
  CHECK(log.live_bytes == 0);
}
