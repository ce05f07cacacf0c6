#pragma once

#include <pagedkv/core/ids.hpp>

#include <concepts>
#include <cstdint>

namespace pagedkv {

/// The chains of published blocks, as a pool sees them when it looks for victims. The prefix index models it, and so do
/// `cache_state::chains()` and `group_state::chains()`, which tell events of what is erased. Blocks are published; the
/// pool calls `detach`, `attach` and `erase` only on blocks that it has claimed, which no look-up holds any more.
///
/// | requirement             | meaning                                                                               |
/// |-------------------------|---------------------------------------------------------------------------------------|
/// | `c.has_children(id)`    | whether published blocks continue this one: it is not offered before them             |
/// | `c.has_twin(id, stays)` | whether another published block, for which `stays(twin)` is true, has equal contents  |
/// | `c.detach(id)`          | the block is about to be erased: its parent has one child less                        |
/// | `c.attach(id)`          | takes `detach` back                                                                   |
/// | `c.erase(id)`           | forgets a detached block, whose id gets other contents                                |
/// | `c.withdraw(id)`        | hides a block from look-ups until it is erased                                        |
///
/// It may have `c.prefetch_victims(next, then)`, too: called ahead of the eviction of these two.
template <class C>
concept block_chains = requires(C chains, const C& constant, block_id block, bool (*stays)(block_id)) {
  { constant.has_children(block) } -> std::same_as<bool>;
  { constant.has_twin(block, stays) } -> std::same_as<bool>;
  chains.detach(block);
  chains.attach(block);
  chains.erase(block);
  chains.withdraw(block);
};

/// Chains in which an eviction may make other blocks useless: those of groups, which lose the blocks of one prefix
/// together. `c.free_useless()` frees these, and returns their number.
template <class C>
concept pruned_chains = block_chains<C> && requires(C chains) {
  { chains.free_useless() } -> std::convertible_to<std::int64_t>;
};

/// Chains that a search for runs follows from a block to the one before it: `c.parent(id)`, `no_block` without one, and
/// `c.num_children(id)`, of which only 0, 1 and more are told apart.
template <class C>
concept linked_chains = block_chains<C> && requires(const C& constant, block_id block) {
  { constant.parent(block) } -> std::same_as<block_id>;
  { constant.num_children(block) } -> std::convertible_to<std::uint64_t>;
};

}  // namespace pagedkv
