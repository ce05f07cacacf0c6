// Copies and moves do not depend on the element.

#include <pagedkv/kernels/move_blocks.hpp>
#include <pagedkv/kernels/swap_blocks.hpp>

#include <tuple>

namespace pagedkv::kernels {

auto block_launchers() { return std::tuple(&copy_blocks, &move_blocks, &swap_blocks); }

}  // namespace pagedkv::kernels
