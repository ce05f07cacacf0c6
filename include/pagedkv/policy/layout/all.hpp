#pragma once

#include <pagedkv/policy/axis.hpp>
#include <pagedkv/policy/layout/hnd_block_major.hpp>
#include <pagedkv/policy/layout/hnd_layer_major.hpp>
#include <pagedkv/policy/layout/nhd_block_major.hpp>
#include <pagedkv/policy/layout/nhd_layer_major.hpp>

namespace pagedkv {

/// Every layout, once: for programs whose users choose one, and for what runs over all of them.
using all_layouts = policy_list<nhd_layer_major, nhd_block_major, hnd_layer_major, hnd_block_major>;

}  // namespace pagedkv
