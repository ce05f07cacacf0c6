#pragma once

// HIP's own type names, for a compiler that has no HIP: only what pagedkv uses, with HIP's values.

#include <cstddef>
#include <cstdint>

struct dim3 {
  std::uint32_t x = 1;
  std::uint32_t y = 1;
  std::uint32_t z = 1;

  constexpr dim3() = default;
  constexpr dim3(std::uint32_t x_, std::uint32_t y_ = 1, std::uint32_t z_ = 1) : x(x_), y(y_), z(z_) {}

  friend constexpr bool operator==(const dim3&, const dim3&) = default;
};

enum hipError_t : int {
  hipSuccess = 0,
  hipErrorInvalidValue = 1,
  hipErrorOutOfMemory = 2,
  hipErrorInvalidConfiguration = 9,
  hipErrorNoDevice = 100,
  hipErrorInvalidDevice = 101,
  hipErrorInvalidHandle = 400,
  hipErrorNotReady = 600,
  hipErrorLaunchFailure = 719,
};

enum hipMemcpyKind : int {
  hipMemcpyHostToHost = 0,
  hipMemcpyHostToDevice = 1,
  hipMemcpyDeviceToHost = 2,
  hipMemcpyDeviceToDevice = 3,
};

inline constexpr auto hipStreamNonBlocking = 1U;
inline constexpr auto hipEventDisableTiming = 2U;
inline constexpr auto hipHostMallocDefault = 0U;

struct hipDeviceProp_t {
  char name[256] = {};
  std::size_t totalGlobalMem = 0;
  int warpSize = 0;
  int multiProcessorCount = 0;
  std::size_t sharedMemPerBlock = 0;
  int maxThreadsPerBlock = 0;
};

namespace pagedkv::executor {
class stream;
class event;
}  // namespace pagedkv::executor

using hipStream_t = pagedkv::executor::stream*;
using hipEvent_t = pagedkv::executor::event*;
using hipStreamCallback_t = void (*)(hipStream_t, hipError_t, void*);
