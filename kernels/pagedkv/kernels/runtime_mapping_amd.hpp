#pragma once

// Empty for other platforms.
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
