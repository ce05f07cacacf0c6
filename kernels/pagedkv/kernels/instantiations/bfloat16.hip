#include <pagedkv/kernels/instantiations/all_kernels.hpp>
#include <pagedkv/policy/element/bfloat16.hpp>
#include <pagedkv/policy/element/float16.hpp>
#include <pagedkv/policy/element/float32.hpp>
#include <pagedkv/policy/element/int8.hpp>

namespace pagedkv::kernels {

auto bfloat16_row_launchers() { return row_launchers<bfloat16, float32, float16, bfloat16>(); }
auto bfloat16_convert_launchers() { return convert_launchers<bfloat16, float32, float16, int8>(); }

}  // namespace pagedkv::kernels
