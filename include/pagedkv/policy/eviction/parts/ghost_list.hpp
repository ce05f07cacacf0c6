#pragma once

#include <pagedkv/policy/eviction/parts/chain_lists.hpp>

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

/// Remembers evicted blocks by their hashes, in lists from oldest to newest. At most `capacity` in all; everything is
/// constant time; 32 to 40 bytes per block remembered.
class ghost_list {
 public:
  using list_index = block_lists::list_index;

  struct ghost {
    std::uint64_t hash = 0;
    list_index list = 0;
  };

  ghost_list(std::int32_t capacity, list_index num_lists)
      : order_(capacity, num_lists + 1),
        free_list_(num_lists),
        sizes_(num_lists, 0),
        ghosts_(static_cast<std::size_t>(capacity)),
        index_(static_cast<std::size_t>(capacity)) {
    for (auto i = std::int32_t{0}; i < capacity; ++i) {
      order_.push_newest(block_id{i}, free_list_);
    }
  }

  [[nodiscard]] bool full() const noexcept { return order_.empty(free_list_); }
  [[nodiscard]] std::int32_t size(list_index list) const noexcept { return sizes_[list]; }

  /// Room is required. A hash that is remembered already is remembered twice, and taken once.
  void push(const ghost& g) noexcept {
    const auto place = order_.oldest(free_list_);
    order_.unlink(place);
    order_.push_newest(place, g.list);
    ++sizes_[g.list];
    ghosts_[to_index(place)] = g;
    index_.insert(static_cast<place_index::place>(place), hash_of());
  }

  /// Forgets the oldest of a list that is not empty.
  void pop_oldest(list_index list) noexcept { forget(order_.oldest(list)); }

  /// Forgets a hash and returns what was remembered, if anything.
  std::optional<ghost> take(std::uint64_t hash) noexcept {
    const auto place = index_.find(hash, hash_of());
    return place ? std::optional{forget(static_cast<block_id>(*place))} : std::nullopt;
  }

  [[nodiscard]] std::size_t bytes() const noexcept {
    return order_.bytes() + sizes_.capacity() * sizeof(std::int32_t) + ghosts_.capacity() * sizeof(ghost) +
           index_.bytes();
  }

 private:
  struct hash_reader {
    const std::vector<ghost>& ghosts;

    std::uint64_t operator()(place_index::place at) const noexcept { return ghosts[at].hash; }
  };

  [[nodiscard]] hash_reader hash_of() const noexcept { return {ghosts_}; }

  ghost forget(block_id place) noexcept {
    const auto gone = ghosts_[to_index(place)];
    index_.erase(static_cast<place_index::place>(place), hash_of());
    order_.unlink(place);
    order_.push_newest(place, free_list_);
    --sizes_[gone.list];
    return gone;
  }

  block_lists order_;  // of places in ghosts_
  list_index free_list_;
  std::vector<std::int32_t> sizes_;
  std::vector<ghost> ghosts_;
  place_index index_;
};

}  // namespace pagedkv
