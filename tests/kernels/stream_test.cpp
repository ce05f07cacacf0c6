#include "run_kernel.hpp"

#include <catch2/catch_test_macros.hpp>

#include <latch>

namespace {

using namespace pagedkv;
using test::device_array;

struct stream_owner {
  stream_owner() { REQUIRE(runtime::create_stream(&handle) == runtime::success); }
  stream_owner(const stream_owner&) = delete;
  stream_owner& operator=(const stream_owner&) = delete;
  ~stream_owner() { static_cast<void>(runtime::destroy_stream(handle)); }

  runtime::stream handle = nullptr;
};

struct event_owner {
  event_owner() { REQUIRE(runtime::create_event(&handle) == runtime::success); }
  event_owner(const event_owner&) = delete;
  event_owner& operator=(const event_owner&) = delete;
  ~event_owner() { static_cast<void>(runtime::destroy_event(handle)); }

  runtime::event handle = nullptr;
};

// Stops a stream until the test lets it go on.
void hold(const stream_owner& stream, std::latch& gate) {
  const auto wait = [](runtime::stream, runtime::status, void* latch) { static_cast<std::latch*>(latch)->wait(); };
  REQUIRE(runtime::add_callback(stream.handle, wait, &gate) == runtime::success);
}

PAGEDKV_KERNEL void increment(int* value) { kernels::atomic_add(value, 1); }

PAGEDKV_KERNEL void double_value(int* value) { kernels::store(value, kernels::load(value) * 2); }

PAGEDKV_KERNEL void read_past_the_end(int* value) { kernels::store(value, kernels::load(value + 1)); }

TEST_CASE("Work of a stream runs later and in order") {
  const auto stream = stream_owner();
  const auto value = device_array<int>(1);
  auto gate = std::latch(1);
  hold(stream, gate);
  REQUIRE(kernels::launch<increment>({{2}, {32}}, stream.handle, value.data()) == runtime::success);
  REQUIRE(kernels::launch<double_value>({{1}, {1}}, stream.handle, value.data()) == runtime::success);
  auto copy = 0;
  REQUIRE(runtime::copy_async(&copy, value.data(), sizeof(int), runtime::device_to_host, stream.handle) ==
          runtime::success);
  REQUIRE(runtime::fill_async(value.data(), 0, sizeof(int), stream.handle) == runtime::success);
  CHECK(runtime::query_stream(stream.handle) == runtime::error_not_ready);
  CHECK(copy == 0);
  gate.count_down();
  REQUIRE(runtime::synchronize_stream(stream.handle) == runtime::success);
  CHECK(runtime::query_stream(stream.handle) == runtime::success);
  CHECK(copy == 128);
  CHECK(value[0] == 0);
}

TEST_CASE("An event is reached when the work before it is done, and orders another stream") {
  const auto first = stream_owner();
  const auto second = stream_owner();
  const auto event = event_owner();
  const auto value = device_array<int>(1);
  CHECK(runtime::query_event(event.handle) == runtime::success);
  auto gate = std::latch(1);
  hold(first, gate);
  REQUIRE(kernels::launch<increment>({{1}, {3}}, first.handle, value.data()) == runtime::success);
  REQUIRE(runtime::record_event(event.handle, first.handle) == runtime::success);
  REQUIRE(runtime::wait_for_event(second.handle, event.handle) == runtime::success);
  REQUIRE(kernels::launch<double_value>({{1}, {1}}, second.handle, value.data()) == runtime::success);
  CHECK(runtime::query_event(event.handle) == runtime::error_not_ready);
  CHECK(runtime::query_stream(second.handle) == runtime::error_not_ready);
  gate.count_down();
  REQUIRE(runtime::synchronize_event(event.handle) == runtime::success);
  REQUIRE(runtime::synchronize_stream(second.handle) == runtime::success);
  CHECK(value[0] == 6);
}

TEST_CASE("An event recorded again waits for the later mark") {
  const auto stream = stream_owner();
  const auto event = event_owner();
  REQUIRE(runtime::record_event(event.handle, stream.handle) == runtime::success);
  REQUIRE(runtime::synchronize_event(event.handle) == runtime::success);
  auto gate = std::latch(1);
  hold(stream, gate);
  REQUIRE(runtime::record_event(event.handle, stream.handle) == runtime::success);
  CHECK(runtime::query_event(event.handle) == runtime::error_not_ready);
  gate.count_down();
  CHECK(runtime::synchronize_event(event.handle) == runtime::success);
}

TEST_CASE("After a fault a stream drops work until it has told, but its events are reached") {
  const auto stream = stream_owner();
  const auto event = event_owner();
  const auto value = device_array<int>(1);
  REQUIRE(kernels::launch<read_past_the_end>({{1}, {1}}, stream.handle, value.data()) == runtime::success);
  REQUIRE(kernels::launch<increment>({{1}, {1}}, stream.handle, value.data()) == runtime::success);
  REQUIRE(runtime::record_event(event.handle, stream.handle) == runtime::success);
  REQUIRE(runtime::synchronize_event(event.handle) == runtime::success);
  CHECK(runtime::synchronize_stream(stream.handle) == runtime::error_launch_failure);
  CHECK(value[0] == 0);
  const auto found = executor::faults().take();
  REQUIRE(found);
  CHECK(found->kind == executor::fault_kind::global_out_of_bounds);
  CHECK_FALSE(executor::faults().take());
  REQUIRE(kernels::launch<increment>({{1}, {1}}, stream.handle, value.data()) == runtime::success);
  REQUIRE(runtime::synchronize_stream(stream.handle) == runtime::success);
  CHECK(value[0] == 1);
}

TEST_CASE("Copies outside an allocation are refused") {
  const auto values = device_array<int>(4);
  auto host = std::vector<int>(8);
  CHECK(runtime::copy_async(values.data(), host.data(), 20, runtime::host_to_device, nullptr) ==
        runtime::error_invalid_value);
  CHECK(runtime::copy_async(host.data(), values.data() + 1, 16, runtime::device_to_host, nullptr) ==
        runtime::error_invalid_value);
  CHECK(runtime::copy_rows_async(host.data(), 8, values.data(), 8, 4, 3, runtime::device_to_host, nullptr) ==
        runtime::error_invalid_value);
  CHECK(runtime::fill_async(values.data(), 0, 17, nullptr) == runtime::error_invalid_value);
  CHECK(runtime::release(values.data() + 1) == runtime::error_invalid_value);
}

TEST_CASE("Freeing memory waits for every stream, as on a device") {
  const auto stream = stream_owner();
  auto* memory = static_cast<void*>(nullptr);
  REQUIRE(runtime::allocate(&memory, sizeof(int)) == runtime::success);
  REQUIRE(runtime::fill_async(memory, 0, sizeof(int), stream.handle) == runtime::success);
  for (auto i = 0; i < 20; ++i) {
    REQUIRE(kernels::launch<increment>({{50}, {64}}, stream.handle, static_cast<int*>(memory)) == runtime::success);
  }
  REQUIRE(runtime::release(memory) == runtime::success);
  CHECK(runtime::query_stream(stream.handle) == runtime::success);
  CHECK_FALSE(executor::faults().take());
}

TEST_CASE("Memory freed in a stream stays until the work before it is done") {
  const auto stream = stream_owner();
  auto gate = std::latch(1);
  auto* memory = static_cast<void*>(nullptr);
  REQUIRE(runtime::allocate_async(&memory, sizeof(int), stream.handle) == runtime::success);
  auto* const value = static_cast<int*>(memory);
  REQUIRE(runtime::fill_async(value, 0, sizeof(int), stream.handle) == runtime::success);
  hold(stream, gate);
  REQUIRE(kernels::launch<increment>({{1}, {8}}, stream.handle, value) == runtime::success);
  auto seen = 0;
  REQUIRE(runtime::copy_async(&seen, value, sizeof(int), runtime::device_to_host, stream.handle) == runtime::success);
  REQUIRE(runtime::release_async(value, stream.handle) == runtime::success);
  gate.count_down();
  REQUIRE(runtime::synchronize_stream(stream.handle) == runtime::success);
  CHECK(seen == 8);
  CHECK(runtime::release(value) == runtime::error_invalid_value);
}

TEST_CASE("A planned failure is returned by the runtime") {
  auto* memory = static_cast<void*>(nullptr);
  executor::failures().fail_after(1, runtime::error_out_of_memory);
  REQUIRE(runtime::allocate(&memory, 16) == runtime::success);
  auto* other = static_cast<void*>(nullptr);
  CHECK(runtime::allocate(&other, 16) == runtime::error_out_of_memory);
  CHECK(runtime::synchronize_stream(nullptr) == runtime::error_out_of_memory);
  executor::failures().clear();
  CHECK(runtime::release(memory) == runtime::success);
}

TEST_CASE("The devices differ in wave size and matrix instructions") {
  auto properties = runtime::device_properties{};
  auto count = 0;
  REQUIRE(runtime::get_device_count(&count) == runtime::success);
  REQUIRE(count == 3);
  REQUIRE(runtime::get_device_properties(&properties, 0) == runtime::success);
  CHECK(properties.wave_size == 64);
  REQUIRE(runtime::get_device_properties(&properties, 1) == runtime::success);
  CHECK(properties.wave_size == 32);
  CHECK(properties.matrices == runtime::matrix_instructions::mma);
  REQUIRE(runtime::get_device_properties(&properties, 2) == runtime::success);
  CHECK(properties.wave_size == 32);
  CHECK(properties.matrices == runtime::matrix_instructions::wmma);
  CHECK(runtime::set_device(3) == runtime::error_invalid_device);
}

}  // namespace
