#include <pagedkv/device/attend.hpp>
#include <pagedkv/kernels/instantiations/instantiate.hpp>
#include <pagedkv/policy/element/int8.hpp>

PAGEDKV_INSTANTIATE_ELEMENT(pagedkv::float32)
PAGEDKV_INSTANTIATE_CONVERSION(pagedkv::float32, pagedkv::int8)
