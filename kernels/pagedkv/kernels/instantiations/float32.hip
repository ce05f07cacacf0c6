#include <pagedkv/device/attention_numbers.hpp>
#include <pagedkv/kernels/instantiations/instantiate.hpp>
#include <pagedkv/policy/element/bfloat16.hpp>
#include <pagedkv/policy/element/float16.hpp>
#include <pagedkv/policy/element/float32.hpp>
#include <pagedkv/policy/element/int8.hpp>

PAGEDKV_INSTANTIATE_ROWS(pagedkv::float32, pagedkv::float32)
PAGEDKV_INSTANTIATE_ROWS(pagedkv::float32, pagedkv::float16)
PAGEDKV_INSTANTIATE_ROWS(pagedkv::float32, pagedkv::bfloat16)
PAGEDKV_INSTANTIATE_CONVERSION(pagedkv::float32, pagedkv::float32)
PAGEDKV_INSTANTIATE_CONVERSION(pagedkv::float32, pagedkv::float16)
PAGEDKV_INSTANTIATE_CONVERSION(pagedkv::float32, pagedkv::bfloat16)
PAGEDKV_INSTANTIATE_CONVERSION(pagedkv::float32, pagedkv::int8)

PAGEDKV_INSTANTIATE_ATTENTION(pagedkv::float32, pagedkv::hip::attention_numbers)
