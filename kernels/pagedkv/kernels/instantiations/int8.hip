#include <pagedkv/device/attention_numbers.hpp>
#include <pagedkv/kernels/instantiations/instantiate.hpp>
#include <pagedkv/policy/element/bfloat16.hpp>
#include <pagedkv/policy/element/float16.hpp>
#include <pagedkv/policy/element/float32.hpp>
#include <pagedkv/policy/element/int8.hpp>

PAGEDKV_INSTANTIATE_ROWS(pagedkv::int8, pagedkv::float32)
PAGEDKV_INSTANTIATE_ROWS(pagedkv::int8, pagedkv::float16)
PAGEDKV_INSTANTIATE_ROWS(pagedkv::int8, pagedkv::bfloat16)
PAGEDKV_INSTANTIATE_CONVERSION(pagedkv::int8, pagedkv::int8)
PAGEDKV_INSTANTIATE_CONVERSION(pagedkv::int8, pagedkv::float32)
PAGEDKV_INSTANTIATE_CONVERSION(pagedkv::int8, pagedkv::float16)
PAGEDKV_INSTANTIATE_CONVERSION(pagedkv::int8, pagedkv::bfloat16)

PAGEDKV_INSTANTIATE_ATTENTION(pagedkv::int8, pagedkv::hip::attention_numbers)
