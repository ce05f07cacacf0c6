#pragma once

#include <pagedkv/core/ids.hpp>
#include <pagedkv/detail/memory.hpp>
#include <pagedkv/detail/runs.hpp>

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace pagedkv {

/// How much a block table holds, for statistics.
struct table_usage {
  std::int64_t num_tokens = 0;
  std::int64_t num_blocks = 0;  // positions, dropped ones included
  std::int64_t bytes = 0;       // of memory
};

/// One sequence's blocks in order. Entries that the sequence dropped from its front are `no_block`; the indices of the
/// others do not change.
class block_table {
 public:
  [[nodiscard]] std::size_t size() const noexcept { return blocks_.size(); }
  [[nodiscard]] std::size_t num_dropped() const noexcept { return num_dropped_; }
  [[nodiscard]] block_id operator[](std::size_t index) const noexcept { return blocks_[index]; }
  [[nodiscard]] block_id back() const noexcept { return blocks_.back(); }
  [[nodiscard]] std::span<const block_id> all() const noexcept { return blocks_; }
  [[nodiscard]] std::span<const block_id> held() const noexcept { return all().subspan(num_dropped_); }

  /// Counts changes to existing entries; appending changes none.
  [[nodiscard]] std::uint32_t version() const noexcept { return version_; }

  /// Reserves memory for `size` entries in all, so that growth to that size does not allocate. False when memory is
  /// exhausted.
  [[nodiscard]] bool try_reserve(std::size_t size) noexcept {
    const auto grow = [&] {
      blocks_.reserve(std::max(size, 2 * blocks_.capacity()));
      return true;
    };
    return size <= blocks_.capacity() || detail::with_memory(grow, false);
  }

  /// Appends entries, which the caller fills in. Requires reserved memory.
  [[nodiscard]] std::span<block_id> extend(std::size_t count) noexcept {
    if (count == 1) {
      blocks_.push_back(no_block);  // an append to a full block: a tenth of the instructions of `resize`
    } else {
      blocks_.resize(blocks_.size() + count, no_block);
    }
    return std::span<block_id>(blocks_).last(count);  // nvcc cannot name what GCC 13's library deduces
  }
  void push_back(block_id block) noexcept { extend(1)[0] = block; }

  /// Removes entries that the last `extend` appended.
  void withdraw(std::size_t count) noexcept { cut(blocks_.size() - count); }

  void shrink(std::size_t size) noexcept {
    cut(size);
    ++version_;
  }

  void replace(std::size_t index, block_id block) noexcept {
    blocks_[index] = block;
    ++version_;
  }

  /// Marks the entries before `index` as dropped.
  void drop_before(std::size_t index) noexcept {
    while (num_dropped_ < index) {
      blocks_[num_dropped_++] = no_block;
    }
    ++version_;
  }

  /// Keeps the memory for the next sequence that gets this record.
  void clear() noexcept {
    blocks_.clear();
    num_dropped_ = 0;
    ++version_;
  }

  /// Copies the first `size` entries of another table, which has dropped no more. Requires reserved memory.
  void copy(const block_table& other, std::size_t size) noexcept {
    blocks_.clear();
    copy_run(other.all().first(size), extend(size));
    num_dropped_ = other.num_dropped_;
    ++version_;
  }

  [[nodiscard]] table_usage usage(std::int64_t num_tokens) const noexcept {
    return {num_tokens, static_cast<std::int64_t>(blocks_.size()),
            static_cast<std::int64_t>(blocks_.capacity() * sizeof(block_id))};
  }

 private:
  void cut(std::size_t size) noexcept {
    assert(size <= blocks_.size() && "no more entries than there are");
    if (size > blocks_.size()) {
      __builtin_unreachable();  // otherwise g++ 12 warns of a `resize` that grows
    }
    blocks_.resize(size);
  }

  std::vector<block_id> blocks_;
  std::size_t num_dropped_ = 0;
  std::uint32_t version_ = 0;
};

[[nodiscard]] constexpr slot make_slot(block_id block, std::int32_t block_size, std::int64_t offset) noexcept {
  return static_cast<slot>(static_cast<std::int64_t>(block) * block_size + offset);
}

/// Slots of the tokens from `first_token` on, one for each element of `slots`; `skip_slot` in blocks that were dropped.
inline void fill_slots(const block_table& blocks, std::int32_t block_size, std::int64_t first_token,
                       std::span<slot> slots) noexcept {
  auto index = static_cast<std::size_t>(first_token / block_size);
  auto offset = first_token % block_size;
  for (std::size_t done = 0; done < slots.size(); ++index, offset = 0) {
    const auto run = slots.subspan(done, std::min(slots.size() - done, static_cast<std::size_t>(block_size - offset)));
    if (blocks[index] == no_block) {
      std::ranges::fill(run, skip_slot);
    } else {
      auto next = static_cast<std::int64_t>(make_slot(blocks[index], block_size, offset));
      std::ranges::generate(run, [&] { return static_cast<slot>(next++); });
    }
    done += run.size();
  }
}

}  // namespace pagedkv
