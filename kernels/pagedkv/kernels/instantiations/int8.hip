#include <pagedkv/device/attend.hpp>
#include <pagedkv/kernels/instantiations/instantiate.hpp>
#include <pagedkv/policy/element/int8.hpp>

PAGEDKV_INSTANTIATE_ELEMENT(pagedkv::int8)
PAGEDKV_INSTANTIATE_CONVERSION(pagedkv::int8, pagedkv::int8)
