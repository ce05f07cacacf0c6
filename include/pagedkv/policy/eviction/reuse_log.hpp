#pragma once

#include <pagedkv/policy/eviction/place_index.hpp>
#include <pagedkv/policy/eviction/reuse_model.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace pagedkv {

/// Follows a sample of released blocks for eight releases per block of the pool, or 65,536 if that is more, whether they
/// stay in the cache or are evicted meanwhile: what is learned is not only what the cache happened to keep. Blocks are
/// drawn by their hashes, so that one that returns is recognised. 21 bytes per sample; one to two samples per block, at
/// least 65,536.
class reuse_log {
 public:
  using sample_id = std::uint32_t;  // counts up, and wraps; stale ids are recognised for as long as that takes

  static constexpr auto no_sample = sample_id{UINT32_MAX};

  struct sample {
    std::uint32_t hash = 0;
    std::uint32_t time = 0;
    std::uint8_t block_class = 0;
    std::uint8_t num_hits = 0;
  };

  explicit reuse_log(std::int32_t num_blocks)
      : samples_(std::max(min_samples, std::bit_ceil(static_cast<std::size_t>(num_blocks)))),
        states_(samples_.size(), state::over),
        index_(samples_.size() - 1),
        drawn_mask_(static_cast<std::uint32_t>(
            std::bit_floor(std::max<std::size_t>(1, 8 * static_cast<std::size_t>(num_blocks) / samples_.size())) - 1)) {
    const auto horizon = samples_.size() * (drawn_mask_ + std::size_t{1});
    while (num_bins_ < age_bins::count && age_bins::start(num_bins_) < horizon) {
      ++num_bins_;
    }
  }

  [[nodiscard]] bool drawn(std::uint64_t hash) const noexcept {
    return (static_cast<std::uint32_t>(hash) & drawn_mask_) == 0;
  }

  /// Begins to follow a block that is released now; the oldest sample is forgotten. Of every sample that reached a new age
  /// unused since the last call, `reached(class, bin)` is told.
  template <class Reached>
  sample_id add(std::uint64_t hash, std::uint8_t block_class, std::uint8_t num_hits, std::uint32_t now,
                Reached reached) noexcept {
    const auto at = place(next_);
    if (states_[at] == state::evicted) {
      index_.erase(at, hash_of());
    }
    samples_[at] = {short_hash(hash), now, block_class, num_hits};
    states_[at] = state::resident;
    reached(block_class, std::size_t{0});
    for (auto bin = std::size_t{1}; bin < num_bins_; ++bin) {
      advance(bin, now, reached);
    }
    return next_++;
  }

  /// The block was used again. Returns the sample, unless it is over or forgotten.
  std::optional<sample> use(sample_id id) noexcept {
    if (!current(id)) {
      return std::nullopt;
    }
    states_[place(id)] = state::over;
    return samples_[place(id)];
  }

  /// The block was evicted: from now on it is found by its hash.
  void evict(sample_id id) noexcept {
    if (current(id)) {
      states_[place(id)] = state::evicted;
      index_.insert(place(id), hash_of());
    }
  }

  /// Ends the sample of an evicted block that has returned, if there is one, and returns it.
  std::optional<sample> use_evicted(std::uint64_t hash) noexcept {
    const auto at = index_.find(short_hash(hash), hash_of());
    if (!at) {
      return std::nullopt;
    }
    index_.erase(*at, hash_of());
    states_[*at] = state::over;
    return samples_[*at];
  }

  [[nodiscard]] std::size_t bytes() const noexcept {
    return samples_.capacity() * sizeof(sample) + states_.capacity() * sizeof(state) + index_.bytes();
  }

 private:
  struct hash_reader {
    const std::vector<sample>& samples;

    std::uint64_t operator()(place_index::place at) const noexcept { return samples[at].hash; }
  };

  enum class state : std::uint8_t { resident, evicted, over };

  static constexpr auto min_samples = std::size_t{65536};

  [[nodiscard]] static std::uint32_t short_hash(std::uint64_t hash) noexcept {
    return static_cast<std::uint32_t>(hash >> 32);
  }

  [[nodiscard]] hash_reader hash_of() const noexcept { return {samples_}; }

  [[nodiscard]] std::uint32_t place(sample_id id) const noexcept {
    return id & static_cast<std::uint32_t>(samples_.size() - 1);
  }

  [[nodiscard]] bool current(sample_id id) const noexcept {
    return id != no_sample && next_ - id <= samples_.size() && states_[place(id)] == state::resident;
  }

  /// Samples are in order of time: those that reach a bin next follow those that reached it last.
  template <class Reached>
  void advance(std::size_t bin, std::uint32_t now, Reached reached) noexcept {
    auto& id = reached_[bin];
    if (next_ - id >= samples_.size()) {
      id = next_ - static_cast<sample_id>(samples_.size()) + 1;
    }
    for (; id != next_ && now - samples_[place(id)].time >= age_bins::start(bin); ++id) {
      if (states_[place(id)] != state::over) {
        reached(samples_[place(id)].block_class, bin);
      }
    }
  }

  std::vector<sample> samples_;  // a ring, of a power of two so that ids may wrap
  std::vector<state> states_;    // of the samples
  place_index index_;
  std::uint32_t drawn_mask_;
  std::size_t num_bins_ = 1;
  sample_id next_ = 0;
  std::array<sample_id, age_bins::count> reached_{};  // by bin: the first sample that has not reached it
};

}  // namespace pagedkv
