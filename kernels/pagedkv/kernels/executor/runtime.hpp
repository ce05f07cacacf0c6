#pragma once

// HIP's host-side names, run by the executor: two devices, of which 0 has waves of 64 lanes and 1 waves of 32.

#include <pagedkv/kernels/executor/memory.hpp>
#include <pagedkv/kernels/executor/stream.hpp>

#include <cstdio>

namespace pagedkv::executor {

inline constexpr auto wave_sizes = std::array<std::uint32_t, 2>{64, 32};
inline constexpr auto num_devices = static_cast<int>(wave_sizes.size());
inline constexpr auto max_workgroup_size = std::uint32_t{1024};
inline constexpr auto shared_bytes_per_workgroup = std::size_t{64} << 10;

[[nodiscard]] inline int& current_device() noexcept {
  static thread_local auto device = 0;
  return device;
}

/// The stream behind a handle; null is the current device's default stream, which waits for no other here.
[[nodiscard]] inline stream& resolve(hipStream_t handle) {
  static auto defaults = std::array<stream, 2>{stream(wave_sizes[0]), stream(wave_sizes[1])};
  return handle != nullptr ? *handle : defaults[static_cast<std::size_t>(current_device())];
}

/// Makes runtime calls fail, for tests of what happens then. Thread-safe.
class failure_plan {
 public:
  /// The call after `num_calls` successful ones, and all later ones, answer `failure`.
  void fail_after(std::int64_t num_calls, hipError_t failure) noexcept {
    failure_.store(failure);
    remaining_.store(num_calls);
  }

  void clear() noexcept { remaining_.store(never); }

  [[nodiscard]] hipError_t next() noexcept {
    auto remaining = remaining_.load();
    while (remaining != never && remaining > 0 && !remaining_.compare_exchange_weak(remaining, remaining - 1)) {
    }
    return remaining == 0 ? failure_.load() : hipSuccess;
  }

 private:
  static constexpr auto never = std::int64_t{-1};

  std::atomic<std::int64_t> remaining_ = never;
  std::atomic<hipError_t> failure_ = hipSuccess;
};

[[nodiscard]] inline failure_plan& failures() {
  static auto plan = failure_plan();
  return plan;
}

/// `call` unless a failure is planned.
template <class Call>
[[nodiscard]] hipError_t attempt(Call call) noexcept {
  try {
    const auto planned = failures().next();
    return planned != hipSuccess ? planned : call();
  } catch (const std::bad_alloc&) {
    return hipErrorOutOfMemory;
  }
}

[[nodiscard]] inline bool readable(const void* pointer, std::size_t bytes, bool on_device) {
  return !on_device || memory().contains(pointer, bytes);
}

[[nodiscard]] inline bool valid_copy(const void* to, const void* from, std::size_t bytes, hipMemcpyKind kind) {
  const auto to_device = kind == hipMemcpyHostToDevice || kind == hipMemcpyDeviceToDevice;
  const auto from_device = kind == hipMemcpyDeviceToHost || kind == hipMemcpyDeviceToDevice;
  return readable(to, bytes, to_device) && readable(from, bytes, from_device);
}

inline hipError_t allocate_into(void** pointer, std::size_t bytes) {
  return attempt([&] {
    *pointer = memory().allocate(bytes);
    return *pointer != nullptr ? hipSuccess : hipErrorOutOfMemory;
  });
}

inline hipError_t release_from(void* pointer) {
  return pointer == nullptr || memory().release(pointer) ? hipSuccess : hipErrorInvalidValue;
}

}  // namespace pagedkv::executor

inline const char* hipGetErrorString(hipError_t error) {
  switch (error) {
    case hipSuccess: return "no error";
    case hipErrorInvalidValue: return "invalid argument";
    case hipErrorOutOfMemory: return "out of memory";
    case hipErrorInvalidConfiguration: return "invalid configuration argument";
    case hipErrorNoDevice: return "no device is detected";
    case hipErrorInvalidDevice: return "invalid device ordinal";
    case hipErrorInvalidHandle: return "invalid resource handle";
    case hipErrorNotReady: return "not ready";
    case hipErrorLaunchFailure: return "a kernel was at fault";
  }
  return "unknown error";
}

inline hipError_t hipGetDeviceCount(int* count) {
  return pagedkv::executor::attempt([&] {
    *count = pagedkv::executor::num_devices;
    return hipSuccess;
  });
}

inline hipError_t hipSetDevice(int device) {
  if (device < 0 || device >= pagedkv::executor::num_devices) {
    return hipErrorInvalidDevice;
  }
  pagedkv::executor::current_device() = device;
  return hipSuccess;
}

inline hipError_t hipGetDevice(int* device) {
  *device = pagedkv::executor::current_device();
  return hipSuccess;
}

inline hipError_t hipGetDeviceProperties(hipDeviceProp_t* properties, int device) {
  if (device < 0 || device >= pagedkv::executor::num_devices) {
    return hipErrorInvalidDevice;
  }
  const auto wave_size = pagedkv::executor::wave_sizes[static_cast<std::size_t>(device)];
  std::snprintf(properties->name, sizeof(properties->name), "host executor, waves of %u", wave_size);
  properties->totalGlobalMem = pagedkv::executor::memory_map::capacity;
  properties->warpSize = static_cast<int>(wave_size);
  properties->multiProcessorCount = 2;
  properties->sharedMemPerBlock = pagedkv::executor::shared_bytes_per_workgroup;
  properties->maxThreadsPerBlock = static_cast<int>(pagedkv::executor::max_workgroup_size);
  return hipSuccess;
}

inline hipError_t hipMalloc(void** pointer, std::size_t bytes) {
  return pagedkv::executor::allocate_into(pointer, bytes);
}

inline hipError_t hipFree(void* pointer) {
  pagedkv::executor::streams().wait_idle();
  return pagedkv::executor::release_from(pointer);
}

inline hipError_t hipHostMalloc(void** pointer, std::size_t bytes, unsigned) {
  return pagedkv::executor::allocate_into(pointer, bytes);
}

inline hipError_t hipHostFree(void* pointer) { return hipFree(pointer); }

inline hipError_t hipMallocAsync(void** pointer, std::size_t bytes, hipStream_t) {
  return pagedkv::executor::allocate_into(pointer, bytes);
}

inline hipError_t hipFreeAsync(void* pointer, hipStream_t stream) {
  return pagedkv::executor::attempt([&] {
    pagedkv::executor::resolve(stream).enqueue_always([=] { return pagedkv::executor::release_from(pointer); });
    return hipSuccess;
  });
}

inline hipError_t hipMemGetInfo(std::size_t* free, std::size_t* total) {
  *total = pagedkv::executor::memory_map::capacity;
  *free = *total - pagedkv::executor::memory().used();
  return hipSuccess;
}

inline hipError_t hipMemcpyAsync(void* to, const void* from, std::size_t bytes, hipMemcpyKind kind,
                                 hipStream_t stream) {
  return pagedkv::executor::attempt([&] {
    if (!pagedkv::executor::valid_copy(to, from, bytes, kind)) {
      return hipErrorInvalidValue;
    }
    pagedkv::executor::resolve(stream).enqueue([=] {
      std::memmove(to, from, bytes);
      return hipSuccess;
    });
    return hipSuccess;
  });
}

inline hipError_t hipMemcpy2DAsync(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch,
                                   std::size_t width, std::size_t height, hipMemcpyKind kind, hipStream_t stream) {
  return pagedkv::executor::attempt([&] {
    for (auto row = std::size_t{0}; row < height; ++row) {
      if (!pagedkv::executor::valid_copy(static_cast<std::byte*>(to) + row * to_pitch,
                                         static_cast<const std::byte*>(from) + row * from_pitch, width, kind)) {
        return hipErrorInvalidValue;
      }
    }
    pagedkv::executor::resolve(stream).enqueue([=] {
      for (auto row = std::size_t{0}; row < height; ++row) {
        std::memmove(static_cast<std::byte*>(to) + row * to_pitch,
                     static_cast<const std::byte*>(from) + row * from_pitch, width);
      }
      return hipSuccess;
    });
    return hipSuccess;
  });
}

inline hipError_t hipMemsetAsync(void* to, int value, std::size_t bytes, hipStream_t stream) {
  return pagedkv::executor::attempt([&] {
    if (!pagedkv::executor::readable(to, bytes, true)) {
      return hipErrorInvalidValue;
    }
    pagedkv::executor::resolve(stream).enqueue([=] {
      std::memset(to, value, bytes);
      return hipSuccess;
    });
    return hipSuccess;
  });
}

inline hipError_t hipStreamCreateWithFlags(hipStream_t* stream, unsigned) {
  return pagedkv::executor::attempt([&] {
    const auto device = static_cast<std::size_t>(pagedkv::executor::current_device());
    *stream = new pagedkv::executor::stream(pagedkv::executor::wave_sizes[device]);
    return hipSuccess;
  });
}

inline hipError_t hipStreamDestroy(hipStream_t stream) {
  delete stream;
  return hipSuccess;
}

inline hipError_t hipStreamSynchronize(hipStream_t stream) {
  return pagedkv::executor::attempt([&] { return pagedkv::executor::resolve(stream).synchronize(); });
}

inline hipError_t hipStreamQuery(hipStream_t stream) {
  return pagedkv::executor::attempt([&] { return pagedkv::executor::resolve(stream).query(); });
}

inline hipError_t hipEventCreateWithFlags(hipEvent_t* event, unsigned) {
  return pagedkv::executor::attempt([&] {
    *event = new pagedkv::executor::event();
    return hipSuccess;
  });
}

inline hipError_t hipEventDestroy(hipEvent_t event) {
  delete event;
  return hipSuccess;
}

inline hipError_t hipEventRecord(hipEvent_t event, hipStream_t stream) {
  return pagedkv::executor::attempt([&] {
    pagedkv::executor::resolve(stream).enqueue_always([marks = event->marks(), recording = event->marks()->record()] {
      marks->reach(recording);
      return hipSuccess;
    });
    return hipSuccess;
  });
}

inline hipError_t hipEventSynchronize(hipEvent_t event) {
  return pagedkv::executor::attempt([&] {
    event->marks()->wait(event->marks()->last_recording());
    return hipSuccess;
  });
}

inline hipError_t hipEventQuery(hipEvent_t event) {
  return pagedkv::executor::attempt(
      [&] { return event->marks()->reached(event->marks()->last_recording()) ? hipSuccess : hipErrorNotReady; });
}

inline hipError_t hipEventElapsedTime(float* milliseconds, hipEvent_t start, hipEvent_t stop) {
  const auto elapsed = stop->marks()->when() - start->marks()->when();
  *milliseconds = std::chrono::duration<float, std::milli>(elapsed).count();
  return hipSuccess;
}

inline hipError_t hipStreamWaitEvent(hipStream_t stream, hipEvent_t event, unsigned) {
  return pagedkv::executor::attempt([&] {
    pagedkv::executor::resolve(stream).enqueue_always(
        [marks = event->marks(), recording = event->marks()->last_recording()] {
          marks->wait(recording);
          return hipSuccess;
        });
    return hipSuccess;
  });
}

inline hipError_t hipStreamAddCallback(hipStream_t stream, hipStreamCallback_t callback, void* argument, unsigned) {
  return pagedkv::executor::attempt([&] {
    pagedkv::executor::resolve(stream).enqueue_always([=] {
      callback(stream, hipSuccess, argument);
      return hipSuccess;
    });
    return hipSuccess;
  });
}
