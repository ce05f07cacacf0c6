#pragma once

#include <pagedkv/core/storage_formats.hpp>
#include <pagedkv/host/attention/plan.hpp>
#include <pagedkv/host/instruction_set.hpp>
#include <pagedkv/policy/element/bfloat16.hpp>
#include <pagedkv/policy/element/float16.hpp>
#include <pagedkv/policy/element/float32.hpp>
#include <pagedkv/policy/element/int8.hpp>
#include <pagedkv/policy/element/parts/float8.hpp>

#include <bit>
#include <cmath>
#include <concepts>
#include <limits>
#include <numeric>
#include <utility>

// Unrolled: compilers leave these loops rolled at -O2, and then the arrays are in memory instead of registers. Kernels
// for devices have a macro of the same name.
#pragma push_macro("PAGEDKV_UNROLL")
#undef PAGEDKV_UNROLL
#if defined(__clang__)
  #define PAGEDKV_UNROLL _Pragma("unroll")
#else
  #define PAGEDKV_UNROLL _Pragma("GCC unroll 16")
#endif

#if defined(PAGEDKV_WIDE_VECTORS)
  #include <immintrin.h>

  #define PAGEDKV_ISA avx512
  #define PAGEDKV_LANES 16
  #define PAGEDKV_TARGET gnu::target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")
  #define PAGEDKV_INLINE [[PAGEDKV_TARGET, gnu::always_inline]] inline
  #define PAGEDKV_NOINLINE [[PAGEDKV_TARGET, gnu::noinline]] inline
  #define PAGEDKV_PAIRS_TARGET gnu::target("avx512bf16,avx512vnni,avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")
  #define PAGEDKV_PAIRS_INLINE [[PAGEDKV_PAIRS_TARGET, gnu::always_inline]] inline
  #define PAGEDKV_PAIRS_NOINLINE [[PAGEDKV_PAIRS_TARGET, gnu::noinline]] inline
  #include <pagedkv/host/attention/pieces.inl>
  #undef PAGEDKV_ISA
  #undef PAGEDKV_LANES
  #undef PAGEDKV_TARGET

  #define PAGEDKV_ISA avx2
  #define PAGEDKV_LANES 8
  #define PAGEDKV_TARGET gnu::target("avx2,fma,f16c")
  #include <pagedkv/host/attention/pieces.inl>
  #undef PAGEDKV_ISA
  #undef PAGEDKV_LANES
  #undef PAGEDKV_TARGET
  #undef PAGEDKV_INLINE
  #undef PAGEDKV_NOINLINE
  #undef PAGEDKV_PAIRS_TARGET
  #undef PAGEDKV_PAIRS_INLINE
  #undef PAGEDKV_PAIRS_NOINLINE
#endif

#define PAGEDKV_ISA portable
#define PAGEDKV_LANES 4
#define PAGEDKV_INLINE [[gnu::always_inline]] inline
#define PAGEDKV_NOINLINE [[gnu::noinline]] inline
#include <pagedkv/host/attention/pieces.inl>
#undef PAGEDKV_ISA
#undef PAGEDKV_LANES
#undef PAGEDKV_INLINE
#undef PAGEDKV_NOINLINE
#undef PAGEDKV_UNROLL
#pragma pop_macro("PAGEDKV_UNROLL")

namespace pagedkv::host::attention {

/// The two phases of an operation, each for any number of threads: first the pieces, then the units shared by pieces.
struct kernels {
  void (*run_piece)(const attention_call&, const work_plan&, const piece&, float* scratch, float* partials);
  void (*merge_chunks)(const attention_call&, const work_plan&, const unit&, std::int32_t head, float* partials);
};

/// Whether an instruction set has sums of products of pairs of an element, without the matrix unit.
template <element Element>
[[nodiscard]] constexpr bool has_pair_products(instruction_set set) noexcept {
  return (set == instruction_set::avx512_vnni && std::same_as<Element, int8>) ||
         (set == instruction_set::avx512_bf16 && (std::same_as<Element, int8> || std::same_as<Element, bfloat16>));
}

#if defined(PAGEDKV_WIDE_VECTORS)
/// With AVX-512. Heads that are whole vectors of AVX2 alone are read there: they need no decoding first. With more rows
/// of more numbers, the products take longer than that.
template <element Element>
void run_wide_piece(const attention_call& call, const work_plan& plan, const piece& p, float* scratch,
                    float* partials) {
  constexpr auto most_numbers = 512;  // of all queries of a KV head
  const auto dims = call.view.head_dim | call.view.dim_of_values();
  const auto suits_avx2 = avx2::is_native<Element> && dims % avx2::lanes == 0 && dims % avx512::lanes != 0;
  const auto num_rows = rows_of(call, plan.units[p.unit]);
  if (suits_avx2 && num_rows < rows_to_decode_for && num_rows * call.view.head_dim <= most_numbers) {
    avx2::run_piece<Element>(call, plan, p, scratch, partials);
  } else {
    avx512::run_piece<Element>(call, plan, p, scratch, partials);
  }
}
#endif

template <element Element>
[[nodiscard]] kernels kernels_for(instruction_set set) noexcept {
  switch (set) {
#if defined(PAGEDKV_WIDE_VECTORS)
    case instruction_set::amx:
    case instruction_set::avx512_bf16:
    case instruction_set::avx512_vnni:
    case instruction_set::avx512: return {run_wide_piece<Element>, avx512::merge_chunks};
    case instruction_set::avx2: return {avx2::run_piece<Element>, avx2::merge_chunks};
#endif
    default: return {portable::run_piece<Element>, portable::merge_chunks};
  }
}

}  // namespace pagedkv::host::attention
