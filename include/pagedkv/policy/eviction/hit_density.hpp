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

/// Learns from the traffic what is worth keeping: evicts the block with the fewest expected hits per unit of time
/// that it would stay. Blocks fall into classes by their hits so far, their place in the prompt, and whether they end
/// a chain; of each class the least recently released is a candidate, and `reuse_model` says from its age what it is
/// worth. Nothing has to be tuned; until there is evidence the order is that of `lru`, and old evidence fades.
///
/// Time is counted in releases. A decision looks at 64 candidates at most. 19 bytes per block, those of `reuse_log`,
/// and 70 KB.
class hit_density {
 public:
  static constexpr std::string_view name = "hit_density";
  static constexpr bool concurrent = false;

  explicit hit_density(std::int32_t num_blocks)
      : lists_(num_blocks, num_classes),
        log_(num_blocks),
        births_(static_cast<std::size_t>(num_blocks), 0),
        hits_(static_cast<std::size_t>(num_blocks), 0),
        fade_interval_(std::max<std::uint64_t>(min_fade_interval, 4 * static_cast<std::uint64_t>(num_blocks))) {}

  void insert(block_id block, const block_release& release) noexcept {
    const auto num_hits = hits_so_far(block, release);
    const auto block_class = class_of(num_hits, release);
    hits_[to_index(block)] = num_hits;
    births_[to_index(block)] = log_.now();
    log_.add(release.hash, block_class, [this](std::uint8_t c, std::size_t bin) {
      model_.record_reached(c, bin, static_cast<float>(reuse_log::stride));
    });
    lists_.insert(block, release.parent, block_class);
    occupied_ |= std::uint64_t{1} << block_class;
    if (heads_[block_class].block == block) {
      heads_[block_class] = {};
    }
    maintain_model();
  }

  void remove(block_id block) noexcept {
    learn(log_.use_resident(births_[to_index(block)]));
    lists_.hold(block);
  }

  void erase(block_id block) noexcept {
    log_.evict(births_[to_index(block)]);
    lists_.erase(block);
  }

  void rename(block_id from, block_id to) noexcept {
    lists_.rename(from, to);
    births_[to_index(to)] = births_[to_index(from)];
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
      log_.evict(births_[to_index(block)]);
    }
    return block;
  }

  [[nodiscard]] std::size_t metadata_bytes() const noexcept {
    return lists_.bytes() + log_.bytes() + model_.bytes() + births_.capacity() * sizeof(reuse_log::time) +
           hits_.capacity();
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
    reuse_log::time birth = 0;
  };

  /// Hits of the contents so far; a block that returns after its eviction brings them along, and one more.
  [[nodiscard]] std::uint8_t hits_so_far(block_id block, const block_release& release) noexcept {
    constexpr auto most = num_hit_levels - 1;
    if (lists_.tracked(block)) {
      return static_cast<std::uint8_t>(std::min(hits_[to_index(block)] + 1, most));
    }
    const auto returned = log_.use_evicted(release.hash);
    learn(returned);
    return returned ? static_cast<std::uint8_t>(std::min(returned->block_class % num_hit_levels + 1, most))
                    : std::uint8_t{0};
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

  void learn(const std::optional<reuse_log::use>& used) noexcept {
    if (used) {
      model_.record_use(used->block_class, used->age);
    }
  }

  void maintain_model() noexcept {
    if (++since_fade_ == fade_interval_) {
      since_fade_ = 0;
      model_.fade();
    }
    if (log_.now() % refresh_interval == 0) {
      model_.refresh(log_.now() / refresh_interval % num_classes);
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
      const auto density = model_.density(static_cast<std::size_t>(c), log_.now() - known.birth);
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
  std::vector<reuse_log::time> births_;  // of the last release
  std::vector<std::uint8_t> hits_;
  std::array<head, num_classes> heads_{};
  std::uint64_t occupied_ = 0;  // classes that may have blocks
  std::uint64_t fade_interval_;
  std::uint64_t since_fade_ = 0;
};

static_assert(eviction_policy<hit_density>);

}  // namespace pagedkv
