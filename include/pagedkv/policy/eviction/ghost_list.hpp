#pragma once

#include <pagedkv/policy/eviction/block_lists.hpp>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace pagedkv {

/// Remembers evicted blocks by their hashes, each with a small note, in lists from oldest to newest. At most `capacity`
/// in all; everything is constant time.
template <class Note>
class ghost_list {
 public:
  using list_index = block_lists::list_index;

  struct ghost {
    std::uint64_t hash = 0;
    Note note{};
    list_index list = 0;
  };

  ghost_list(std::int32_t capacity, list_index num_lists)
      : order_(capacity, num_lists + 1),
        free_list_(num_lists),
        sizes_(num_lists, 0),
        ghosts_(static_cast<std::size_t>(capacity)),
        buckets_(std::bit_ceil(2 * static_cast<std::size_t>(capacity) + 1), no_block) {
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
    auto bucket = home(g.hash);
    while (buckets_[bucket] != no_block) {
      bucket = next(bucket);
    }
    buckets_[bucket] = place;
  }

  /// Forgets the oldest of a list that is not empty, and returns it.
  ghost pop_oldest(list_index list) noexcept {
    const auto place = order_.oldest(list);
    auto bucket = home(ghosts_[to_index(place)].hash);
    while (buckets_[bucket] != place) {
      bucket = next(bucket);
    }
    return forget(bucket);
  }

  /// Forgets a hash and returns what was remembered, if anything.
  std::optional<ghost> take(std::uint64_t hash) noexcept {
    for (auto bucket = home(hash); buckets_[bucket] != no_block; bucket = next(bucket)) {
      if (ghosts_[to_index(buckets_[bucket])].hash == hash) {
        return forget(bucket);
      }
    }
    return std::nullopt;
  }

  [[nodiscard]] std::size_t bytes() const noexcept {
    return order_.bytes() + sizes_.capacity() * sizeof(std::int32_t) + ghosts_.capacity() * sizeof(ghost) +
           buckets_.capacity() * sizeof(block_id);
  }

 private:
  [[nodiscard]] std::size_t home(std::uint64_t hash) const noexcept {
    return static_cast<std::size_t>(hash * 0x9e3779b97f4a7c15U >> 32) & (buckets_.size() - 1);
  }
  [[nodiscard]] std::size_t next(std::size_t bucket) const noexcept { return (bucket + 1) & (buckets_.size() - 1); }

  ghost forget(std::size_t bucket) noexcept {
    const auto place = buckets_[bucket];
    const auto gone = ghosts_[to_index(place)];
    order_.unlink(place);
    order_.push_newest(place, free_list_);
    --sizes_[gone.list];
    close_gap(bucket);
    return gone;
  }

  /// Linear probing without tombstones: entries that probed across the gap move into it.
  void close_gap(std::size_t gap) noexcept {
    for (auto bucket = next(gap); buckets_[bucket] != no_block; bucket = next(bucket)) {
      const auto wanted = home(ghosts_[to_index(buckets_[bucket])].hash);
      const auto mask = buckets_.size() - 1;
      if (((bucket - wanted) & mask) >= ((bucket - gap) & mask)) {
        buckets_[gap] = buckets_[bucket];
        gap = bucket;
      }
    }
    buckets_[gap] = no_block;
  }

  block_lists order_;
  list_index free_list_;
  std::vector<std::int32_t> sizes_;
  std::vector<ghost> ghosts_;
  std::vector<block_id> buckets_;  // open addressing into ghosts_
};

}  // namespace pagedkv
