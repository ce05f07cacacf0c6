#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace pagedkv {

/// Finds places in an array of the owner's by hash: open addressing with linear probing, constant time, 8 to 16 bytes
/// per place. The index stores no hashes: `hash_of(place)` is called for those that it meets.
class place_index {
 public:
  using place = std::uint32_t;

  explicit place_index(std::size_t capacity) : buckets_(std::bit_ceil(2 * capacity + 1), empty) {}

  template <class HashOf>
  void insert(place p, HashOf hash_of) noexcept {
    auto bucket = home(hash_of(p));
    while (buckets_[bucket] != empty) {
      bucket = next(bucket);
    }
    buckets_[bucket] = p;
  }

  template <class HashOf>
  [[nodiscard]] std::optional<place> find(std::uint64_t hash, HashOf hash_of) const noexcept {
    for (auto bucket = home(hash); buckets_[bucket] != empty; bucket = next(bucket)) {
      if (hash_of(buckets_[bucket]) == hash) {
        return buckets_[bucket];
      }
    }
    return std::nullopt;
  }

  /// Erases a place that is in the index. No tombstones: entries that probed across the gap move into it.
  template <class HashOf>
  void erase(place p, HashOf hash_of) noexcept {
    auto gap = home(hash_of(p));
    while (buckets_[gap] != p) {
      gap = next(gap);
    }
    for (auto bucket = next(gap); buckets_[bucket] != empty; bucket = next(bucket)) {
      const auto wanted = home(hash_of(buckets_[bucket]));
      if (((bucket - wanted) & mask()) >= ((bucket - gap) & mask())) {
        buckets_[gap] = buckets_[bucket];
        gap = bucket;
      }
    }
    buckets_[gap] = empty;
  }

  [[nodiscard]] std::size_t bytes() const noexcept { return buckets_.capacity() * sizeof(place); }

 private:
  static constexpr auto empty = UINT32_MAX;

  [[nodiscard]] std::size_t mask() const noexcept { return buckets_.size() - 1; }
  [[nodiscard]] std::size_t next(std::size_t bucket) const noexcept { return (bucket + 1) & mask(); }
  [[nodiscard]] std::size_t home(std::uint64_t hash) const noexcept {
    return static_cast<std::size_t>(hash * 0x9e3779b97f4a7c15U >> 32) & mask();
  }

  std::vector<place> buckets_;
};

}  // namespace pagedkv
