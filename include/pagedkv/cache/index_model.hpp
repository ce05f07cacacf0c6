#pragma once

#include <pagedkv/core/config.hpp>
#include <pagedkv/core/ids.hpp>
#include <pagedkv/core/result.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>

namespace pagedkv {

/// Everything that a cache knows about blocks, without their K/V. There are two models: `cache_state`, in which a block
/// is a node of the prefix index, and `group_state`, in which the blocks of several groups are attached to nodes of
/// their own. `kv_cache` and the operations below `cache/` are written over either; a verb whose work differs has an
/// overload for `detail::layered` states.
///
/// | requirement                          | meaning                                                                   |
/// |--------------------------------------|---------------------------------------------------------------------------|
/// | `S::layers_differ`                   | whether blocks are apart from nodes                                       |
/// | `S::sequence_type`                   | a sequence's record                                                       |
/// | `S::locking_type`, `S::events_type`  | the policies                                                              |
/// | `s.config`, `s.pool`, `s.events`     | the configuration, the block pool, the stream of changes                  |
/// | `s.sequences`, `s.pins`, `s.counts`  | open records, counters                                                    |
/// | `s.time()`                           | the cache's time                                                          |
/// | `s.node_index()`                     | finds nodes by their tokens: `root(salt)`, `hash(before, contents)`       |
/// | `s.tokens_per_node()`                | how many tokens a node has                                                |
/// | `s.commits_only_publish()`           | whether a commit that reaches the end of no node does no more than note it |
/// | `s.guard_nodes()`                    | keeps other threads out of nodes and pool, where the components do not    |
/// | `s.chains()`, `s.silent_chains()`    | the nodes as `block_chains`, for the pool; without events                 |
/// | `s.free_useless(fence, freed)`       | frees what evictions made useless, and calls `freed(block)`               |
/// | `s.retire_step(step)`                | ends a step                                                               |
/// | `s.index_bytes()`                    | bytes of the nodes                                                        |
template <class S>
concept index_model = requires(S state, const S& constant, step_id step, void (*freed)(block_id)) {
  typename S::sequence_type;
  typename S::locking_type;
  typename S::events_type;
  { S::layers_differ } -> std::convertible_to<bool>;
  { constant.config } -> std::convertible_to<const cache_config&>;
  { constant.time() } noexcept -> std::same_as<timestamp>;
  { constant.node_index().root(salt::none).hash } -> std::convertible_to<std::uint64_t>;
  { constant.tokens_per_node() } noexcept -> std::same_as<std::size_t>;
  { constant.index_bytes() } noexcept -> std::same_as<std::size_t>;
  { constant.commits_only_publish() } noexcept -> std::same_as<bool>;
  constant.guard_nodes();
  state.chains();
  state.silent_chains();
  state.free_useless(0U, freed);
  { state.retire_step(step) } noexcept -> std::same_as<result<void>>;
  state.pool;
  state.sequences;
  state.pins;
  state.counts;
  state.events;
};

namespace detail {

/// A state whose blocks are apart from nodes. Overloads for it need no more than this to be chosen.
template <class State>
concept layered = State::layers_differ;

}  // namespace detail

}  // namespace pagedkv
