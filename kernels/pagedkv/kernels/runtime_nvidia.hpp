#pragma once

// Empty for other platforms.
#if (defined(__CUDACC__) || defined(CUDART_VERSION) || defined(PAGEDKV_NVIDIA)) && !defined(__HIPCC__)

  #include <pagedkv/executor/launch_shape.hpp>

  #include <cuda_runtime_api.h>

namespace pagedkv::runtime {

using status = cudaError_t;
using stream = cudaStream_t;
using event = cudaEvent_t;
using copy_kind = cudaMemcpyKind;
using stream_callback = cudaStreamCallback_t;

inline constexpr auto success = cudaSuccess;
inline constexpr auto error_invalid_value = cudaErrorInvalidValue;
inline constexpr auto error_out_of_memory = cudaErrorMemoryAllocation;
inline constexpr auto error_no_device = cudaErrorNoDevice;
inline constexpr auto error_not_ready = cudaErrorNotReady;
inline constexpr auto host_to_host = cudaMemcpyHostToHost;
inline constexpr auto host_to_device = cudaMemcpyHostToDevice;
inline constexpr auto device_to_host = cudaMemcpyDeviceToHost;
inline constexpr auto device_to_device = cudaMemcpyDeviceToDevice;

inline const char* error_text(status error) { return cudaGetErrorString(error); }

inline status get_device_count(int* count) { return cudaGetDeviceCount(count); }
inline status get_device(int* device) { return cudaGetDevice(device); }
inline status set_device(int device) { return cudaSetDevice(device); }
inline status get_device_properties(device_properties* properties, int device) {
  auto all = cudaDeviceProp{};
  const auto answer = cudaGetDeviceProperties(&all, device);
  if (answer == success) {
    *properties = {all.name,
                   all.totalGlobalMem,
                   all.warpSize,
                   all.multiProcessorCount,
                   all.sharedMemPerBlock,
                   all.maxThreadsPerBlock,
                   all.major >= 8 ? matrix_instructions::mma : matrix_instructions::none,
                   all.major == 9};
  }
  return answer;
}
inline status get_memory_info(std::size_t* free, std::size_t* total) { return cudaMemGetInfo(free, total); }

inline status allocate(void** pointer, std::size_t bytes) { return cudaMalloc(pointer, bytes); }
inline status release(void* pointer) { return cudaFree(pointer); }
inline status allocate_pinned(void** pointer, std::size_t bytes) {
  return cudaHostAlloc(pointer, bytes, cudaHostAllocDefault);
}
inline status release_pinned(void* pointer) { return cudaFreeHost(pointer); }
inline status allocate_async(void** pointer, std::size_t bytes, stream in) {
  return cudaMallocAsync(pointer, bytes, in);
}
inline status release_async(void* pointer, stream in) { return cudaFreeAsync(pointer, in); }

inline status can_access_peer(int* can, int device, int peer) { return cudaDeviceCanAccessPeer(can, device, peer); }
/// Lets kernels and copies of the current device access the memory of another one. May be called again.
inline status enable_peer_access(int peer) {
  const auto enabled = cudaDeviceEnablePeerAccess(peer, 0);
  if (enabled != cudaErrorPeerAccessAlreadyEnabled) {
    return enabled;
  }
  static_cast<void>(cudaGetLastError());
  return success;
}

/// Names an allocation in other processes.
using memory_handle = cudaIpcMemHandle_t;
inline status get_memory_handle(memory_handle* handle, void* pointer) { return cudaIpcGetMemHandle(handle, pointer); }
inline status open_memory_handle(void** pointer, const memory_handle& handle) {
  return cudaIpcOpenMemHandle(pointer, handle, cudaIpcMemLazyEnablePeerAccess);
}
inline status close_memory_handle(void* pointer) { return cudaIpcCloseMemHandle(pointer); }

inline status copy_async(void* to, const void* from, std::size_t bytes, copy_kind kind, stream in) {
  return cudaMemcpyAsync(to, from, bytes, kind, in);
}
/// Copies `num_rows` rows of `width` bytes, which start `to_pitch` and `from_pitch` bytes apart.
inline status copy_rows_async(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch,
                              std::size_t width, std::size_t num_rows, copy_kind kind, stream in) {
  return cudaMemcpy2DAsync(to, to_pitch, from, from_pitch, width, num_rows, kind, in);
}
inline status fill_async(void* to, int byte, std::size_t bytes, stream in) {
  return cudaMemsetAsync(to, byte, bytes, in);
}

/// Creates a stream that does not wait for the default stream.
inline status create_stream(stream* created) { return cudaStreamCreateWithFlags(created, cudaStreamNonBlocking); }
inline status destroy_stream(stream destroyed) { return cudaStreamDestroy(destroyed); }
inline status synchronize_stream(stream waited_for) { return cudaStreamSynchronize(waited_for); }
inline status query_stream(stream asked) { return cudaStreamQuery(asked); }
inline status wait_for_event(stream waiting, event mark) { return cudaStreamWaitEvent(waiting, mark, 0); }
inline status add_callback(stream in, stream_callback callback, void* argument) {
  return cudaStreamAddCallback(in, callback, argument, 0);
}

inline status create_event(event* created) { return cudaEventCreateWithFlags(created, cudaEventDisableTiming); }
inline status create_timed_event(event* created) { return cudaEventCreateWithFlags(created, cudaEventDefault); }
inline status destroy_event(event destroyed) { return cudaEventDestroy(destroyed); }
inline status record_event(event mark, stream in) { return cudaEventRecord(mark, in); }
inline status synchronize_event(event waited_for) { return cudaEventSynchronize(waited_for); }
inline status query_event(event asked) { return cudaEventQuery(asked); }
inline status elapsed_milliseconds(float* milliseconds, event start, event stop) {
  return cudaEventElapsedTime(milliseconds, start, stop);
}

/// Call it before a launch with this much dynamic shared memory.
inline status allow_dynamic_shared(const void* kernel, std::size_t bytes) {
  constexpr auto always_allowed = std::size_t{48} << 10;
  return bytes > always_allowed
             ? cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes))
             : success;
}

/// The bytes of static shared memory that a kernel was compiled with.
inline status get_static_shared(std::size_t* bytes, const void* kernel) {
  auto attributes = cudaFuncAttributes{};
  const auto known = cudaFuncGetAttributes(&attributes, kernel);
  *bytes = attributes.sharedSizeBytes;
  return known;
}

inline status launch_kernel(const void* kernel, dim3 grid, dim3 workgroup, void** arguments,
                            std::size_t dynamic_shared_bytes, stream in) {
  if (const auto allowed = allow_dynamic_shared(kernel, dynamic_shared_bytes); allowed != success) {
    return allowed;
  }
  return cudaLaunchKernel(kernel, grid, workgroup, arguments, dynamic_shared_bytes, in);
}

/// Launches a kernel that calls `wait_for_previous_kernel`: its workgroups start as soon as they fit beside the
/// previous kernel. Devices before compute capability 9.0 start it afterwards.
inline status launch_following_kernel(const void* kernel, dim3 grid, dim3 workgroup, void** arguments,
                                      std::size_t dynamic_shared_bytes, stream in) {
  auto device = 0;
  auto capability = 0;
  if (cudaGetDevice(&device) != success ||
      cudaDeviceGetAttribute(&capability, cudaDevAttrComputeCapabilityMajor, device) != success || capability < 9) {
    return launch_kernel(kernel, grid, workgroup, arguments, dynamic_shared_bytes, in);
  }
  if (const auto allowed = allow_dynamic_shared(kernel, dynamic_shared_bytes); allowed != success) {
    return allowed;
  }
  auto attribute = cudaLaunchAttribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  auto launch = cudaLaunchConfig_t{};
  launch.gridDim = grid;
  launch.blockDim = workgroup;
  launch.dynamicSmemBytes = dynamic_shared_bytes;
  launch.stream = in;
  launch.attrs = &attribute;
  launch.numAttrs = 1;
  return cudaLaunchKernelExC(&launch, kernel, arguments);
}

}  // namespace pagedkv::runtime

#endif
