#include <pagedkv/kernels/instantiations/all_kernels.hpp>
#include <pagedkv/policy/element/bfloat16.hpp>
#include <pagedkv/policy/element/float16.hpp>
#include <pagedkv/policy/element/float32.hpp>
#include <pagedkv/policy/element/int8.hpp>

namespace pagedkv::kernels {

auto int8_row_launchers() { return row_launchers<int8, float32, float16, bfloat16>(); }
auto int8_convert_launchers() { return convert_launchers<int8, float32, float16, bfloat16>(); }

}  // namespace pagedkv::kernels
