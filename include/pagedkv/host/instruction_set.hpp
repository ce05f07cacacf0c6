#pragma once

#include <pagedkv/policy/element/parts/numbers.hpp>

#include <cstdint>

#if defined(PAGEDKV_WIDE_VECTORS) && defined(__linux__)
  #include <unistd.h>
#endif

namespace pagedkv::host {

/// The instruction sets that host code is written for, the most portable first; processors that have one have those
/// before it, too. `avx512_vnni` is AVX-512 with sums of products of 16-bit integers, which attention takes for int8,
/// and `avx512_bf16` has those of bfloat16 besides. `amx` is AVX-512 with the matrix unit, and may be used only after
/// `obtain_matrix_unit` has returned true.
enum class instruction_set : std::uint8_t { portable, avx2, avx512, avx512_vnni, avx512_bf16, amx };

/// Whether the processor multiplies matrices of bfloat16 and int8, and the system lets this process do so. The first
/// call requests permission, which lasts: the process's signal frames grow by 8 KiB. Linux refuses where a thread's
/// alternate signal stack is too small for that.
[[nodiscard]] inline bool obtain_matrix_unit() noexcept {
#if defined(PAGEDKV_WIDE_VECTORS) && defined(__linux__)
  static const auto obtained = [] {
    if (!__builtin_cpu_supports("avx512f")) {
      return false;  // an older processor may not have leaf 7
    }
    constexpr auto needed = 1U << 22 | 1U << 24 | 1U << 25;  // AMX-BF16, AMX-TILE, AMX-INT8
    constexpr auto arch_prctl = 158;
    constexpr auto request_permission = 0x1023;
    constexpr auto matrix_registers = 18;
    auto leaf = 7U;
    auto subleaf = 0U;
    auto unused = 0U;
    auto features = 0U;
    asm("cpuid" : "+a"(leaf), "=b"(unused), "+c"(subleaf), "=d"(features));
    return (features & needed) == needed && syscall(arch_prctl, request_permission, matrix_registers) == 0;
  }();
  return obtained;
#else
  return false;
#endif
}

/// The best one that this processor supports.
[[nodiscard]] inline instruction_set best_instruction_set() noexcept {
#if defined(PAGEDKV_WIDE_VECTORS)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512dq")) {
    if (obtain_matrix_unit()) {
      return instruction_set::amx;
    }
    if (!__builtin_cpu_supports("avx512vnni")) {
      return instruction_set::avx512;
    }
    // Intel's processors multiply pairs of bfloat16 at half the rate of float32.
    const auto multiplies_pairs = __builtin_cpu_supports("avx512bf16") && !__builtin_cpu_is("intel");
    return multiplies_pairs ? instruction_set::avx512_bf16 : instruction_set::avx512_vnni;
  }
  if (has_wide_vectors && __builtin_cpu_supports("fma")) {
    return instruction_set::avx2;
  }
#endif
  return instruction_set::portable;
}

/// Whether the processor's own prefetching is worth a read of memory ahead in order: on AMD's processors it reaches a
/// rate that prefetches alone do not.
[[nodiscard]] inline bool follows_reads() noexcept {
#if defined(PAGEDKV_WIDE_VECTORS)
  return __builtin_cpu_is("amd");
#else
  return false;
#endif
}

}  // namespace pagedkv::host
