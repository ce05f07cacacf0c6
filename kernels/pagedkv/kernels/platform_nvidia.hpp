#pragma once

// Empty for other compilers.
#if defined(__CUDACC__) && !defined(__HIPCC__)

// The HIP names that pagedkv uses, on CUDA: HIP's own headers for NVIDIA do not build with CUDA 13.

  #include <cuda_runtime.h>

using hipError_t = cudaError_t;
using hipStream_t = cudaStream_t;
using hipEvent_t = cudaEvent_t;
using hipMemcpyKind = cudaMemcpyKind;
using hipDeviceProp_t = cudaDeviceProp;
using hipStreamCallback_t = cudaStreamCallback_t;

inline constexpr auto hipSuccess = cudaSuccess;
inline constexpr auto hipErrorInvalidValue = cudaErrorInvalidValue;
inline constexpr auto hipErrorOutOfMemory = cudaErrorMemoryAllocation;
inline constexpr auto hipErrorNoDevice = cudaErrorNoDevice;
inline constexpr auto hipErrorNotReady = cudaErrorNotReady;
inline constexpr auto hipMemcpyHostToHost = cudaMemcpyHostToHost;
inline constexpr auto hipMemcpyHostToDevice = cudaMemcpyHostToDevice;
inline constexpr auto hipMemcpyDeviceToHost = cudaMemcpyDeviceToHost;
inline constexpr auto hipMemcpyDeviceToDevice = cudaMemcpyDeviceToDevice;
inline constexpr unsigned hipStreamNonBlocking = cudaStreamNonBlocking;
inline constexpr unsigned hipEventDisableTiming = cudaEventDisableTiming;
inline constexpr unsigned hipHostMallocDefault = cudaHostAllocDefault;

inline const char* hipGetErrorString(hipError_t error) { return cudaGetErrorString(error); }
inline hipError_t hipGetLastError() { return cudaGetLastError(); }
inline hipError_t hipGetDeviceCount(int* count) { return cudaGetDeviceCount(count); }
inline hipError_t hipGetDevice(int* device) { return cudaGetDevice(device); }
inline hipError_t hipSetDevice(int device) { return cudaSetDevice(device); }
inline hipError_t hipGetDeviceProperties(hipDeviceProp_t* properties, int device) {
  return cudaGetDeviceProperties(properties, device);
}
inline hipError_t hipMemGetInfo(std::size_t* free, std::size_t* total) { return cudaMemGetInfo(free, total); }
inline hipError_t hipMalloc(void** pointer, std::size_t bytes) { return cudaMalloc(pointer, bytes); }
inline hipError_t hipFree(void* pointer) { return cudaFree(pointer); }
inline hipError_t hipHostMalloc(void** pointer, std::size_t bytes, unsigned flags) {
  return cudaHostAlloc(pointer, bytes, flags);
}
inline hipError_t hipHostFree(void* pointer) { return cudaFreeHost(pointer); }
inline hipError_t hipMallocAsync(void** pointer, std::size_t bytes, hipStream_t stream) {
  return cudaMallocAsync(pointer, bytes, stream);
}
inline hipError_t hipFreeAsync(void* pointer, hipStream_t stream) { return cudaFreeAsync(pointer, stream); }
inline hipError_t hipMemcpyAsync(void* to, const void* from, std::size_t bytes, hipMemcpyKind kind,
                                 hipStream_t stream) {
  return cudaMemcpyAsync(to, from, bytes, kind, stream);
}
inline hipError_t hipMemcpy2DAsync(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch,
                                   std::size_t width, std::size_t height, hipMemcpyKind kind, hipStream_t stream) {
  return cudaMemcpy2DAsync(to, to_pitch, from, from_pitch, width, height, kind, stream);
}
inline hipError_t hipMemsetAsync(void* to, int value, std::size_t bytes, hipStream_t stream) {
  return cudaMemsetAsync(to, value, bytes, stream);
}
inline hipError_t hipLaunchKernel(const void* kernel, dim3 grid, dim3 workgroup, void** arguments,
                                  std::size_t dynamic_shared_bytes, hipStream_t stream) {
  return cudaLaunchKernel(kernel, grid, workgroup, arguments, dynamic_shared_bytes, stream);
}
inline hipError_t hipStreamCreateWithFlags(hipStream_t* stream, unsigned flags) {
  return cudaStreamCreateWithFlags(stream, flags);
}
inline hipError_t hipStreamDestroy(hipStream_t stream) { return cudaStreamDestroy(stream); }
inline hipError_t hipStreamSynchronize(hipStream_t stream) { return cudaStreamSynchronize(stream); }
inline hipError_t hipStreamQuery(hipStream_t stream) { return cudaStreamQuery(stream); }
inline hipError_t hipStreamWaitEvent(hipStream_t stream, hipEvent_t event, unsigned flags) {
  return cudaStreamWaitEvent(stream, event, flags);
}
inline hipError_t hipStreamAddCallback(hipStream_t stream, hipStreamCallback_t callback, void* argument,
                                       unsigned flags) {
  return cudaStreamAddCallback(stream, callback, argument, flags);
}
inline hipError_t hipEventCreateWithFlags(hipEvent_t* event, unsigned flags) {
  return cudaEventCreateWithFlags(event, flags);
}
inline hipError_t hipEventDestroy(hipEvent_t event) { return cudaEventDestroy(event); }
inline hipError_t hipEventRecord(hipEvent_t event, hipStream_t stream) { return cudaEventRecord(event, stream); }
inline hipError_t hipEventSynchronize(hipEvent_t event) { return cudaEventSynchronize(event); }
inline hipError_t hipEventQuery(hipEvent_t event) { return cudaEventQuery(event); }
inline hipError_t hipEventElapsedTime(float* milliseconds, hipEvent_t start, hipEvent_t stop) {
  return cudaEventElapsedTime(milliseconds, start, stop);
}

namespace pagedkv::kernels {

// CUDA still declares functions of these names for devices that are gone, so they are replaced, not overloaded. Every
// lane of the wave takes part, as the executor demands.
inline constexpr auto whole_wave = 0xFFFFFFFFU;

template <class T>
__device__ T shuffle(T value, int source, int width = 32) {
  return __shfl_sync(whole_wave, value, source, width);
}
template <class T>
__device__ T shuffle_up(T value, unsigned delta, int width = 32) {
  return __shfl_up_sync(whole_wave, value, delta, width);
}
template <class T>
__device__ T shuffle_down(T value, unsigned delta, int width = 32) {
  return __shfl_down_sync(whole_wave, value, delta, width);
}
template <class T>
__device__ T shuffle_xor(T value, int mask, int width = 32) {
  return __shfl_xor_sync(whole_wave, value, mask, width);
}
__device__ inline unsigned long long ballot(int predicate) { return __ballot_sync(whole_wave, predicate); }
__device__ inline int any(int predicate) { return __any_sync(whole_wave, predicate); }
__device__ inline int all(int predicate) { return __all_sync(whole_wave, predicate); }

}  // namespace pagedkv::kernels

  #define __shfl(...) ::pagedkv::kernels::shuffle(__VA_ARGS__)
  #define __shfl_up(...) ::pagedkv::kernels::shuffle_up(__VA_ARGS__)
  #define __shfl_down(...) ::pagedkv::kernels::shuffle_down(__VA_ARGS__)
  #define __shfl_xor(...) ::pagedkv::kernels::shuffle_xor(__VA_ARGS__)
  #define __ballot(...) ::pagedkv::kernels::ballot(__VA_ARGS__)
  #define __any(...) ::pagedkv::kernels::any(__VA_ARGS__)
  #define __all(...) ::pagedkv::kernels::all(__VA_ARGS__)

  #include <pagedkv/kernels/platform_device.hpp>

#endif
