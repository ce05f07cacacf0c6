#include <pagedkv/device/attend.hpp>
#include <pagedkv/kernels/instantiations/instantiate.hpp>
#include <pagedkv/policy/element/float8.hpp>

// With one scale for all keys of a layer and one for all values. A program whose scales are those of heads, or of
// tokens and heads, has a file of its own with these macros.

PAGEDKV_INSTANTIATE_ELEMENT(pagedkv::float8_e4m3fnuz)
PAGEDKV_INSTANTIATE_CONVERSION(pagedkv::float8_e4m3fnuz, pagedkv::float8_e4m3fnuz)
PAGEDKV_INSTANTIATE_CONVERSION(pagedkv::float32, pagedkv::float8_e4m3fnuz)
PAGEDKV_INSTANTIATE_CONVERSION(pagedkv::float16, pagedkv::float8_e4m3fnuz)
PAGEDKV_INSTANTIATE_CONVERSION(pagedkv::bfloat16, pagedkv::float8_e4m3fnuz)
