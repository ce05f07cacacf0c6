#pragma once

#include <pagedkv/policy/eviction/parts/ghost_list.hpp>
#include <pagedkv/policy/eviction/parts/reuse_model.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace pagedkv {

/// Follows a sample of the released blocks, chosen by hash, also after they are evicted, so that a policy does not
/// learn only from blocks that the cache kept. Time is counted in releases. The log goes back two to four releases per
/// block of the pool, 65,536 at least. It holds 32,768 of them, or one in 16 if that is more; 20 bytes each.
class reuse_log {
 public:
  using time = std::uint32_t;  // 28 bits; wraps

  struct use {
    std::uint16_t block_class = 0;
    time age = 0;
  };

  explicit reuse_log(std::int32_t num_blocks)
      : span_(std::max(min_span, std::bit_ceil(2 * static_cast<std::size_t>(num_blocks)))),
        records_(std::max(min_records, span_ / most_per_record)),
        index_(records_.size() - 1) {
    while (num_bins_ < age_bins::count && age_bins::start(num_bins_) < span_) {
      ++num_bins_;
    }
  }

  [[nodiscard]] time now() const noexcept { return now_; }
  [[nodiscard]] time age_of(time released) const noexcept { return (now_ - released) & time_mask; }

  /// Notes a release, at the time `now()`, which then moves on. Returns whether it is followed; the oldest that is, is
  /// forgotten for it.
  bool add(std::uint64_t hash, std::uint16_t block_class) noexcept {
    const auto followed = sampled(hash);
    if (followed) {
      auto& record = at(num_added_);
      if (record.where == block_place::evicted) {
        index_.erase(place_of(num_added_), hash_of());
      }
      record = {short_hash(hash), now_, block_class, block_place::resident};
      ++num_added_;
    }
    now_ = (now_ + 1) & time_mask;
    return followed;
  }

  /// Calls `reached(class, bin)` for followed releases that came to a new bin of ages with their block unused. To be
  /// called every few releases.
  template <class Reached>
  void sweep(Reached reached) noexcept {
    for (auto bin = std::size_t{0}; bin < num_bins_; ++bin) {
      auto& next = next_to_reach_[bin];
      if (num_added_ - next > records_.size()) {
        next = num_added_ - static_cast<std::uint32_t>(records_.size());
      }
      for (; next != num_added_ && age_of(at(next).released) >= age_bins::start(bin); ++next) {
        if (at(next).where != block_place::used_again) {
          reached(at(next).block_class, bin);
        }
      }
    }
  }

  /// The block of a followed release at that time was used again. Nothing if that is forgotten.
  std::optional<use> use_resident(time released) noexcept {
    const auto found = find(released);
    return found ? end(*found) : std::nullopt;
  }

  /// The block of a followed release at that time was evicted: from now on it is found by its hash.
  void evict(time released) noexcept {
    if (const auto found = find(released)) {
      at(*found).where = block_place::evicted;
      index_.insert(place_of(*found), hash_of());
    }
  }

  /// A block that may have been evicted is needed again. Nothing if it was not, is not followed, or is forgotten.
  std::optional<use> use_evicted(std::uint64_t hash) noexcept {
    const auto found = sampled(hash) ? index_.find(short_hash(hash), hash_of()) : std::nullopt;
    if (!found) {
      return std::nullopt;
    }
    index_.erase(*found, hash_of());
    return end(*found);
  }

  [[nodiscard]] std::size_t bytes() const noexcept {
    return records_.capacity() * sizeof(entry) + index_.bytes();
  }

 private:
  static constexpr auto time_mask = time{0x0fffffff};
  static constexpr auto min_span = std::size_t{65536};
  static constexpr auto min_records = std::size_t{32768};
  static constexpr auto most_per_record = std::size_t{16};

  enum class block_place : std::uint8_t { used_again, resident, evicted };

  struct entry {
    std::uint32_t hash = 0;
    time released = 0;
    std::uint16_t block_class = 0;
    block_place where = block_place::used_again;
  };

  struct hash_reader {
    const std::vector<entry>& records;

    std::uint64_t operator()(place_index::place at) const noexcept { return records[at].hash; }
  };

  [[nodiscard]] static std::uint32_t short_hash(std::uint64_t hash) noexcept {
    return static_cast<std::uint32_t>(hash >> 32 ^ hash);
  }

  [[nodiscard]] bool sampled(std::uint64_t hash) const noexcept {
    return (hash * 0xd6e8feb86659fd93U >> 40) % (span_ / records_.size()) == 0;
  }

  [[nodiscard]] hash_reader hash_of() const noexcept { return {records_}; }
  [[nodiscard]] place_index::place place_of(std::uint32_t number) const noexcept {
    return number & static_cast<std::uint32_t>(records_.size() - 1);
  }
  [[nodiscard]] entry& at(std::uint32_t number) noexcept { return records_[place_of(number)]; }

  /// Number of the record of a resident block, by bisection: records are in the order of time.
  [[nodiscard]] std::optional<std::uint32_t> find(time released) noexcept {
    const auto age = age_of(released);
    auto newer = std::uint32_t{0};  // back from the newest
    auto older = static_cast<std::uint32_t>(std::min<std::size_t>(num_added_, records_.size()));
    while (newer < older) {
      const auto middle = newer + (older - newer) / 2;
      if (age_of(at(num_added_ - 1 - middle).released) < age) {
        newer = middle + 1;
      } else {
        older = middle;
      }
    }
    const auto number = num_added_ - 1 - newer;
    const auto found = newer < records_.size() && num_added_ != 0 && at(number).released == released &&
                       at(number).where == block_place::resident;
    return found ? std::optional{number} : std::nullopt;
  }

  /// Nothing if the release is older than the ages that are counted.
  std::optional<use> end(std::uint32_t number) noexcept {
    auto& ended = at(number);
    ended.where = block_place::used_again;
    const auto age = age_of(ended.released);
    return age < span_ ? std::optional{use{ended.block_class, age}} : std::nullopt;
  }

  std::size_t span_;  // of time; a power of two
  std::vector<entry> records_;
  place_index index_;  // of evicted blocks
  std::array<std::uint32_t, age_bins::count> next_to_reach_{};
  std::size_t num_bins_ = 1;
  std::uint32_t num_added_ = 0;  // wraps
  time now_ = 0;
};

}  // namespace pagedkv
