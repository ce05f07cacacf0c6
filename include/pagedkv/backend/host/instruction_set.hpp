#pragma once

#include <cstdint>

namespace pagedkv::host {

/// The instructions that host code is written for, from the most portable on.
enum class instruction_set : std::uint8_t { portable, avx2, avx512 };

/// The best that this processor has. Every processor with AVX2 has FMA and F16C.
[[nodiscard]] inline instruction_set best_instruction_set() noexcept {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512dq")) {
    return instruction_set::avx512;
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    return instruction_set::avx2;
  }
#endif
  return instruction_set::portable;
}

}  // namespace pagedkv::host
