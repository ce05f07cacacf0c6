#pragma once

#include <pagedkv/core/ids.hpp>
#include <pagedkv/policy/locking/concept.hpp>
#include <pagedkv/policy/locking/parts/unsynchronized.hpp>

#include <algorithm>
#include <cassert>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <vector>

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

/// Pops the block that was freed last, because its memory may still be in the processor's caches. Of blocks that were
/// never used, it pops the lowest id.
class stack_free_list {
 public:
  explicit stack_free_list(std::int32_t num_blocks) : end_of_unused_(num_blocks) {
    assert(num_blocks >= 0);
    freed_.reserve(static_cast<std::size_t>(num_blocks));
  }

  [[nodiscard]] block_id pop() noexcept {
    if (freed_.empty()) {
      return first_unused_ < end_of_unused_ ? block_id{first_unused_++} : no_block;
    }
    const auto block = freed_.back();
    freed_.pop_back();
    return block;
  }

  void push(block_id block) noexcept {
    assert(static_cast<std::size_t>(size()) < freed_.capacity());
    freed_.push_back(block);
  }

  template <class Visit>
  void take_from(block_id first, Visit&& visit) noexcept {
    std::erase_if(freed_, [&](block_id block) {
      const auto taken = block >= first;
      if (taken) {
        visit(block);
      }
      return taken;
    });
    const auto begin = std::max(first_unused_, static_cast<std::int32_t>(first));
    for (auto id = begin; id < end_of_unused_; ++id) {
      visit(block_id{id});
    }
    end_of_unused_ = std::min(end_of_unused_, begin);
  }

  [[nodiscard]] std::int32_t size() const noexcept {
    return static_cast<std::int32_t>(freed_.size()) + end_of_unused_ - first_unused_;
  }

  template <class Visit>
  void for_each(Visit&& visit) const {
    std::ranges::for_each(freed_, visit);
    for (auto id = first_unused_; id < end_of_unused_; ++id) {
      visit(block_id{id});
    }
  }

  [[nodiscard]] std::size_t metadata_bytes() const noexcept { return freed_.capacity() * sizeof(block_id); }

 private:
  // Unused blocks have no entries, so that the constructor writes none.
  std::vector<block_id> freed_;
  std::int32_t first_unused_ = 0;
  std::int32_t end_of_unused_;
};

static_assert(free_list<stack_free_list>);

template <locking Locking>
struct free_list_of<unsynchronized_family, Locking> {
  using type = stack_free_list;
};

}  // namespace pagedkv
