#include <pagedkv/device/attend.hpp>
#include <pagedkv/kernels/instantiations/instantiate.hpp>
#include <pagedkv/policy/element/float8.hpp>

// The rotated numbers are appended and gathered as bfloat16, by that element's file.

PAGEDKV_INSTANTIATE_APPEND_AND_GATHER(pagedkv::float8_latent::latent, pagedkv::float32)
PAGEDKV_INSTANTIATE_APPEND_AND_GATHER(pagedkv::float8_latent::latent, pagedkv::float16)
PAGEDKV_INSTANTIATE_APPEND_AND_GATHER(pagedkv::float8_latent::latent, pagedkv::bfloat16)

PAGEDKV_INSTANTIATE_ATTENTION(pagedkv::float8_latent, pagedkv::hip::attention_numbers)
