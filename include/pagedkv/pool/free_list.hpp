#pragma once

#include <pagedkv/core/ids.hpp>
#include <pagedkv/policy/locking/concept.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>

namespace pagedkv {

/// The ids of free blocks. All memory is taken by the constructor; nothing else throws or allocates.
///
/// | requirement          | meaning                                                                                  |
/// |----------------------|------------------------------------------------------------------------------------------|
/// | `F(num_blocks)`      | holds every id in [0, num_blocks)                                                        |
/// | `f.pop()`            | an id, now the caller's; `no_block` only when none was free at some moment of the call   |
/// | `f.push(id)`         | gives back an id that `pop` returned; whether it did is for the caller to know           |
/// | `f.size()`           | how many it holds; with calls in progress, no fewer than at some moment meanwhile, and   |
/// |                      | what was done before a pop that it takes into account is known from then on              |
/// | `f.for_each(visit)`  | calls `visit(id)` on every id that it holds; no other call is in progress                |
/// | `f.metadata_bytes()` | memory held                                                                              |
template <class F>
concept free_list = std::constructible_from<F, std::int32_t> &&
                    requires(F list, const F& constant, block_id block, void (&visit)(block_id)) {
                      { list.pop() } noexcept -> std::same_as<block_id>;
                      { list.push(block) } noexcept;
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
