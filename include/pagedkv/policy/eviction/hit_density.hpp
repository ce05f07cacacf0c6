#pragma once

#include <pagedkv/policy/eviction.hpp>
#include <pagedkv/policy/eviction/chain_lists.hpp>
#include <pagedkv/policy/eviction/reuse_log.hpp>
#include <pagedkv/policy/eviction/reuse_model.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

namespace pagedkv {

/// Learns from the traffic what is worth keeping: evicts the block with the fewest expected hits per unit of time that it
/// would stay. Blocks fall into classes by their hits so far, their place in the prompt, and whether they end a chain; of
/// each class the least recently released is a candidate, and `reuse_model` says from its age what it is worth. Nothing has
/// to be tuned; until there is evidence the order is that of `lru`, and old evidence fades.
///
/// Time is counted in releases. A decision looks at 64 candidates at most. About 27 bytes per block, 21 for each sample of
/// `reuse_log`, and 90 KB.
class hit_density {
 public:
  static constexpr std::string_view name = "hit_density";
  static constexpr bool concurrent = false;

  explicit hit_density(std::int32_t num_blocks)
      : lists_(num_blocks, num_classes),
        log_(num_blocks),
        births_(static_cast<std::size_t>(num_blocks), 0),
        samples_(static_cast<std::size_t>(num_blocks), reuse_log::no_sample),
        hits_(static_cast<std::size_t>(num_blocks), 0),
        fade_interval_(std::max<std::uint64_t>(min_fade_interval, 4 * static_cast<std::uint64_t>(num_blocks))) {}

  void insert(block_id block, const block_release& release) noexcept {
    const auto num_hits = hits_so_far(block, release);
    const auto block_class = class_of(num_hits, release);
    const auto i = to_index(block);
    hits_[i] = num_hits;
    births_[i] = now_;
    samples_[i] = log_.drawn(release.hash)
                      ? log_.add(release.hash, block_class, num_hits, now_,
                                 [this](std::uint8_t c, std::size_t bin) { model_.record_reached(c, bin); })
                      : reuse_log::no_sample;
    lists_.insert(block, release.parent, block_class);
    occupied_ |= std::uint64_t{1} << block_class;
    if (heads_[block_class].block == block) {
      heads_[block_class] = {};
    }
    last_inserted_ = block;
    tick();
  }

  void remove(block_id block) noexcept {
    learn(log_.use(samples_[to_index(block)]));
    lists_.hold(block);
  }

  void erase(block_id block) noexcept {
    log_.evict(samples_[to_index(block)]);
    lists_.erase(block);
  }

  void rename(block_id from, block_id to) noexcept {
    lists_.rename(from, to);
    births_[to_index(to)] = births_[to_index(from)];
    samples_[to_index(to)] = samples_[to_index(from)];
    hits_[to_index(to)] = hits_[to_index(from)];
    heads_.fill({});
  }

  template <class Offer>
  [[nodiscard]] block_id victim(Offer&& offer, timestamp) noexcept {
    auto block = lists_.take_due(offer);
    while (block == no_block && occupied_ != 0) {
      const auto candidate = least_dense();
      if (candidate != no_block && lists_.take(candidate, offer)) {
        block = candidate;
      }
    }
    if (block == no_block) {
      block = lists_.take_any(offer);
    }
    if (block != no_block) {
      log_.evict(samples_[to_index(block)]);
    }
    return block;
  }

  [[nodiscard]] std::size_t metadata_bytes() const noexcept {
    return lists_.bytes() + log_.bytes() + model_.bytes() + births_.capacity() * sizeof(std::uint32_t) +
           samples_.capacity() * sizeof(reuse_log::sample_id) + hits_.capacity();
  }

 private:
  static constexpr auto num_hit_levels = 8;
  static constexpr auto num_depth_levels = 4;
  static constexpr auto num_classes = num_hit_levels * num_depth_levels * 2;
  static_assert(num_classes <= 64, "occupied_ is one word");

  static constexpr auto min_fade_interval = std::uint64_t{20'000};
  static constexpr auto refresh_interval = 16U;

  // The oldest block of a class when it was last looked at: spares a search the memory of most candidates.
  struct head {
    block_id block = no_block;
    std::uint32_t birth = 0;
  };

  /// Hits of the contents, which a ghost that returns brings along. Only a sample of blocks leaves ghosts; but what is hit
  /// deep in a chain was hit above, and the deeper block has just been inserted.
  [[nodiscard]] std::uint8_t hits_so_far(block_id block, const block_release& release) noexcept {
    constexpr auto most = num_hit_levels - 1;
    if (lists_.tracked(block)) {
      return static_cast<std::uint8_t>(std::min(hits_[to_index(block)] + 1, most));
    }
    if (log_.drawn(release.hash)) {
      if (const auto ghost = log_.use_evicted(release.hash)) {
        learn(ghost);
        return static_cast<std::uint8_t>(std::min(ghost->num_hits + 1, most));
      }
    }
    const auto continued = last_inserted_ != no_block && lists_.parent_of(last_inserted_) == block;
    return continued ? hits_[to_index(last_inserted_)] : std::uint8_t{0};
  }

  /// Depth counts in tokens, so that the size of a block does not matter: below 1, 4, 16 thousand, and beyond.
  [[nodiscard]] static std::uint8_t class_of(std::uint8_t num_hits, const block_release& release) noexcept {
    const auto num_tokens = std::uint64_t{release.num_prompt_tokens} + release.num_output_tokens;
    const auto num_blocks = std::max(release.num_chain_blocks, release.depth + 1);
    const auto depth = num_tokens * release.depth / num_blocks / 1024;
    const auto depth_level = std::min(static_cast<int>(std::bit_width(depth) + 1) / 2, num_depth_levels - 1);
    const auto ends_chain = release.depth + 1 == release.num_chain_blocks ? 1 : 0;
    return static_cast<std::uint8_t>(num_hits + num_hit_levels * (2 * depth_level + ends_chain));
  }

  void learn(const std::optional<reuse_log::sample>& used) noexcept {
    if (used) {
      model_.record_use(used->block_class, now_ - used->time);
    }
  }

  void tick() noexcept {
    ++now_;
    if (++since_fade_ == fade_interval_) {
      since_fade_ = 0;
      model_.fade();
    }
    if (now_ % refresh_interval == 0) {
      model_.refresh(now_ / refresh_interval % num_classes);
    }
  }

  /// Evictable block of the least density among the oldest of each class; `no_block` when one of them turned out to be
  /// held or a class empty, after which there is less to look at.
  [[nodiscard]] block_id least_dense() noexcept {
    auto least = std::numeric_limits<float>::max();
    auto chosen = 0;
    for (auto classes = occupied_; classes != 0; classes &= classes - 1) {
      const auto c = std::countr_zero(classes);
      const auto oldest = lists_.oldest(static_cast<chain_lists::list_index>(c));
      auto& known = heads_[static_cast<std::size_t>(c)];
      if (oldest == no_block) {
        occupied_ &= ~(std::uint64_t{1} << c);
        continue;
      }
      if (known.block != oldest) {
        known = {oldest, births_[to_index(oldest)]};
      }
      const auto density = model_.density(static_cast<std::size_t>(c), now_ - known.birth);
      if (density < least) {
        least = density;
        chosen = c;
      }
    }
    const auto block = lists_.oldest(static_cast<chain_lists::list_index>(chosen));
    return block == lists_.oldest_evictable(static_cast<chain_lists::list_index>(chosen)) ? block : no_block;
  }

  chain_lists lists_;  // one for each class
  reuse_log log_;
  reuse_model<num_classes, num_hit_levels> model_;
  std::vector<std::uint32_t> births_;              // time of the last release
  std::vector<reuse_log::sample_id> samples_;      // of the last release
  std::vector<std::uint8_t> hits_;
  std::array<head, num_classes> heads_{};
  std::uint64_t occupied_ = 0;  // classes that may have blocks
  std::uint64_t fade_interval_;
  std::uint64_t since_fade_ = 0;
  std::uint32_t now_ = 0;
  block_id last_inserted_ = no_block;
};

static_assert(eviction<hit_density>);

}  // namespace pagedkv
