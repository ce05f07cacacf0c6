#pragma once

// Virtual memory of the runtime that `runtime.hpp` chooses, under names of this library's own: addresses are reserved,
// memory is mapped behind them in pieces, made accessible, and unmapped piece by piece. Apart from `runtime.hpp`,
// because NVIDIA has these functions in the driver's interface.

#include <pagedkv/kernels/runtime.hpp>

#if defined(__HIPCC__) || defined(__HIP_PLATFORM_AMD__)

  #include <pagedkv/kernels/runtime_amd.hpp>

namespace pagedkv::runtime {

inline hipMemAllocationProp memory_of(int device) {
  auto properties = hipMemAllocationProp{};
  properties.type = hipMemAllocationTypePinned;
  properties.location.type = hipMemLocationTypeDevice;
  properties.location.id = device;
  return properties;
}

/// Sizes and addresses of pieces are multiples of this many bytes.
inline status get_mapping_granule(std::size_t* bytes, int device) {
  const auto properties = memory_of(device);
  return hipMemGetAllocationGranularity(bytes, &properties, hipMemAllocationGranularityMinimum);
}

inline status reserve_addresses(void** pointer, std::size_t bytes) {
  return hipMemAddressReserve(pointer, bytes, 0, nullptr, 0);
}
/// Nothing is mapped there any more.
inline status release_addresses(void* pointer, std::size_t bytes) { return hipMemAddressFree(pointer, bytes); }

/// One piece of a device's memory. The handle may go at once: the mapping keeps the memory.
inline status map_memory(void* pointer, std::size_t bytes, int device) {
  const auto properties = memory_of(device);
  auto piece = hipMemGenericAllocationHandle_t{};
  if (const auto created = hipMemCreate(&piece, bytes, &properties, 0); created != success) {
    return created;
  }
  const auto mapped = hipMemMap(pointer, bytes, 0, piece, 0);
  const auto released = hipMemRelease(piece);
  return mapped != success ? mapped : released;
}

/// Lets a device read and write a range of whole pieces.
inline status allow_access(void* pointer, std::size_t bytes, int device) {
  auto access = hipMemAccessDesc{};
  access.location = memory_of(device).location;
  access.flags = hipMemAccessFlagsProtReadWrite;
  return hipMemSetAccess(pointer, bytes, &access, 1);
}

/// One piece, which no work accesses any more.
inline status unmap_memory(void* pointer, std::size_t bytes) { return hipMemUnmap(pointer, bytes); }

}  // namespace pagedkv::runtime

#endif

#if (defined(__CUDACC__) || defined(CUDART_VERSION) || defined(PAGEDKV_NVIDIA)) && !defined(__HIPCC__)

  #include <pagedkv/kernels/runtime_nvidia.hpp>

  #include <cuda.h>

namespace pagedkv::runtime {

/// Calls a function of the driver, which the runtime finds by its name: programs need not link the driver's library.
/// The driver's numbers of errors are the runtime's.
template <class... Parameters, class... Arguments>
status call_driver(CUresult (*)(Parameters...), const char* name, Arguments... arguments) {
  void* found = nullptr;
  auto answer = cudaDriverEntryPointSymbolNotFound;
  #if CUDART_VERSION >= 12050
  const auto searched = cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault, &answer);
  #else
  const auto searched = cudaGetDriverEntryPoint(name, &found, cudaEnableDefault, &answer);
  #endif
  if (searched != success) {
    return searched;
  }
  if (answer != cudaDriverEntryPointSuccess) {
    return cudaErrorSymbolNotFound;
  }
  return static_cast<status>(reinterpret_cast<CUresult (*)(Parameters...)>(found)(arguments...));
}

inline CUmemAllocationProp memory_of(int device) {
  auto properties = CUmemAllocationProp{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = device;
  return properties;
}

inline CUdeviceptr address_of(void* pointer) { return reinterpret_cast<CUdeviceptr>(pointer); }

/// Sizes and addresses of pieces are multiples of this many bytes.
inline status get_mapping_granule(std::size_t* bytes, int device) {
  const auto properties = memory_of(device);
  return call_driver(decltype (&cuMemGetAllocationGranularity){}, "cuMemGetAllocationGranularity", bytes, &properties,
                     CU_MEM_ALLOC_GRANULARITY_MINIMUM);
}

inline status reserve_addresses(void** pointer, std::size_t bytes) {
  auto start = CUdeviceptr{};
  const auto reserved = call_driver(decltype (&cuMemAddressReserve){}, "cuMemAddressReserve", &start, bytes,
                                    std::size_t{0}, CUdeviceptr{0}, 0ULL);
  *pointer = reinterpret_cast<void*>(start);
  return reserved;
}
/// Nothing is mapped there any more.
inline status release_addresses(void* pointer, std::size_t bytes) {
  return call_driver(decltype (&cuMemAddressFree){}, "cuMemAddressFree", address_of(pointer), bytes);
}

/// One piece of a device's memory. The handle may go at once: the mapping keeps the memory.
inline status map_memory(void* pointer, std::size_t bytes, int device) {
  const auto properties = memory_of(device);
  auto piece = CUmemGenericAllocationHandle{};
  if (const auto created = call_driver(decltype (&cuMemCreate){}, "cuMemCreate", &piece, bytes, &properties, 0ULL);
      created != success) {
    return created;
  }
  const auto mapped =
      call_driver(decltype (&cuMemMap){}, "cuMemMap", address_of(pointer), bytes, std::size_t{0}, piece, 0ULL);
  const auto released = call_driver(decltype (&cuMemRelease){}, "cuMemRelease", piece);
  return mapped != success ? mapped : released;
}

/// Lets a device read and write a range of whole pieces.
inline status allow_access(void* pointer, std::size_t bytes, int device) {
  auto access = CUmemAccessDesc{};
  access.location = memory_of(device).location;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  return call_driver(decltype (&cuMemSetAccess){}, "cuMemSetAccess", address_of(pointer), bytes, &access,
                     std::size_t{1});
}

/// One piece, which no work accesses any more.
inline status unmap_memory(void* pointer, std::size_t bytes) {
  return call_driver(decltype (&cuMemUnmap){}, "cuMemUnmap", address_of(pointer), bytes);
}

}  // namespace pagedkv::runtime

#endif

#if !defined(__HIPCC__) && !defined(__HIP_PLATFORM_AMD__) && !defined(__CUDACC__) && !defined(CUDART_VERSION) && \
    !defined(PAGEDKV_NVIDIA)
  #include <pagedkv/executor/mapping.hpp>
#endif
