#pragma once

#include <pagedkv/core/ids.hpp>
#include <pagedkv/policy/locking/concept.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>

namespace pagedkv {

/// The ids of free blocks. The constructor allocates all memory; the other members neither throw nor allocate.
///
/// | requirement          | meaning                                                                                  |
/// |----------------------|------------------------------------------------------------------------------------------|
/// | `F(num_blocks)`      | holds every id in [0, num_blocks)                                                        |
/// | `f.pop()`            | an id, now the caller's; `no_block` only when none was free at some moment of the call   |
/// | `f.push(id)`         | returns an id that `pop` returned; the caller guarantees this                            |
/// | `f.take_from(id, v)` | takes out every id from `id` on and calls `v(taken)`; with calls in progress, may miss   |
/// |                      | ids that are pushed meanwhile                                                            |
/// | `f.size()`           | number of ids; with calls in progress, no fewer than at some moment meanwhile. Acquires  |
/// |                      | the writes before each pop that it counts                                                |
/// | `f.for_each(visit)`  | calls `visit(id)` on every id that it holds; no other call is in progress                |
/// | `f.metadata_bytes()` | memory held                                                                              |
template <class F>
concept free_list = std::constructible_from<F, std::int32_t> &&
                    requires(F list, const F& constant, block_id block, void (&visit)(block_id)) {
                      { list.pop() } noexcept -> std::same_as<block_id>;
                      { list.push(block) } noexcept;
                      { list.take_from(block, visit) } noexcept;
                      { constant.size() } noexcept -> std::same_as<std::int32_t>;
                      constant.for_each(visit);
                      { constant.metadata_bytes() } noexcept -> std::same_as<std::size_t>;
                    };

/// The free list of a family of components, as member `type`. Specialised next to each model.
template <class Family, locking Locking>
struct free_list_of;

template <locking Locking>
using free_list_for = typename free_list_of<typename Locking::family, Locking>::type;

}  // namespace pagedkv
