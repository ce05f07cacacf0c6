#pragma once

// Empty for other platforms.
#if defined(__HIPCC__) || defined(__HIP_PLATFORM_AMD__)

  #include <pagedkv/executor/launch_shape.hpp>

  #include <hip/hip_runtime_api.h>

  #include <string_view>

namespace pagedkv::runtime {

using status = hipError_t;
using stream = hipStream_t;
using event = hipEvent_t;
using copy_kind = hipMemcpyKind;
using stream_callback = hipStreamCallback_t;

inline constexpr auto success = hipSuccess;
inline constexpr auto error_invalid_value = hipErrorInvalidValue;
inline constexpr auto error_out_of_memory = hipErrorOutOfMemory;
inline constexpr auto error_no_device = hipErrorNoDevice;
inline constexpr auto error_not_ready = hipErrorNotReady;
inline constexpr auto host_to_host = hipMemcpyHostToHost;
inline constexpr auto host_to_device = hipMemcpyHostToDevice;
inline constexpr auto device_to_host = hipMemcpyDeviceToHost;
inline constexpr auto device_to_device = hipMemcpyDeviceToDevice;

inline const char* error_text(status error) { return hipGetErrorString(error); }

inline status get_device_count(int* count) { return hipGetDeviceCount(count); }
inline status get_device(int* device) { return hipGetDevice(device); }
inline status set_device(int device) { return hipSetDevice(device); }
/// By the name of a target, such as gfx942:sramecc+.
inline matrix_instructions matrices_of(std::string_view target) {
  for (const auto* cdna : {"gfx90a", "gfx942", "gfx950"}) {
    if (target.starts_with(cdna)) {
      return matrix_instructions::mfma;
    }
  }
  return target.starts_with("gfx11") || target.starts_with("gfx12") ? matrix_instructions::wmma
                                                                    : matrix_instructions::none;
}
inline status get_device_properties(device_properties* properties, int device) {
  auto all = hipDeviceProp_t{};
  const auto answer = hipGetDeviceProperties(&all, device);
  if (answer == success) {
    *properties = {all.name,
                   all.totalGlobalMem,
                   all.warpSize,
                   all.multiProcessorCount,
                   all.sharedMemPerBlock,
                   all.maxThreadsPerBlock,
                   matrices_of(all.gcnArchName),
                   false};
  }
  return answer;
}
inline status get_memory_info(std::size_t* free, std::size_t* total) { return hipMemGetInfo(free, total); }

inline status allocate(void** pointer, std::size_t bytes) { return hipMalloc(pointer, bytes); }
inline status release(void* pointer) { return hipFree(pointer); }
inline status allocate_pinned(void** pointer, std::size_t bytes) {
  return hipHostMalloc(pointer, bytes, hipHostMallocDefault);
}
inline status release_pinned(void* pointer) { return hipHostFree(pointer); }
inline status allocate_async(void** pointer, std::size_t bytes, stream in) {
  return hipMallocAsync(pointer, bytes, in);
}
inline status release_async(void* pointer, stream in) { return hipFreeAsync(pointer, in); }

inline status can_access_peer(int* can, int device, int peer) { return hipDeviceCanAccessPeer(can, device, peer); }
/// Lets kernels and copies of the current device access the memory of another one. May be called again.
inline status enable_peer_access(int peer) {
  const auto enabled = hipDeviceEnablePeerAccess(peer, 0);
  if (enabled != hipErrorPeerAccessAlreadyEnabled) {
    return enabled;
  }
  static_cast<void>(hipGetLastError());
  return success;
}

/// Names an allocation in other processes.
using memory_handle = hipIpcMemHandle_t;
inline status get_memory_handle(memory_handle* handle, void* pointer) { return hipIpcGetMemHandle(handle, pointer); }
inline status open_memory_handle(void** pointer, const memory_handle& handle) {
  return hipIpcOpenMemHandle(pointer, handle, hipIpcMemLazyEnablePeerAccess);
}
inline status close_memory_handle(void* pointer) { return hipIpcCloseMemHandle(pointer); }

inline status copy_async(void* to, const void* from, std::size_t bytes, copy_kind kind, stream in) {
  return hipMemcpyAsync(to, from, bytes, kind, in);
}
/// Copies `num_rows` rows of `width` bytes, which start `to_pitch` and `from_pitch` bytes apart.
inline status copy_rows_async(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch,
                              std::size_t width, std::size_t num_rows, copy_kind kind, stream in) {
  return hipMemcpy2DAsync(to, to_pitch, from, from_pitch, width, num_rows, kind, in);
}
inline status fill_async(void* to, int byte, std::size_t bytes, stream in) {
  return hipMemsetAsync(to, byte, bytes, in);
}

/// Creates a stream that does not wait for the default stream.
inline status create_stream(stream* created) { return hipStreamCreateWithFlags(created, hipStreamNonBlocking); }
inline status destroy_stream(stream destroyed) { return hipStreamDestroy(destroyed); }
inline status synchronize_stream(stream waited_for) { return hipStreamSynchronize(waited_for); }
inline status query_stream(stream asked) { return hipStreamQuery(asked); }
inline status wait_for_event(stream waiting, event mark) { return hipStreamWaitEvent(waiting, mark, 0); }
inline status add_callback(stream in, stream_callback callback, void* argument) {
  return hipStreamAddCallback(in, callback, argument, 0);
}

inline status create_event(event* created) { return hipEventCreateWithFlags(created, hipEventDisableTiming); }
inline status create_timed_event(event* created) { return hipEventCreateWithFlags(created, hipEventDefault); }
inline status destroy_event(event destroyed) { return hipEventDestroy(destroyed); }
inline status record_event(event mark, stream in) { return hipEventRecord(mark, in); }
inline status synchronize_event(event waited_for) { return hipEventSynchronize(waited_for); }
inline status query_event(event asked) { return hipEventQuery(asked); }
inline status elapsed_milliseconds(float* milliseconds, event start, event stop) {
  return hipEventElapsedTime(milliseconds, start, stop);
}

inline status launch_kernel(const void* kernel, dim3 grid, dim3 workgroup, void** arguments,
                            std::size_t dynamic_shared_bytes, stream in) {
  return hipLaunchKernel(kernel, grid, workgroup, arguments, dynamic_shared_bytes, in);
}

inline status launch_following_kernel(const void* kernel, dim3 grid, dim3 workgroup, void** arguments,
                                      std::size_t dynamic_shared_bytes, stream in) {
  return launch_kernel(kernel, grid, workgroup, arguments, dynamic_shared_bytes, in);
}

}  // namespace pagedkv::runtime

#endif
