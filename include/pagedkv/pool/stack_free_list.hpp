#pragma once

#include <pagedkv/policy/locking/parts/unsynchronized.hpp>
#include <pagedkv/pool/free_list.hpp>

#include <algorithm>
#include <cassert>
#include <vector>

namespace pagedkv {

/// Pops the block that was freed last, because its memory may still be in the processor's caches. Of blocks that were
/// never used, it pops the lowest id.
class stack_free_list {
 public:
  explicit stack_free_list(std::int32_t num_blocks) {
    assert(num_blocks >= 0);
    blocks_.reserve(static_cast<std::size_t>(num_blocks));
    for (auto id = num_blocks - 1; id >= 0; --id) {
      blocks_.push_back(block_id{id});
    }
  }

  [[nodiscard]] block_id pop() noexcept {
    if (blocks_.empty()) {
      return no_block;
    }
    const auto block = blocks_.back();
    blocks_.pop_back();
    return block;
  }

  void push(block_id block) noexcept {
    assert(blocks_.size() < blocks_.capacity());
    blocks_.push_back(block);
  }

  template <class Visit>
  void take_from(block_id first, Visit&& visit) noexcept {
    std::erase_if(blocks_, [&](block_id block) {
      const auto taken = block >= first;
      if (taken) {
        visit(block);
      }
      return taken;
    });
  }

  [[nodiscard]] std::int32_t size() const noexcept { return static_cast<std::int32_t>(blocks_.size()); }

  template <class Visit>
  void for_each(Visit&& visit) const {
    std::ranges::for_each(blocks_, visit);
  }

  [[nodiscard]] std::size_t metadata_bytes() const noexcept { return blocks_.capacity() * sizeof(block_id); }

 private:
  std::vector<block_id> blocks_;
};

static_assert(free_list<stack_free_list>);

template <locking Locking>
struct free_list_of<unsynchronized_family, Locking> {
  using type = stack_free_list;
};

}  // namespace pagedkv
