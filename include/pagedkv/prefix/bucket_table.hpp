#pragma once

#include <pagedkv/core/ids.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace pagedkv {

/// Maps hashes to block ids; several ids may share a hash, and an id stands in it once at most. Open addressing over
/// buckets of one cache line. A full bucket passes entries on to the next and counts them, so that erasing leaves no
/// tombstones (the idea of Facebook's F14). Room for `num_blocks` ids; nothing allocates after construction.
///
/// With an atomic `Atomic` every member may be called from any thread and none waits. An id found may be gone or carry
/// another hash by the time it is looked at: the caller takes hold of the block, then compares.
template <template <class> class Atomic>
class bucket_table {
 public:
  explicit bucket_table(std::int32_t num_blocks)
      : num_buckets_(static_cast<std::size_t>(num_blocks) * 5 / 28 + 1),
        buckets_(std::make_unique<bucket[]>(num_buckets_)) {}

  void insert(std::uint64_t hash, block_id block) noexcept {
    for (auto index = home(hash);; index = next(index)) {
      for (auto& entry : buckets_[index].entries) {
        auto expected = empty;
        if (entry.load(std::memory_order_relaxed) == empty &&
            entry.compare_exchange_strong(expected, make_entry(hash, block), std::memory_order_release,
                                          std::memory_order_relaxed)) {
          return;
        }
      }
      buckets_[index].passed_on.fetch_add(1, std::memory_order_release);
    }
  }

  /// The id stands in the table under this hash.
  void erase(std::uint64_t hash, block_id block) noexcept {
    const auto sought = make_entry(hash, block);
    for (auto index = home(hash);; index = next(index)) {
      for (auto& entry : buckets_[index].entries) {
        if (entry.load(std::memory_order_relaxed) == sought) {
          entry.store(empty, std::memory_order_release);
          for (auto passed = home(hash); passed != index; passed = next(passed)) {
            buckets_[passed].passed_on.fetch_sub(1, std::memory_order_release);
          }
          return;
        }
      }
    }
  }

  /// Calls `accept(id)` on ids that may carry this hash until one returns true; returns that id, or `no_block`.
  template <class Accept>
  [[nodiscard]] block_id find(std::uint64_t hash, Accept&& accept) const {
    auto index = home(hash);
    for (std::size_t visited = 0; visited < num_buckets_; ++visited, index = next(index)) {
      for (const auto& entry : buckets_[index].entries) {
        const auto seen = entry.load(std::memory_order_acquire);
        if (seen != empty && (seen >> 32) == (hash >> 32)) {
          if (const auto block = block_of(seen); accept(block)) {
            return block;
          }
        }
      }
      if (buckets_[index].passed_on.load(std::memory_order_acquire) == 0) {
        break;
      }
    }
    return no_block;
  }

  void prefetch(std::uint64_t hash) const noexcept { __builtin_prefetch(&buckets_[home(hash)]); }

  [[nodiscard]] std::size_t metadata_bytes() const noexcept { return num_buckets_ * sizeof(bucket); }

 private:
  // Seven of eight words hold entries; 28 blocks to 5 buckets fill them to four fifths at most.
  struct alignas(64) bucket {
    Atomic<std::uint64_t> passed_on{0};
    std::array<Atomic<std::uint64_t>, 7> entries{};
  };

  static constexpr auto empty = std::uint64_t{0};

  // The upper half of the hash is the fingerprint, the lower half chooses the bucket.
  [[nodiscard]] static std::uint64_t make_entry(std::uint64_t hash, block_id block) noexcept {
    return (hash >> 32) << 32 | (static_cast<std::uint64_t>(block) + 1);
  }
  [[nodiscard]] static block_id block_of(std::uint64_t entry) noexcept {
    return static_cast<block_id>(static_cast<std::uint32_t>(entry) - 1);
  }
  [[nodiscard]] std::size_t home(std::uint64_t hash) const noexcept {
    return static_cast<std::size_t>((hash & 0xffff'ffff) * num_buckets_ >> 32);
  }
  [[nodiscard]] std::size_t next(std::size_t index) const noexcept { return index + 1 == num_buckets_ ? 0 : index + 1; }

  std::size_t num_buckets_;
  std::unique_ptr<bucket[]> buckets_;
};

}  // namespace pagedkv
