#pragma once

#include <pagedkv/device/attend.hpp>
#include <pagedkv/policy/element/float8.hpp>
#include <pagedkv/policy/element/int8.hpp>

// For the executor, these kernels are compiled once, in attention_kernels.cpp: they take longer than a whole test file.
// A test that is built for a device compiles its own.
// One for AMD that a host's compiler builds is linked with code objects.

#if defined(__HIPCC__) || !defined(__HIP_PLATFORM_AMD__)
  #include <pagedkv/kernels/instantiations/instantiate.hpp>
#endif

#if !defined(__HIPCC__) && !defined(__CUDACC__) && !defined(__HIP_PLATFORM_AMD__)
// clang-format off: to it, macros without semicolons are one statement
extern PAGEDKV_INSTANTIATE_ATTENTION(pagedkv::float32, pagedkv::hip::attention_numbers)
extern PAGEDKV_INSTANTIATE_ATTENTION(pagedkv::float16, pagedkv::hip::attention_numbers)
extern PAGEDKV_INSTANTIATE_ATTENTION(pagedkv::bfloat16, pagedkv::hip::attention_numbers)
extern PAGEDKV_INSTANTIATE_ATTENTION(pagedkv::int8, pagedkv::hip::attention_numbers)
extern PAGEDKV_INSTANTIATE_ATTENTION(pagedkv::float8_e4m3, pagedkv::hip::attention_numbers)
extern PAGEDKV_INSTANTIATE_ATTENTION(pagedkv::float8_latent, pagedkv::hip::attention_numbers)
extern PAGEDKV_INSTANTIATE_EXPANSION(pagedkv::int8, pagedkv::bfloat16)
extern PAGEDKV_INSTANTIATE_EXPANSION(pagedkv::float8_e4m3, pagedkv::bfloat16)
extern PAGEDKV_INSTANTIATE_EXPANDED_ATTENTION(pagedkv::bfloat16, pagedkv::hip::attention_numbers)
// clang-format on
#endif
