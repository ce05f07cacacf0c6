#pragma once

#include <pagedkv/policy/eviction/concept.hpp>
#include <pagedkv/policy/eviction/parts/chain_lists.hpp>
#include <pagedkv/policy/eviction/parts/reuse_log.hpp>
#include <pagedkv/policy/eviction/parts/reuse_model.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <bitset>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

namespace pagedkv::detail {

/// Remembers how often the contents released last were hit, up to 7 times, also after they are evicted. Each hash has
/// one place, and the next hash of that place takes it. One in 8,192 is mistaken for another. 2 to 4 bytes per block,
/// 32 KB at least.
class hit_memory {
 public:
  static constexpr auto most_hits = std::uint32_t{7};

  explicit hit_memory(std::int32_t num_blocks)
      : notes_(std::bit_ceil(std::max(min_notes, static_cast<std::size_t>(num_blocks)))) {}

  void note(std::uint64_t hash, std::uint32_t num_hits) noexcept {
    notes_[place(hash)] = static_cast<std::uint16_t>(mark(hash) << 3 | (std::min(num_hits, most_hits - 1) + 1));
  }

  /// Hits of the contents when they were released last, and one for the present hit; 0 when they are not remembered.
  [[nodiscard]] std::uint32_t hits_with_this(std::uint64_t hash) const noexcept {
    const auto note = notes_[place(hash)];
    return note >> 3 == mark(hash) ? note & 7U : 0;
  }

  [[nodiscard]] std::size_t bytes() const noexcept { return notes_.capacity() * sizeof(notes_[0]); }

 private:
  static constexpr auto min_notes = std::size_t{16384};

  [[nodiscard]] std::size_t place(std::uint64_t hash) const noexcept {
    return static_cast<std::size_t>(hash * 0x9e3779b97f4a7c15U >> 20) & (notes_.size() - 1);
  }
  [[nodiscard]] static std::uint32_t mark(std::uint64_t hash) noexcept {
    return static_cast<std::uint32_t>(hash >> 51 ^ hash >> 7) & 0x1fffU;
  }

  std::vector<std::uint16_t> notes_;
};

/// The least of `Count` numbers that are not negative, each of which may be set at any time: in groups, so that setting
/// one and finding the least look at a few dozen.
template <std::size_t Count>
class least_of {
 public:
  static constexpr auto none = std::numeric_limits<float>::max();

  least_of() {
    numbers_.fill(bits_of(none));
    least_.fill(bits_of(none));
  }

  [[nodiscard]] float at(std::size_t i) const noexcept { return std::bit_cast<float>(numbers_[i]); }

  void set(std::size_t i, float number) noexcept {
    numbers_[i] = bits_of(number);
    least_[i / group_size] = least_in<group_size>(group(i / group_size));
  }

  /// Where the least is; `Count` when all are `none`.
  [[nodiscard]] std::size_t find() const noexcept {
    const auto least = least_in<num_groups>(least_.data());
    if (least == bits_of(none)) {
      return Count;
    }
    const auto where = static_cast<std::size_t>(std::find(least_.begin(), least_.end(), least) - least_.begin());
    return static_cast<std::size_t>(std::find(group(where), group(where) + group_size, least) - numbers_.data());
  }

 private:
  // Bits of numbers that are not negative are in the same order, and compilers compare many at once.
  using bits = std::int32_t;

  static constexpr auto group_size = std::size_t{32};
  static constexpr auto num_groups = (Count + group_size - 1) / group_size;

  [[nodiscard]] static bits bits_of(float number) noexcept { return std::bit_cast<bits>(number); }
  [[nodiscard]] const bits* group(std::size_t i) const noexcept { return &numbers_[i * group_size]; }

  template <std::size_t Size>
  [[nodiscard]] static bits least_in(const bits* numbers) noexcept {
    auto least = numbers[0];
    for (auto i = std::size_t{1}; i < Size; ++i) {
      least = std::min(least, numbers[i]);
    }
    return least;
  }

  std::array<bits, num_groups * group_size> numbers_;
  std::array<bits, num_groups> least_;
};
}  // namespace pagedkv::detail

namespace pagedkv {

/// Learns from the traffic which blocks return: evicts the block with the fewest expected hits per unit of time that it
/// would stay. Released blocks fall into classes (`reuse_class`). Of each class the least and the most recently
/// released are candidates, and `reuse_model` gives their worth for their ages. Where sessions return after pauses that
/// the pool cannot bridge for all, the youngest go, and some sessions stay whole. Nothing has to be tuned. Until there
/// is evidence the order is that of `lru`, and old evidence fades.
///
/// Hints of a release are features like the others: the policy learns their worth. Time is counted in releases. Hits of
/// a block that a pin holds are not seen.
/// 18 bytes per block, those of `hit_memory` and `reuse_log`, and 1 MB.
class hit_density {
 public:
  static constexpr std::string_view name = "hit_density";
  static constexpr bool concurrent = false;

  explicit hit_density(std::int32_t num_blocks)
      : lists_(num_blocks, reuse_class::count),
        log_(num_blocks),
        hits_(num_blocks),
        stays_(static_cast<std::size_t>(num_blocks)),
        fast_pace_(static_cast<std::uint32_t>(num_blocks) / 2),
        fade_interval_(std::max<std::uint64_t>(min_fade_interval, 4 * static_cast<std::uint64_t>(num_blocks))) {}

  void insert(block_id block, const block_release& release) noexcept {
    const auto stays = release.as_before && lists_.tracked(block);
    const auto num_hits = stays ? stay_of(block).num_hits() : hits_so_far(block, release);
    const auto block_class = stays ? lists_.list_of(block) : reuse_class::of(num_hits, pace_of(release), release);
    const auto now = log_.now();
    hits_.note(release.hash, num_hits);
    const auto followed = log_.add(release.hash, block_class);
    lists_.insert(block, release.parent, block_class);
    note_stay(block, {now, num_hits, followed});
    changed_[block_class / 64] |= std::uint64_t{1} << block_class % 64;
    changed_words_ |= std::uint64_t{1} << block_class / 64;
    maintain_model();
  }

  void remove(block_id block) noexcept {
    const auto seen = stay_of(block);
    if (seen.followed()) {
      learn(log_.use_resident(seen.since()));
    }
    note_stay(block, {log_.age_of(seen.since()), seen.num_hits(), false});
    lists_.hold(block);
  }

  void erase(block_id block) noexcept {
    forget(block);
    lists_.erase(block);
  }

  void rename(block_id from, block_id to) noexcept {
    lists_.rename(from, to);
    stays_[to_index(to)] = stays_[to_index(from)];
  }

  template <class Offer>
  [[nodiscard]] block_id victim(Offer&& offer, timestamp) noexcept {
    auto block = lists_.take_due(offer);
    look_at_changes();
    for (auto c = worths_.find(); block == no_block && c != reuse_class::count; c = worths_.find()) {
      const auto list = static_cast<chain_lists::list_index>(c);
      const auto candidate = youngest_first_.test(c) ? lists_.newest_evictable(list) : lists_.oldest_evictable(list);
      if (candidate != no_block && lists_.take(candidate, offer)) {
        block = candidate;
      }
      look_at(c);
    }
    if (block == no_block) {
      block = lists_.take_any(offer);
    }
    if (block != no_block) {
      forget(block);
    }
    return block;
  }

  [[nodiscard]] std::size_t metadata_bytes() const noexcept {
    return sizeof *this + lists_.bytes() + log_.bytes() + hits_.bytes() + model_.bytes() +
           stays_.capacity() * sizeof(std::uint16_t);
  }

 private:
  using time = reuse_log::time;

  // While a block is evictable, the time of its release, and whether the log follows it; while it is in use, how long
  // it had been evictable.
  class stay {
   public:
    stay(time since, std::uint32_t num_hits, bool followed) noexcept
        : stay(since << 4 | num_hits << 1 | (followed ? 1U : 0U)) {}
    explicit stay(std::uint32_t bits) noexcept : bits_(bits) {}

    [[nodiscard]] std::uint32_t bits() const noexcept { return bits_; }

    [[nodiscard]] time since() const noexcept { return bits_ >> 4; }
    [[nodiscard]] std::uint32_t num_hits() const noexcept { return bits_ >> 1 & 7; }
    [[nodiscard]] bool followed() const noexcept { return (bits_ & 1) != 0; }

   private:
    std::uint32_t bits_;
  };

  /// The lower half of a block's stay is its note, so that no bytes beside its links lie idle.
  [[nodiscard]] stay stay_of(block_id block) const noexcept {
    return stay{std::uint32_t{stays_[to_index(block)]} << 16 | lists_.note(block)};
  }
  void note_stay(block_id block, stay seen) noexcept {
    stays_[to_index(block)] = static_cast<std::uint16_t>(seen.bits() >> 16);
    lists_.set_note(block, static_cast<std::uint16_t>(seen.bits()));
  }

  static constexpr auto min_fade_interval = std::uint64_t{20'000};
  static constexpr auto refresh_interval = time{256};
  static constexpr auto sweep_interval = time{16};

  /// Hits of the contents so far; a block that returns after its eviction brings them along, and one more.
  [[nodiscard]] std::uint32_t hits_so_far(block_id block, const block_release& release) noexcept {
    if (lists_.tracked(block)) {
      return std::min(stay_of(block).num_hits() + 1, detail::hit_memory::most_hits);
    }
    learn(log_.use_evicted(release.hash));
    return hits_.hits_with_this(release.hash);
  }

  /// How long the last block that the request found cached had been evictable. That block is in use until its own
  /// release; blocks before it share the pace that was found then.
  [[nodiscard]] reuse_class::pace pace_of(const block_release& release) noexcept {
    if (release.last_cached == no_block) {
      return reuse_class::pace::first_request;
    }
    if (lists_.in_use(release.last_cached)) {
      const auto fast = stay_of(release.last_cached).since() < fast_pace_;
      last_pace_ = fast ? reuse_class::pace::fast : reuse_class::pace::slow;
    }
    return last_pace_;
  }

  void learn(const std::optional<reuse_log::use>& used) noexcept {
    if (used) {
      model_.record_use(used->block_class, used->age);
    }
  }

  void forget(block_id block) noexcept {
    if (const auto seen = stay_of(block); seen.followed()) {
      log_.evict(seen.since());
    }
  }

  void maintain_model() noexcept {
    if (log_.now() % sweep_interval == 0) {
      log_.sweep([this](reuse_class::index c, std::size_t bin) { model_.record_reached(c, bin); });
    }
    if (++since_fade_ == fade_interval_) {
      since_fade_ = 0;
      model_.fade();
    }
  }

  /// Looks at the classes that have new blocks, and at a few others in turn, as ages change.
  void look_at_changes() noexcept {
    for (; changed_words_ != 0; changed_words_ &= changed_words_ - 1) {
      const auto word = static_cast<std::size_t>(std::countr_zero(changed_words_));
      for (; changed_[word] != 0; changed_[word] &= changed_[word] - 1) {
        look_at(word * 64 + static_cast<std::size_t>(std::countr_zero(changed_[word])));
      }
    }
    auto c = last_look_;
    for (auto tries = 24, looks = 4; tries > 0 && looks > 0; --tries) {
      c = c + 1 < reuse_class::count ? c + 1 : 0;
      if (worths_.at(c) != worths_.none) {
        look_at(c);
        --looks;
      }
    }
    last_look_ = c;
  }

  /// Finds the worth of the candidates of a class.
  void look_at(std::size_t of_class) noexcept {
    const auto c = static_cast<reuse_class::index>(of_class);
    const auto oldest = lists_.oldest_evictable(c);
    if (oldest == no_block) {
      worths_.set(c, worths_.none);
      return;
    }
    if (log_.age_of(refreshed_[c]) >= refresh_interval) {
      refreshed_[c] = log_.now();
      model_.refresh(c);
    }
    const auto of_oldest = density(c, oldest);
    const auto of_newest = density(c, lists_.newest_evictable(c));
    youngest_first_.set(c, of_newest < of_oldest);
    worths_.set(c, std::min(of_newest, of_oldest));
  }

  [[nodiscard]] float density(reuse_class::index c, block_id block) const noexcept {
    return model_.density(c, log_.age_of(stay_of(block).since()));
  }

  chain_lists lists_;  // one for each class
  reuse_log log_;
  reuse_model model_;
  detail::hit_memory hits_;
  std::vector<std::uint16_t> stays_;  // the upper half of each
  detail::least_of<reuse_class::count> worths_;  // of the classes' candidates; none for empty classes
  std::bitset<reuse_class::count> youngest_first_;
  std::array<std::uint64_t, (reuse_class::count + 63) / 64> changed_{};  // classes that have new blocks
  std::uint64_t changed_words_ = 0;                                      // words of `changed_` that are not 0
  std::array<time, reuse_class::count> refreshed_{};
  std::size_t last_look_ = 0;
  reuse_class::pace last_pace_ = reuse_class::pace::first_request;
  std::uint32_t fast_pace_;
  std::uint64_t fade_interval_;
  std::uint64_t since_fade_ = 0;
};

static_assert(eviction_policy<hit_density>);

}  // namespace pagedkv
