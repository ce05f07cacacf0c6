#pragma once

#include <pagedkv/policy/axis.hpp>
#include <pagedkv/policy/layout/hnd_block_major.hpp>
#include <pagedkv/policy/layout/hnd_layer_major.hpp>
#include <pagedkv/policy/layout/nhd_block_major.hpp>
#include <pagedkv/policy/layout/nhd_layer_major.hpp>
#include <pagedkv/policy/layout/shuffled_block_major.hpp>
#include <pagedkv/policy/layout/shuffled_layer_major.hpp>
#include <pagedkv/policy/layout/transposed_block_major.hpp>
#include <pagedkv/policy/layout/transposed_layer_major.hpp>

namespace pagedkv {

/// Every layout, once: for programs whose users choose one, and for what runs over all of them.
using all_layouts =
    policy_list<nhd_layer_major, nhd_block_major, hnd_layer_major, hnd_block_major, transposed_layer_major,
                transposed_block_major, shuffled_layer_major, shuffled_block_major>;

/// The layouts in which a row is contiguous: those of any sizes, and those that attention reads.
using strided_layouts = policy_list<nhd_layer_major, nhd_block_major, hnd_layer_major, hnd_block_major>;

/// The layouts of other engines' kernels. They need sizes that whole pieces of 16 bytes fill.
using piecewise_layouts =
    policy_list<transposed_layer_major, transposed_block_major, shuffled_layer_major, shuffled_block_major>;

}  // namespace pagedkv
