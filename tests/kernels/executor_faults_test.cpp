// Errors that only the host executor can produce: planned runtime failures, and kernels at fault.

#include "../support/allocation_failure.hpp"
#include "../support/printing.hpp"
#include "reference.hpp"
#include "run_kernel.hpp"
#include "target.hpp"

#include <pagedkv/core/ids.hpp>
#include <pagedkv/device/mapping_allocator.hpp>
#include <pagedkv/device/stream.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <algorithm>
#include <atomic>
#include <latch>
#include <thread>

namespace {

using namespace pagedkv;
using namespace pagedkv::test;

/// Lets `num_calls` runtime calls succeed and later ones fail until the end of the scope.
class failing_runtime {
 public:
  failing_runtime(std::int64_t num_calls, runtime::status failure) {
    executor::failures().fail_after(num_calls, failure);
  }
  failing_runtime(const failing_runtime&) = delete;
  failing_runtime& operator=(const failing_runtime&) = delete;
  ~failing_runtime() { executor::failures().clear(); }
};

TEST_CASE("Without a device the backend throws one clear sentence", "[hip]") {
  const auto failing = failing_runtime(0, runtime::error_no_device);
  CHECK_THROWS_WITH(hip_backend(),
                    "backend failure: the search for a device answered 100 "
                    "(no device is detected)");
}

TEST_CASE("Every call that the runtime refuses becomes an error with the call and the runtime's words", "[hip]") {
  auto target = hip_target<0>();
  const auto layout = plan<int8, nhd_by_layer>(make_config(16, 4, 1, 1, 64));
  const auto bytes = std::vector<std::byte>(static_cast<std::size_t>(layout.bytes), std::byte{1});
  const auto storage = target_array<std::byte, hip_target<0>>(target, bytes);
  const auto mapping = target_array<slot, hip_target<0>>(target, {slot{0}});
  const auto view = at(layout.view, storage.data());
  const auto slots = std::span<const slot>(mapping.data(), 1);
  const auto pairs = std::vector<block_pair>{{0, 1}};
  const auto swaps = std::vector<block_pair>{{0, 1}, {1, 0}};
  auto event = hip::event();
  const auto refused = [](const result<void>& outcome, const char* call) {
    REQUIRE(outcome.has_error());
    CHECK(outcome.error().code == error_code::backend_failure);
    CHECK(outcome.error().message() ==
          std::string("backend failure: ") + call + " answered 9 (invalid configuration argument)");
  };
  {
    const auto failing = failing_runtime(0, runtime::error_invalid_configuration);
    auto& backend = target.backend;
    const auto stream = target.stream();
    refused(backend.append<int8>(view, 0, slots, {nullptr, 0, 0, 1, view.num_kv_heads, view.head_dim},
                                 {nullptr, 0, 0, 1, view.num_kv_heads, view.head_dim}, stream),
            "launch of append");
    refused(backend.gather<int8>(view, 0, slots, {nullptr, 0, 0, 1, view.num_kv_heads, view.head_dim},
                                 {nullptr, 0, 0, 1, view.num_kv_heads, view.head_dim}, stream),
            "launch of gather");
    refused(backend.copy_blocks(view, pairs, stream), "launch of copy_blocks");
    refused(backend.move_blocks(view, pairs, stream), "launch of move_blocks");
    refused(backend.move_blocks(view, swaps, stream), "launch of move_blocks");
    refused(backend.synchronize(stream), "the wait for a stream");
    refused(hip::swap_blocks(view, view, pairs, runtime::device_to_host, stream), "swap_blocks");
    refused(event.record(stream), "the recording of an event");
    refused(event.synchronize(), "the wait for an event");
    refused(event.hold(stream), "a stream's wait for an event");
    CHECK(event.reached().has_error());
    CHECK_THROWS_WITH(hip::stream(), Catch::Matchers::ContainsSubstring("the creation of a stream"));
    CHECK_THROWS_WITH(hip::event(), Catch::Matchers::ContainsSubstring("the creation of an event"));
  }
  CHECK(storage.values() == bytes);
}

TEST_CASE("Mapping that fails at any call maps nothing", "[hip]") {
  auto allocator = hip::mapping_allocator();
  const auto granule = allocator.granule();
  auto* const start = allocator.reserve(4 * granule, 256);
  REQUIRE(start != nullptr);
  const auto used_before = executor::memory().used();
  auto num_calls = std::int64_t{0};
  for (auto mapped = false; !mapped; ++num_calls) {
    const auto failing = failing_runtime(num_calls, runtime::error_out_of_memory);
    mapped = allocator.map(start, 4 * granule);
    CHECK(executor::memory().used() - used_before == (mapped ? 4 * granule : 0));
  }
  CHECK(num_calls == 6);
  CHECK(executor::memory().contains(start, 4 * granule));
  CHECK_FALSE(executor::memory().release(start));
  allocator.unmap(start, granule);
  CHECK_FALSE(executor::memory().contains(start, 1));
  CHECK(executor::memory().contains(start + granule, 3 * granule));
  allocator.deallocate(start, 4 * granule);
  CHECK(executor::memory().used() == used_before);
}

TEST_CASE("The executor's virtual memory is as strict as a device's", "[hip]") {
  const auto granule = executor::mapping_granule;
  auto* start = static_cast<void*>(nullptr);
  CHECK(runtime::reserve_addresses(&start, 0) == runtime::error_out_of_memory);
  REQUIRE(runtime::reserve_addresses(&start, 4 * granule) == runtime::success);
  auto* const bytes = static_cast<std::byte*>(start);
  CHECK(runtime::map_memory(bytes + 4 * granule, granule, 0) == runtime::error_invalid_value);
  CHECK(runtime::map_memory(bytes, granule / 2, 0) == runtime::error_invalid_value);
  REQUIRE(runtime::map_memory(bytes, 2 * granule, 0) == runtime::success);
  CHECK(runtime::map_memory(bytes + granule, granule, 0) == runtime::error_invalid_value);
  CHECK_FALSE(executor::memory().contains(bytes, 1));
  CHECK(runtime::allow_access(bytes, 3 * granule, 0) == runtime::error_invalid_value);
  REQUIRE(runtime::allow_access(bytes, 2 * granule, 0) == runtime::success);
  CHECK(executor::memory().contains(bytes, 2 * granule));
  CHECK(runtime::unmap_memory(bytes, granule) == runtime::error_invalid_value);
  CHECK(runtime::release_addresses(bytes, 4 * granule) == runtime::error_invalid_value);
  CHECK(runtime::unmap_memory(bytes, 2 * granule) == runtime::success);
  CHECK(runtime::unmap_memory(bytes, 2 * granule) == runtime::error_invalid_value);
  CHECK(runtime::release_addresses(bytes, 4 * granule) == runtime::success);
}

TEST_CASE("Virtual memory of the executor is known by what was mapped last, however it was made accessible", "[hip]") {
  const auto granule = executor::mapping_granule;
  auto* start = static_cast<void*>(nullptr);
  REQUIRE(runtime::reserve_addresses(&start, 4 * granule) == runtime::success);
  auto* const bytes = static_cast<std::byte*>(start);
  const auto map_all = [&] {
    for (auto i = std::size_t{0}; i < 4; ++i) {
      REQUIRE(runtime::map_memory(bytes + i * granule, granule, 0) == runtime::success);
    }
  };
  map_all();
  REQUIRE(runtime::allow_access(bytes + granule, granule, 0) == runtime::success);
  REQUIRE(runtime::allow_access(bytes, 4 * granule, 0) == runtime::success);
  CHECK(executor::memory().contains(bytes + granule, 2 * granule));
  REQUIRE(runtime::unmap_memory(bytes, 4 * granule) == runtime::success);
  CHECK_FALSE(executor::memory().contains(bytes + granule, 1));
  map_all();
  REQUIRE(runtime::allow_access(bytes, granule, 0) == runtime::success);
  REQUIRE(runtime::allow_access(bytes + 2 * granule, 2 * granule, 0) == runtime::success);
  REQUIRE(runtime::unmap_memory(bytes, 3 * granule) == runtime::success);
  CHECK_FALSE(executor::memory().contains(bytes, 1));
  CHECK_FALSE(executor::memory().contains(bytes + 2 * granule, 1));
  CHECK(executor::memory().contains(bytes + 3 * granule, granule));
  REQUIRE(runtime::unmap_memory(bytes + 3 * granule, granule) == runtime::success);
  CHECK(runtime::release_addresses(bytes, 4 * granule) == runtime::success);
}

TEST_CASE("No access reaches from one reservation of virtual memory into another", "[hip]") {
  const auto granule = executor::mapping_granule;
  auto starts = std::vector<std::byte*>();
  for (auto i = 0; i < 3; ++i) {
    auto* start = static_cast<void*>(nullptr);
    REQUIRE(runtime::reserve_addresses(&start, granule) == runtime::success);
    REQUIRE(runtime::map_memory(start, granule, 0) == runtime::success);
    REQUIRE(runtime::allow_access(start, granule, 0) == runtime::success);
    starts.push_back(static_cast<std::byte*>(start));
  }
  for (auto* const start : starts) {
    CHECK(executor::memory().contains(start, granule));
    CHECK_FALSE(executor::memory().contains(start, granule + 1));
  }
  for (auto* const start : starts) {
    REQUIRE(runtime::unmap_memory(start, granule) == runtime::success);
    CHECK(runtime::release_addresses(start, granule) == runtime::success);
  }
}

TEST_CASE("A run of neighbouring blocks is swapped by one copy, scattered blocks by one launch", "[hip]") {
  auto target = hip_target<0>();
  const auto swap_within = [&](const storage_plan& layout, const std::vector<block_pair>& pairs, std::int64_t calls) {
    const auto bytes = std::vector<std::byte>(static_cast<std::size_t>(layout.bytes));
    const auto from = target_array<std::byte, hip_target<0>>(target, bytes);
    const auto to = target_array<std::byte, hip_target<0>>(target, bytes);
    const auto failing = failing_runtime(calls, runtime::error_out_of_memory);
    const auto swapped = hip::swap_blocks(at(layout.view, from.data()), at(layout.view, to.data()), pairs,
                                          runtime::device_to_host, target.stream());
    executor::failures().clear();
    REQUIRE(target.backend.synchronize(target.stream()));
    return swapped.has_value();
  };
  auto run = std::vector<block_pair>();
  auto scattered = std::vector<block_pair>();
  for (auto i = 0; i < 40; ++i) {
    run.push_back({i, i + 3});
    scattered.push_back({i, 43 - i});
  }
  for (const auto& layout : {plan<float32, nhd_by_layer>(make_config(16, 44, 3, 1, 64)),
                             plan<float32, nhd_by_block>(make_config(16, 44, 3, 1, 64)),
                             plan<float32, nhd_by_layer>(make_config(16, 44, 1, 16, 256))}) {
    CHECK(swap_within(layout, run, 1));
    CHECK_FALSE(swap_within(layout, run, 0));
    CHECK(swap_within(layout, scattered, 1));
  }
}

/// Lets a stream wait until this is set, or for some 200,000 turns of its thread.
void wait_for_flag(runtime::stream, runtime::status, void* flag) {
  const auto& set = *static_cast<std::atomic<bool>*>(flag);
  for (auto turn = 0; turn < 200'000 && !set; ++turn) {
    std::this_thread::yield();
  }
}

TEST_CASE("After a swap that fails, no copy is under way", "[hip]") {
  auto target = hip_target<0>();
  const auto layout = plan<float32, nhd_by_layer>(make_config(256, 4, 1, 16, 64));  // blocks of 2 MiB
  const auto half = static_cast<std::size_t>(layout.bytes) / 2;
  const auto from = target_array<std::byte, hip_target<0>>(target, std::vector<std::byte>(half));
  const auto to = target_array<std::byte, hip_target<0>>(target, std::vector<std::byte>(2 * half));
  // Two runs, one copy each. The device has no memory for the source of the second one.
  const auto pairs = std::vector<block_pair>{{0, 2}, {1, 3}, {2, 0}, {3, 1}};
  auto returned = std::atomic<bool>{false};
  REQUIRE(runtime::add_callback(target.stream(), wait_for_flag, &returned) == runtime::success);
  const auto swapped = hip::swap_blocks(at(layout.view, from.data()), at(layout.view, to.data()), pairs,
                                        runtime::device_to_host, target.stream());
  std::fill_n(to.data() + half, half, std::byte{7});  // as the next owner of these blocks does
  returned = true;
  REQUIRE(swapped.has_error());
  CHECK(swapped.error().code == error_code::backend_failure);
  auto expected = std::vector<std::byte>(half);
  expected.resize(2 * half, std::byte{7});
  CHECK(std::ranges::equal(to.values(), expected));
}

TEST_CASE("A slot or position outside its range is reported, and earlier tokens stay written", "[hip]") {
  auto target = hip_target<0>();
  const auto config = make_config(16, 4, 1, 1, 64);
  const auto layout = plan<float32, nhd_by_layer>(config);
  const auto bytes = std::vector<std::byte>(static_cast<std::size_t>(layout.bytes), std::byte{1});
  const auto storage = target_array<std::byte, hip_target<0>>(target, bytes);
  const auto view = at(layout.view, storage.data());
  const auto rows = target_array<float, hip_target<0>>(target, std::vector<float>(64));
  const auto in = token_rows<const float>{rows.data(), 64, 64, 1, 1, 64};
  for (const auto wrong : {std::int64_t{64}, std::int64_t{1} << 40}) {
    const auto mapping = target_array<slot, hip_target<0>>(target, {slot{wrong}});
    const auto slots = std::span<const slot>(mapping.data(), 1);
    REQUIRE(target.backend.append<float32>(view, 0, slots, in, in, target.stream()));
    const auto told = target.backend.synchronize(target.stream());
    REQUIRE(told.has_error());
    CHECK(told.error().detail == std::string("a kernel was at fault"));
    const auto found = executor::faults().take();
    REQUIRE(found);
    CHECK(found->kind == executor::fault_kind::failed_check);
    CHECK(found->detail == "block within the storage");
    CHECK(found->kernel.find("append_kernel") != std::string::npos);
  }
  const auto mapping = target_array<slot, hip_target<0>>(target, {slot{5}});
  const auto slots = std::span<const slot>(mapping.data(), 1);
  const auto positions = target_array<std::int64_t, hip_target<0>>(target, {std::int64_t{8}});
  REQUIRE(hip::rope_append<float32, float32, kernels::rope_pairing::halves>(
      view, 0, slots, in, in, {positions.data(), 1}, {rows.data(), 8, 8}, {}, target.stream()));
  CHECK(target.backend.synchronize(target.stream()).has_error());
  CHECK(executor::faults().take()->detail == "position within the table");
  CHECK(storage.values() == bytes);
}

TEST_CASE("Rows that end too early are an access out of bounds", "[hip]") {
  auto target = hip_target<0>();
  const auto layout = plan<float32, nhd_by_layer>(make_config(16, 4, 1, 1, 64));
  const auto storage =
      target_array<std::byte, hip_target<0>>(target, std::vector<std::byte>(static_cast<std::size_t>(layout.bytes)));
  const auto rows = target_array<float, hip_target<0>>(target, std::vector<float>(3 * 64 - 1));
  const auto mapping = target_array<slot, hip_target<0>>(target, {slot{0}, slot{1}, slot{2}});
  const auto in = token_rows<const float>{rows.data(), 64, 64, 3, 1, 64};
  REQUIRE(
      target.backend.append<float32>(at(layout.view, storage.data()), 0, {mapping.data(), 3}, in, in, target.stream()));
  CHECK(target.backend.synchronize(target.stream()).has_error());
  const auto found = executor::faults().take();
  REQUIRE(found);
  CHECK(found->kind == executor::fault_kind::global_out_of_bounds);
  CHECK(found->lane == 2 * 16 + 15);
}

TEST_CASE("Moves without working memory are an error, at whichever allocation", "[hip]") {
  auto target = hip_target<0>();
  const auto layout = plan<float32, nhd_by_layer>(make_config(1, 8, 1, 1, 16));
  auto random = std::mt19937(33);
  const auto before = random_bytes(static_cast<std::size_t>(layout.bytes), random);
  const auto storage = target_array<std::byte, hip_target<0>>(target, before);
  const auto pairs = std::vector<block_pair>{{0, 1}, {1, 0}, {2, 3}, {3, 4}, {5, 6}};
  auto fail_at = 0L;
  for (;; ++fail_at) {
    fail_allocations_after(fail_at);
    const auto moved = target.backend.move_blocks(at(layout.view, storage.data()), pairs, target.stream());
    fail_allocations_after(-1);
    if (moved) {
      break;
    }
    const auto code = moved.error().code;
    CHECK((code == error_code::out_of_memory || code == error_code::backend_failure));
  }
  CHECK(fail_at > 3);
}

TEST_CASE("A call's arguments may be destroyed when it returns", "[hip]") {
  auto target = hip_target<0>();
  auto random = std::mt19937(32);
  const auto layout = plan<float32, nhd_by_layer>(make_config(1, 8, 1, 1, 16));
  auto expected = random_bytes(static_cast<std::size_t>(layout.bytes), random);
  const auto storage = target_array<std::byte, hip_target<0>>(target, expected);
  auto gate = std::latch(1);
  const auto wait = [](runtime::stream, runtime::status, void* latch) { static_cast<std::latch*>(latch)->wait(); };
  REQUIRE(runtime::add_callback(target.stream(), wait, &gate) == runtime::success);
  auto event = hip::event();
  {
    const auto moves = std::vector<block_pair>{{0, 1}, {1, 0}};
    const auto copies = std::vector<block_pair>{{1, 5}, {2, 6}};
    REQUIRE(target.backend.move_blocks(at(layout.view, storage.data()), moves, target.stream()));
    REQUIRE(target.backend.copy_blocks(at(layout.view, storage.data()), copies, target.stream()));
    REQUIRE(event.record(target.stream()));
  }
  CHECK_FALSE(event.reached().value());
  gate.count_down();
  REQUIRE(event.synchronize());
  reference_move(expected, expected, layout.view, layout.view, {{0, 1}, {1, 0}});
  reference_move(expected, expected, layout.view, layout.view, {{1, 5}, {2, 6}});
  CHECK(storage.values() == expected);
}

}  // namespace
