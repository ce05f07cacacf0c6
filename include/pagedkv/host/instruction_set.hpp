#pragma once

#include <pagedkv/policy/element/parts/wide_vectors.hpp>

#include <cstdint>

namespace pagedkv::host {

/// The instruction sets that host code is written for, the most portable first.
enum class instruction_set : std::uint8_t { portable, avx2, avx512 };

/// The best one that this processor supports.
[[nodiscard]] inline instruction_set best_instruction_set() noexcept {
#if defined(PAGEDKV_WIDE_VECTORS)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512dq")) {
    return instruction_set::avx512;
  }
  if (has_wide_vectors && __builtin_cpu_supports("fma")) {
    return instruction_set::avx2;
  }
#endif
  return instruction_set::portable;
}

}  // namespace pagedkv::host
