#include <pagedkv/kernels/instantiations/all_kernels.hpp>
#include <pagedkv/policy/element/bfloat16.hpp>
#include <pagedkv/policy/element/float16.hpp>
#include <pagedkv/policy/element/float32.hpp>
#include <pagedkv/policy/element/int8.hpp>

namespace pagedkv::kernels {

auto float32_row_launchers() { return row_launchers<float32, float32, float16, bfloat16>(); }
auto float32_convert_launchers() { return convert_launchers<float32, float16, bfloat16, int8>(); }

}  // namespace pagedkv::kernels
