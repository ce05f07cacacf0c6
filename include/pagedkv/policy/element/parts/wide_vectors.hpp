#pragma once

// Functions for processors with AVX2 and F16C, in programs that are compiled for older ones, too: marked with
// `PAGEDKV_WIDE`, and called only if `has_wide_vectors` is true. `PAGEDKV_WIDE_VECTORS` is defined if there are any.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__CUDA_ARCH__) && !defined(__HIP_DEVICE_COMPILE__)
  #define PAGEDKV_WIDE_VECTORS
  #define PAGEDKV_WIDE __attribute__((target("avx2,f16c")))

namespace pagedkv {

[[nodiscard]] inline bool find_wide_vectors() noexcept {
  // Also checks that the operating system preserves wide registers.
  if (!__builtin_cpu_supports("avx2")) {
    return false;
  }
  auto leaf = 1U;
  auto features = 0U;
  asm("cpuid" : "+a"(leaf), "+c"(features) : : "ebx", "edx");
  return (features >> 29 & 1U) != 0;
}

/// Call it last: below -O2, compilers omit this instruction, and the program's other vector instructions then incur
/// penalties of fifty cycles.
PAGEDKV_WIDE inline void leave_wide_vectors() noexcept { __builtin_ia32_vzeroupper(); }

/// False until static initialisation; the results are the same either way.
inline const bool has_wide_vectors = find_wide_vectors();

}  // namespace pagedkv

#endif
