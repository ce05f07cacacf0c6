#include "host_kernels.hpp"

PAGEDKV_TEST_HOST_KERNELS(pagedkv::float32);
PAGEDKV_TEST_HOST_KERNELS(pagedkv::float16);
PAGEDKV_TEST_HOST_KERNELS(pagedkv::bfloat16);
PAGEDKV_TEST_HOST_KERNELS(pagedkv::int8);
PAGEDKV_TEST_HOST_KERNELS(pagedkv::float8_e4m3);
