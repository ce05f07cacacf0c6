#pragma once

#include <pagedkv/host/attend.hpp>
#include <pagedkv/policy/element/float8.hpp>

// Compiled once, in host_kernels.cpp: the vector code of all elements takes longer than a whole test file.

#define PAGEDKV_TEST_HOST_KERNELS(element) \
  template pagedkv::host::attention::kernels pagedkv::host::attention::kernels_for<element>(pagedkv::host::instruction_set)

extern PAGEDKV_TEST_HOST_KERNELS(pagedkv::float32);
extern PAGEDKV_TEST_HOST_KERNELS(pagedkv::float16);
extern PAGEDKV_TEST_HOST_KERNELS(pagedkv::bfloat16);
extern PAGEDKV_TEST_HOST_KERNELS(pagedkv::int8);
extern PAGEDKV_TEST_HOST_KERNELS(pagedkv::float8_e4m3);
