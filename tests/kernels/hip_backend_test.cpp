#include "../support/printing.hpp"
#include "reference.hpp"
#include "target.hpp"

#include <pagedkv/core/ids.hpp>
#include <pagedkv/device/allocators.hpp>
#include <pagedkv/device/device.hpp>
#include <pagedkv/device/mapping_allocator.hpp>
#include <pagedkv/device/memory_ledger.hpp>
#include <pagedkv/device/stream.hpp>
#include <pagedkv/storage/block_storage.hpp>

#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

namespace hip_backend_test {

using namespace pagedkv;
using namespace pagedkv::test;

template <class Allocator>
Allocator make_allocator(const hip_target<0>& target) {
  if constexpr (std::is_constructible_v<Allocator, runtime::stream>) {
    return Allocator(target.stream());
  } else {
    return Allocator();
  }
}

TEMPLATE_TEST_CASE("Allocations are aligned as asked, distinct, and reachable by the device", "[hip]",
                   hip::device_allocator, hip::mapping_allocator, hip::pinned_allocator, hip::pool_allocator) {
  const auto target = require_target<hip_target<0>>();
  auto allocator = make_allocator<TestType>(target);
  auto all = std::vector<std::pair<std::byte*, std::size_t>>();
  for (const auto alignment : {1, 16, 256, 512, 4096}) {
    for (const auto bytes : {1, 255, 4096, 3 << 20}) {
      const auto size = static_cast<std::size_t>(bytes);
      auto* const pointer = allocator.allocate(size, static_cast<std::size_t>(alignment));
      REQUIRE(pointer != nullptr);
      CHECK(reinterpret_cast<std::uintptr_t>(pointer) % static_cast<std::uintptr_t>(alignment) == 0);
      CHECK(runtime::fill_async(pointer, static_cast<int>(all.size()), size, target.stream()) == runtime::success);
      all.emplace_back(pointer, size);
    }
  }
  for (auto i = std::size_t{0}; i < all.size(); ++i) {
    const auto [pointer, size] = all[i];
    auto bytes = std::vector<std::byte>(size);
    target.download(bytes.data(), pointer, size);
    CHECK(std::ranges::all_of(bytes, [&](std::byte b) { return b == static_cast<std::byte>(i); }));
  }
  auto moved = std::move(allocator);
  for (const auto& [pointer, size] : all) {
    moved.deallocate(pointer, size);
  }
}

TEMPLATE_TEST_CASE("An allocator that has nothing left answers null", "[hip]", hip::device_allocator,
                   hip::mapping_allocator, hip::pinned_allocator, hip::pool_allocator) {
  const auto target = require_target<hip_target<0>>();
  auto allocator = make_allocator<TestType>(target);
  const auto too_much = std::size_t{1} << 50;
  CHECK(allocator.allocate(too_much, 256) == nullptr);
  CHECK(allocator.allocate(too_much, 4096) == nullptr);
  CHECK(allocator.allocate(~std::size_t{0} - 100, 4096) == nullptr);
}

TEST_CASE("Device memory comes and goes behind addresses that stay", "[hip]") {
  const auto target = require_target<hip_target<0>>();
  auto free_before = std::size_t{0};
  auto free_now = std::size_t{0};
  auto total = std::size_t{0};
  REQUIRE(runtime::get_memory_info(&free_before, &total) == runtime::success);
  {
    auto allocator = hip::mapping_allocator();
    const auto granule = allocator.granule();
    auto* const start = allocator.reserve(6 * granule, 256);
    REQUIRE(start != nullptr);
    const auto fill = [&](std::byte* from, std::size_t granules, int value) {
      return runtime::fill_async(from, value, granules * granule, target.stream()) == runtime::success;
    };
    const auto holds = [&](const std::byte* from, std::size_t granules, int value) {
      auto bytes = std::vector<std::byte>(granules * granule);
      target.download(bytes.data(), from, bytes.size());
      return std::ranges::all_of(bytes, [&](std::byte b) { return b == static_cast<std::byte>(value); });
    };
    for (auto round = 0; round < 3; ++round) {
      REQUIRE(allocator.map(start, 2 * granule));
      REQUIRE(allocator.map(start + 2 * granule, granule));
      REQUIRE(fill(start, 3, 1 + round));
      CHECK(holds(start, 3, 1 + round));
      allocator.unmap(start + granule, 2 * granule);
      REQUIRE(allocator.map(start + granule, 5 * granule));
      REQUIRE(fill(start + granule, 5, 2 + round));
      CHECK(holds(start, 1, 1 + round));
      CHECK(holds(start + granule, 5, 2 + round));
      REQUIRE(runtime::get_memory_info(&free_now, &total) == runtime::success);
      CHECK(free_before - free_now >= 6 * granule);
      allocator.unmap(start, 6 * granule);
    }
    REQUIRE(allocator.map(start + 3 * granule, granule));
    auto moved = std::move(allocator);
    moved.deallocate(start, 6 * granule);
  }
  REQUIRE(runtime::get_memory_info(&free_now, &total) == runtime::success);
  CHECK(free_now == free_before);
}

TEST_CASE("A thousand caches made and released leave the memory accounts as they were", "[hip]") {
  const auto target = require_target<hip_target<0>>();
  auto ledger = hip::memory_ledger();
  const auto config = make_config(16, 64, 2, 2, 64);
  using device_blocks = hip::accounted_allocator<hip::device_allocator>;
  using swapped_blocks = hip::accounted_allocator<hip::pinned_allocator>;
  STATIC_CHECK_FALSE(on_host<device_blocks>);
  STATIC_CHECK(on_host<swapped_blocks>);
  auto free_before = std::size_t{0};
  auto free_after = std::size_t{0};
  auto total = std::size_t{0};
  const auto cycle = [&] {
    auto workspace =
        hip::accounted_allocator(hip::pool_allocator(target.stream()), ledger, hip::memory_purpose::workspace);
    auto* const slots = workspace.allocate(4096, 256);
    REQUIRE(slots != nullptr);
    auto on_device = block_storage<int8, nhd_by_layer, device_blocks>::create(
        config, device_blocks(hip::device_allocator(), ledger, hip::memory_purpose::blocks));
    auto on_host = block_storage<int8, nhd_by_layer, swapped_blocks>::create(
        config, swapped_blocks(hip::pinned_allocator(), ledger, hip::memory_purpose::swap_space));
    REQUIRE((on_device && on_host));
    CHECK(ledger.of(hip::memory_purpose::blocks).bytes == on_device->bytes());
    CHECK(ledger.of(hip::memory_purpose::swap_space).bytes == on_host->bytes());
    workspace.deallocate(slots, 4096);
    return on_device->bytes() + on_host->bytes() + 4096;
  };
  const auto peak = cycle();
  REQUIRE(runtime::synchronize_stream(target.stream()) == runtime::success);
  REQUIRE(runtime::get_memory_info(&free_before, &total) == runtime::success);
  for (auto i = 1; i < 1000; ++i) {
    REQUIRE(cycle() == peak);
  }
  REQUIRE(runtime::synchronize_stream(target.stream()) == runtime::success);
  REQUIRE(runtime::get_memory_info(&free_after, &total) == runtime::success);
  CHECK(free_after == free_before);
  CHECK(ledger.total().bytes == 0);
  CHECK(ledger.total().peak_bytes == peak);
  for (const auto purpose :
       {hip::memory_purpose::blocks, hip::memory_purpose::swap_space, hip::memory_purpose::workspace}) {
    CAPTURE(describe(purpose));
    CHECK(ledger.of(purpose).bytes == 0);
    CHECK(ledger.of(purpose).peak_bytes > 0);
  }
}

TEST_CASE("Block storage says so when the device is full, and the ledger stays empty", "[hip]") {
  static_cast<void>(require_target<hip_target<0>>());
  auto ledger = hip::memory_ledger();
  using device_blocks = hip::accounted_allocator<hip::device_allocator>;
  const auto refused = block_storage<float32, nhd_by_layer, device_blocks>::create(
      make_config(16, 100'000'000, 64, 8, 128),
      device_blocks(hip::device_allocator(), ledger, hip::memory_purpose::blocks));
  REQUIRE(refused.has_error());
  CHECK(refused.error().code == error_code::out_of_memory);
  CHECK(ledger.total().peak_bytes == 0);
}

TEST_CASE("A device that does not exist is refused in one sentence", "[hip]") {
  static_cast<void>(require_target<hip_target<0>>());
  CHECK_THROWS_WITH(hip_backend(99), Catch::Matchers::StartsWith("invalid argument: device is 99, limit "));
  CHECK_THROWS_WITH(hip_backend(-1), "invalid argument: device is -1, limit 0");
  CHECK(hip::connect_peer(0, 0).error().message() == "invalid argument: device, which is its own peer, is 0");
}

TEST_CASE("A step retires by its own event, while other streams go on", "[hip]") {
  auto target = require_target<hip_target<0>>();
  const auto other = hip::stream();
  auto done = hip::event();
  CHECK(done.reached().value());
  const auto layout = plan<float32, nhd_by_layer>(make_config(16, 4, 1, 1, 64));
  auto random = std::mt19937(21);
  auto expected = random_bytes(static_cast<std::size_t>(layout.bytes), random);
  const auto storage = target_array<std::byte, hip_target<0>>(target, expected);
  const auto pairs = std::vector<block_pair>{{0, 1}};
  REQUIRE(target.backend.copy_blocks(at(layout.view, storage.data()), pairs, target.stream()));
  REQUIRE(done.record(target.stream()));
  REQUIRE(done.hold(other.get()));
  REQUIRE(target.backend.copy_blocks(at(layout.view, storage.data()), std::vector<block_pair>{{1, 2}}, other.get()));
  REQUIRE(done.synchronize());
  CHECK(done.reached().value());
  REQUIRE(other.synchronize());
  reference_move(expected, expected, layout.view, layout.view, pairs);
  reference_move(expected, expected, layout.view, layout.view, {{1, 2}});
  CHECK(storage.values() == expected);
}

}  // namespace hip_backend_test
