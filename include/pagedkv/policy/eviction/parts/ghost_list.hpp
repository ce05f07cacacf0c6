#pragma once

#include <pagedkv/policy/eviction/parts/block_lists.hpp>
#include <pagedkv/policy/eviction/parts/place_index.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace pagedkv {

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
