#include "run_kernel.hpp"

#include <catch2/catch_test_macros.hpp>

#include <atomic>
#include <latch>

namespace {

using namespace pagedkv;
using test::device_array;

struct stream_owner {
  stream_owner() { REQUIRE(hipStreamCreateWithFlags(&handle, hipStreamNonBlocking) == hipSuccess); }
  stream_owner(const stream_owner&) = delete;
  stream_owner& operator=(const stream_owner&) = delete;
  ~stream_owner() { static_cast<void>(hipStreamDestroy(handle)); }

  hipStream_t handle = nullptr;
};

struct event_owner {
  event_owner() { REQUIRE(hipEventCreateWithFlags(&handle, hipEventDisableTiming) == hipSuccess); }
  event_owner(const event_owner&) = delete;
  event_owner& operator=(const event_owner&) = delete;
  ~event_owner() { static_cast<void>(hipEventDestroy(handle)); }

  hipEvent_t handle = nullptr;
};

// Stops a stream until the test lets it go on.
void hold(const stream_owner& stream, std::latch& gate) {
  const auto wait = [](hipStream_t, hipError_t, void* latch) { static_cast<std::latch*>(latch)->wait(); };
  REQUIRE(hipStreamAddCallback(stream.handle, wait, &gate, 0) == hipSuccess);
}

__global__ void increment(int* value) { atomicAdd(value, 1); }

__global__ void double_value(int* value) { kernels::store(value, kernels::load(value) * 2); }

__global__ void read_past_the_end(int* value) { kernels::store(value, kernels::load(value + 1)); }

TEST_CASE("Work of a stream runs later and in order") {
  const auto stream = stream_owner();
  const auto value = device_array<int>(1);
  auto gate = std::latch(1);
  hold(stream, gate);
  REQUIRE(kernels::launch<increment>({{2}, {32}}, stream.handle, value.data()) == hipSuccess);
  REQUIRE(kernels::launch<double_value>({{1}, {1}}, stream.handle, value.data()) == hipSuccess);
  auto copy = 0;
  REQUIRE(hipMemcpyAsync(&copy, value.data(), sizeof(int), hipMemcpyDeviceToHost, stream.handle) == hipSuccess);
  REQUIRE(hipMemsetAsync(value.data(), 0, sizeof(int), stream.handle) == hipSuccess);
  CHECK(hipStreamQuery(stream.handle) == hipErrorNotReady);
  CHECK(copy == 0);
  gate.count_down();
  REQUIRE(hipStreamSynchronize(stream.handle) == hipSuccess);
  CHECK(hipStreamQuery(stream.handle) == hipSuccess);
  CHECK(copy == 128);
  CHECK(value[0] == 0);
}

TEST_CASE("An event is reached when the work before it is done, and orders another stream") {
  const auto first = stream_owner();
  const auto second = stream_owner();
  const auto event = event_owner();
  const auto value = device_array<int>(1);
  CHECK(hipEventQuery(event.handle) == hipSuccess);
  auto gate = std::latch(1);
  hold(first, gate);
  REQUIRE(kernels::launch<increment>({{1}, {3}}, first.handle, value.data()) == hipSuccess);
  REQUIRE(hipEventRecord(event.handle, first.handle) == hipSuccess);
  REQUIRE(hipStreamWaitEvent(second.handle, event.handle, 0) == hipSuccess);
  REQUIRE(kernels::launch<double_value>({{1}, {1}}, second.handle, value.data()) == hipSuccess);
  CHECK(hipEventQuery(event.handle) == hipErrorNotReady);
  CHECK(hipStreamQuery(second.handle) == hipErrorNotReady);
  gate.count_down();
  REQUIRE(hipEventSynchronize(event.handle) == hipSuccess);
  REQUIRE(hipStreamSynchronize(second.handle) == hipSuccess);
  CHECK(value[0] == 6);
}

TEST_CASE("An event recorded again waits for the later mark") {
  const auto stream = stream_owner();
  const auto event = event_owner();
  REQUIRE(hipEventRecord(event.handle, stream.handle) == hipSuccess);
  REQUIRE(hipEventSynchronize(event.handle) == hipSuccess);
  auto gate = std::latch(1);
  hold(stream, gate);
  REQUIRE(hipEventRecord(event.handle, stream.handle) == hipSuccess);
  CHECK(hipEventQuery(event.handle) == hipErrorNotReady);
  gate.count_down();
  CHECK(hipEventSynchronize(event.handle) == hipSuccess);
}

TEST_CASE("After a fault a stream drops work until it has told, but its events are reached") {
  const auto stream = stream_owner();
  const auto event = event_owner();
  const auto value = device_array<int>(1);
  REQUIRE(kernels::launch<read_past_the_end>({{1}, {1}}, stream.handle, value.data()) == hipSuccess);
  REQUIRE(kernels::launch<increment>({{1}, {1}}, stream.handle, value.data()) == hipSuccess);
  REQUIRE(hipEventRecord(event.handle, stream.handle) == hipSuccess);
  REQUIRE(hipEventSynchronize(event.handle) == hipSuccess);
  CHECK(hipStreamSynchronize(stream.handle) == hipErrorLaunchFailure);
  CHECK(value[0] == 0);
  const auto found = executor::faults().take();
  REQUIRE(found);
  CHECK(found->kind == executor::fault_kind::global_out_of_bounds);
  CHECK_FALSE(executor::faults().take());
  REQUIRE(kernels::launch<increment>({{1}, {1}}, stream.handle, value.data()) == hipSuccess);
  REQUIRE(hipStreamSynchronize(stream.handle) == hipSuccess);
  CHECK(value[0] == 1);
}

TEST_CASE("Copies outside an allocation are refused") {
  const auto values = device_array<int>(4);
  auto host = std::vector<int>(8);
  CHECK(hipMemcpyAsync(values.data(), host.data(), 20, hipMemcpyHostToDevice, nullptr) == hipErrorInvalidValue);
  CHECK(hipMemcpyAsync(host.data(), values.data() + 1, 16, hipMemcpyDeviceToHost, nullptr) == hipErrorInvalidValue);
  CHECK(hipMemcpy2DAsync(host.data(), 8, values.data(), 8, 4, 3, hipMemcpyDeviceToHost, nullptr) ==
        hipErrorInvalidValue);
  CHECK(hipMemsetAsync(values.data(), 0, 17, nullptr) == hipErrorInvalidValue);
  CHECK(hipFree(values.data() + 1) == hipErrorInvalidValue);
}

TEST_CASE("Freeing memory waits for every stream, as on a device") {
  const auto stream = stream_owner();
  auto* memory = static_cast<void*>(nullptr);
  REQUIRE(hipMalloc(&memory, sizeof(int)) == hipSuccess);
  REQUIRE(hipMemsetAsync(memory, 0, sizeof(int), stream.handle) == hipSuccess);
  for (auto i = 0; i < 20; ++i) {
    REQUIRE(kernels::launch<increment>({{50}, {64}}, stream.handle, static_cast<int*>(memory)) == hipSuccess);
  }
  REQUIRE(hipFree(memory) == hipSuccess);
  CHECK(hipStreamQuery(stream.handle) == hipSuccess);
  CHECK_FALSE(executor::faults().take());
}

TEST_CASE("Memory freed in a stream stays until the work before it is done") {
  const auto stream = stream_owner();
  auto gate = std::latch(1);
  auto* memory = static_cast<void*>(nullptr);
  REQUIRE(hipMallocAsync(&memory, sizeof(int), stream.handle) == hipSuccess);
  auto* const value = static_cast<int*>(memory);
  REQUIRE(hipMemsetAsync(value, 0, sizeof(int), stream.handle) == hipSuccess);
  hold(stream, gate);
  REQUIRE(kernels::launch<increment>({{1}, {8}}, stream.handle, value) == hipSuccess);
  auto seen = 0;
  REQUIRE(hipMemcpyAsync(&seen, value, sizeof(int), hipMemcpyDeviceToHost, stream.handle) == hipSuccess);
  REQUIRE(hipFreeAsync(value, stream.handle) == hipSuccess);
  gate.count_down();
  REQUIRE(hipStreamSynchronize(stream.handle) == hipSuccess);
  CHECK(seen == 8);
  CHECK(hipFree(value) == hipErrorInvalidValue);
}

TEST_CASE("A planned failure is what the runtime answers") {
  auto* memory = static_cast<void*>(nullptr);
  executor::failures().fail_after(1, hipErrorOutOfMemory);
  REQUIRE(hipMalloc(&memory, 16) == hipSuccess);
  auto* other = static_cast<void*>(nullptr);
  CHECK(hipMalloc(&other, 16) == hipErrorOutOfMemory);
  CHECK(hipStreamSynchronize(nullptr) == hipErrorOutOfMemory);
  executor::failures().clear();
  CHECK(hipFree(memory) == hipSuccess);
}

TEST_CASE("The two devices differ in wave size") {
  auto properties = hipDeviceProp_t{};
  auto count = 0;
  REQUIRE(hipGetDeviceCount(&count) == hipSuccess);
  REQUIRE(count == 2);
  REQUIRE(hipGetDeviceProperties(&properties, 0) == hipSuccess);
  CHECK(properties.warpSize == 64);
  REQUIRE(hipGetDeviceProperties(&properties, 1) == hipSuccess);
  CHECK(properties.warpSize == 32);
  CHECK(hipSetDevice(2) == hipErrorInvalidDevice);
}

}  // namespace
