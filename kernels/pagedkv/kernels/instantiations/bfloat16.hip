#include <pagedkv/device/attend.hpp>
#include <pagedkv/kernels/instantiations/instantiate.hpp>
#include <pagedkv/policy/element/int8.hpp>

PAGEDKV_INSTANTIATE_ELEMENT(pagedkv::bfloat16)
PAGEDKV_INSTANTIATE_CONVERSION(pagedkv::bfloat16, pagedkv::int8)
PAGEDKV_INSTANTIATE_EXPANDED_ATTENTION(pagedkv::bfloat16, pagedkv::hip::attention_numbers)
