#pragma once

#include <pagedkv/policy/eviction/place_index.hpp>
#include <pagedkv/policy/eviction/reuse_model.hpp>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace pagedkv {

/// Follows every released block for a while, whether it stays in the cache or is evicted meanwhile: what is learned
/// from it is not only what the cache happened to keep. Time is counted in releases. The log goes back two to four
/// releases per block of the pool, or 65,536 if that is more; 14 bytes each.
class reuse_log {
 public:
  using time = std::uint32_t;  // wraps

  static constexpr auto stride = time{4};

  struct use {
    std::uint8_t block_class = 0;
    time age = 0;
  };

  explicit reuse_log(std::int32_t num_blocks)
      : hashes_(std::max(min_length, std::bit_ceil(2 * static_cast<std::size_t>(num_blocks)))),
        records_(hashes_.size()),
        index_(hashes_.size() - 1) {
    while (num_bins_ < age_bins::count && age_bins::start(num_bins_) < hashes_.size()) {
      ++num_bins_;
    }
  }

  [[nodiscard]] time now() const noexcept { return now_; }

  /// Notes a release, at the time `now()`, which then moves on; the oldest is forgotten. Of one in `stride` of the
  /// releases that reach a new bin of ages with their block unused, `reached(class, bin)` is told: neighbours are of
  /// one chain and much alike.
  template <class Reached>
  void add(std::uint64_t hash, std::uint8_t block_class, Reached reached) noexcept {
    const auto at = place(now_);
    if (records_[at].where == block_place::evicted) {
      index_.erase(at, hash_of());
    }
    hashes_[at] = short_hash(hash);
    records_[at] = {block_class, block_place::resident};
    for (auto bin = std::size_t{now_ % stride}; bin < num_bins_; bin += stride) {
      if (const auto& r = records_[place(now_ - age_bins::start(bin))]; r.where != block_place::used_again) {
        reached(r.block_class, bin);
      }
    }
    ++now_;
  }

  /// A block released then was used again. Nothing if that is forgotten.
  std::optional<use> use_resident(time released) noexcept {
    return current(released) ? std::optional{end(place(released))} : std::nullopt;
  }

  /// A block released then was evicted: from now on it is found by its hash.
  void evict(time released) noexcept {
    if (current(released)) {
      records_[place(released)].where = block_place::evicted;
      index_.insert(place(released), hash_of());
    }
  }

  /// A block that may have been evicted is needed again. Nothing if it was not, or that is forgotten.
  std::optional<use> use_evicted(std::uint64_t hash) noexcept {
    const auto at = index_.find(short_hash(hash), hash_of());
    if (!at) {
      return std::nullopt;
    }
    index_.erase(*at, hash_of());
    return end(*at);
  }

  [[nodiscard]] std::size_t bytes() const noexcept {
    return hashes_.capacity() * sizeof(std::uint32_t) + records_.capacity() * sizeof(record) + index_.bytes();
  }

 private:
  static constexpr auto min_length = std::size_t{65536};

  enum class block_place : std::uint8_t { used_again, resident, evicted };

  struct record {
    std::uint8_t block_class = 0;
    block_place where = block_place::used_again;
  };

  struct hash_reader {
    const std::vector<std::uint32_t>& hashes;

    std::uint64_t operator()(place_index::place at) const noexcept { return hashes[at]; }
  };

  [[nodiscard]] static std::uint32_t short_hash(std::uint64_t hash) noexcept {
    return static_cast<std::uint32_t>(hash >> 32);
  }

  [[nodiscard]] hash_reader hash_of() const noexcept { return {hashes_}; }
  [[nodiscard]] std::uint32_t mask() const noexcept { return static_cast<std::uint32_t>(hashes_.size() - 1); }
  [[nodiscard]] place_index::place place(time t) const noexcept { return t & mask(); }

  [[nodiscard]] bool current(time released) const noexcept {
    return now_ - released <= hashes_.size() && records_[place(released)].where == block_place::resident;
  }

  use end(place_index::place at) noexcept {
    records_[at].where = block_place::used_again;
    return {records_[at].block_class, ((now_ - 1 - at) & mask()) + 1};
  }

  // Rings of the same length, a power of two.
  std::vector<std::uint32_t> hashes_;
  std::vector<record> records_;
  place_index index_;  // of evicted blocks
  std::size_t num_bins_ = 1;
  time now_ = 0;
};

}  // namespace pagedkv
