// Copies and moves do not depend on the element.

#include <pagedkv/kernels/transfer/move_blocks.hpp>

namespace pagedkv::kernels {

template runtime::status launch_copies<wide_word>(const launch_shape&, runtime::stream, const block_storage_view&,
                                                  const block_storage_view&, const block_words&, const block_batch&);
template runtime::status launch_copies<std::byte>(const launch_shape&, runtime::stream, const block_storage_view&,
                                                  const block_storage_view&, const block_words&, const block_batch&);
template runtime::status launch_moves<wide_word>(const launch_shape&, runtime::stream, const block_storage_view&,
                                                 const block_words&, const move_batch&);
template runtime::status launch_moves<std::byte>(const launch_shape&, runtime::stream, const block_storage_view&,
                                                 const block_words&, const move_batch&);

}  // namespace pagedkv::kernels
