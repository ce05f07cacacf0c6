#include "attention_kernels.hpp"

PAGEDKV_INSTANTIATE_ATTENTION(pagedkv::float32, pagedkv::hip::attention_numbers)
PAGEDKV_INSTANTIATE_ATTENTION(pagedkv::float16, pagedkv::hip::attention_numbers)
PAGEDKV_INSTANTIATE_ATTENTION(pagedkv::bfloat16, pagedkv::hip::attention_numbers)
PAGEDKV_INSTANTIATE_ATTENTION(pagedkv::int8, pagedkv::hip::attention_numbers)
PAGEDKV_INSTANTIATE_ATTENTION(pagedkv::float8_e4m3, pagedkv::hip::attention_numbers)
PAGEDKV_INSTANTIATE_ATTENTION(pagedkv::float8_latent, pagedkv::hip::attention_numbers)
PAGEDKV_INSTANTIATE_EXPANSION(pagedkv::int8, pagedkv::bfloat16)
PAGEDKV_INSTANTIATE_EXPANSION(pagedkv::float8_e4m3, pagedkv::bfloat16)
PAGEDKV_INSTANTIATE_EXPANDED_ATTENTION(pagedkv::bfloat16, pagedkv::hip::attention_numbers)
