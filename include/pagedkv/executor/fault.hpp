#pragma once

#include <pagedkv/executor/launch_shape.hpp>

#include <string>
#include <string_view>

namespace pagedkv::executor {

enum class fault_kind : std::uint8_t {
  divergent_barrier,         // not every lane of the workgroup reached the same barrier
  divergent_wave_operation,  // not every lane of the wave reached the same shuffle, ballot or vote
  invalid_wave_operation,    // a width that is no power of two up to the wave size, or a lane that does not exist
  shared_race,               // two lanes touched a shared element, one writing, with no barrier between
  uninitialised_shared_read,
  shared_out_of_bounds,
  global_out_of_bounds,
  misaligned_access,
  failed_check,
  escaped_exception,
};

[[nodiscard]] constexpr std::string_view describe(fault_kind kind) noexcept {
  switch (kind) {
    case fault_kind::divergent_barrier: return "divergent barrier";
    case fault_kind::divergent_wave_operation: return "divergent wave operation";
    case fault_kind::invalid_wave_operation: return "invalid wave operation";
    case fault_kind::shared_race: return "shared memory race";
    case fault_kind::uninitialised_shared_read: return "uninitialised shared memory read";
    case fault_kind::shared_out_of_bounds: return "shared memory access out of bounds";
    case fault_kind::global_out_of_bounds: return "global memory access out of bounds";
    case fault_kind::misaligned_access: return "misaligned access";
    case fault_kind::failed_check: return "failed check";
    case fault_kind::escaped_exception: return "escaped exception";
  }
  return "unknown fault";
}

/// The fault of a kernel, and the lane that caused it.
struct fault {
  fault_kind kind{};
  std::string kernel;
  kernels::extent workgroup;
  std::uint32_t lane = 0;  // within the workgroup, x fastest
  std::string detail;

  [[nodiscard]] std::string message() const {
    const auto coordinate = [](std::uint32_t i) { return std::to_string(i); };
    return std::string(describe(kind)) + " in kernel " + kernel + ", workgroup (" + coordinate(workgroup.x) + ", " +
           coordinate(workgroup.y) + ", " + coordinate(workgroup.z) + "), lane " + std::to_string(lane) + ": " + detail;
  }
};

/// A line of a kernel. As a default argument it is the caller's line; std::source_location needs clang 15.
struct call_site {
  const char* file = "";
  int line = 0;

  [[nodiscard]] static constexpr call_site current(const char* file = __builtin_FILE(),
                                                   int line = __builtin_LINE()) noexcept {
    return {file, line};
  }
};

/// "file:line", without the directories.
[[nodiscard]] inline std::string describe(const call_site& where) {
  auto file = std::string_view(where.file);
  file.remove_prefix(file.find_last_of('/') + 1);
  return std::string(file) + ":" + std::to_string(where.line);
}

}  // namespace pagedkv::executor
