#pragma once

// Virtual memory of the host executor, as strict as devices are: a piece is mapped once, is not accessible at first,
// and is unmapped whole.

#include <pagedkv/executor/runtime.hpp>

namespace pagedkv::executor {

inline constexpr auto mapping_granule = std::size_t{64} << 10;

}  // namespace pagedkv::executor

namespace pagedkv::runtime {

inline status get_mapping_granule(std::size_t* bytes, int device) {
  return executor::attempt([&] {
    *bytes = executor::mapping_granule;
    return device >= 0 && device < executor::num_devices ? success : error_invalid_device;
  });
}

inline status reserve_addresses(void** pointer, std::size_t bytes) {
  return executor::attempt([&] {
    *pointer = bytes % executor::mapping_granule == 0 ? executor::memory().reserve(bytes) : nullptr;
    return *pointer != nullptr ? success : error_out_of_memory;
  });
}

inline status release_addresses(void* pointer, std::size_t bytes) {
  return executor::memory().release_reservation(pointer, bytes) ? success : error_invalid_value;
}

inline status map_memory(void* pointer, std::size_t bytes, int) {
  return executor::attempt([&] {
    using mapping = executor::memory_map::mapping;
    const auto mapped =
        bytes % executor::mapping_granule == 0 ? executor::memory().map(pointer, bytes) : mapping::refused;
    return mapped == mapping::done      ? success
           : mapped == mapping::refused ? error_invalid_value
                                        : error_out_of_memory;
  });
}

inline status allow_access(void* pointer, std::size_t bytes, int) {
  return executor::attempt(
      [&] { return executor::memory().allow(pointer, bytes) ? success : error_invalid_value; });
}

inline status unmap_memory(void* pointer, std::size_t bytes) {
  return executor::memory().unmap(pointer, bytes) ? success : error_invalid_value;
}

}  // namespace pagedkv::runtime
