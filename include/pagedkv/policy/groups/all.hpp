#pragma once

#include <pagedkv/policy/axis.hpp>
#include <pagedkv/policy/groups/concept.hpp>

#include <string_view>

namespace pagedkv {

/// All layers are of full attention and share one block table per sequence. Other kinds of layers cost it nothing.
struct one_group {
  static constexpr bool layers_differ = false;
  static constexpr std::string_view name = "one_group";
};

static_assert(groups_policy<one_group>);

/// The groups of `cache_config::groups`, of full attention, windows, chunks, latent vectors or states, with a block
/// table each, in one pool of equal blocks.
///
/// A prompt shares the longest cached prefix, a multiple of `cache_config::block_size` tokens, from which every group
/// can continue: all blocks of full and latent groups, the last `window - 1` tokens and the sinks of windows, a state
/// saved at exactly that length. Where it ends inside a group's block, the block is copied.
///
/// Blocks behind the window of the next token are released when tokens are committed, never for tokens that are only
/// appended; steps in flight keep them. The queries of a step need them, so take its tables before the commit. A state
/// belongs to its sequence; commits save copies at the lengths that `sequence_options::saving` chooses.
struct layer_groups {
  static constexpr bool layers_differ = true;
  static constexpr std::string_view name = "layer_groups";
};

static_assert(groups_policy<layer_groups>);

/// Every policy for groups, once: for programs whose users choose one, and for what runs over all of them.
using all_groups = policy_list<one_group, layer_groups>;

}  // namespace pagedkv
