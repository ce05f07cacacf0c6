#include "attention_kernels.hpp"

PAGEDKV_INSTANTIATE_ATTENTION(pagedkv::float32, pagedkv::hip::attention_numbers)
PAGEDKV_INSTANTIATE_ATTENTION(pagedkv::float16, pagedkv::hip::attention_numbers)
PAGEDKV_INSTANTIATE_ATTENTION(pagedkv::bfloat16, pagedkv::hip::attention_numbers)
PAGEDKV_INSTANTIATE_ATTENTION(pagedkv::int8, pagedkv::hip::attention_numbers)
PAGEDKV_INSTANTIATE_ATTENTION(pagedkv::float8_e4m3, pagedkv::hip::attention_numbers)
PAGEDKV_INSTANTIATE_ATTENTION(pagedkv::float8_latent, pagedkv::hip::attention_numbers)
