#pragma once

#include <pagedkv/core/ids.hpp>
#include <pagedkv/policy/eviction/concept.hpp>
#include <pagedkv/policy/eviction/parts/chain_lists.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

namespace pagedkv::detail {

/// Block ids by deadline, earliest first: a binary heap with the position of each id. Logarithmic time; 24 bytes per
/// block.
class deadline_heap {
 public:
  explicit deadline_heap(std::int32_t num_blocks)
      : positions_(static_cast<std::size_t>(num_blocks), absent), heap_(static_cast<std::size_t>(num_blocks)) {}

  [[nodiscard]] bool empty() const noexcept { return size_ == 0; }

  /// The first of a heap that is not empty.
  [[nodiscard]] block_id earliest() const noexcept { return heap_[0].block; }
  [[nodiscard]] timestamp earliest_deadline() const noexcept { return heap_[0].deadline; }

  /// Replaces an earlier deadline.
  void set(block_id block, timestamp deadline) noexcept {
    erase(block);
    settle({deadline, block}, size_++);
  }

  /// Does nothing when the id is absent.
  void erase(block_id block) noexcept {
    if (empty()) {
      return;
    }
    const auto at = std::exchange(positions_[to_index(block)], absent);
    if (at == absent) {
      return;
    }
    const auto last = heap_[--size_];
    if (last.block != block) {
      settle(last, at);
    }
  }

  void rename(block_id from, block_id to) noexcept {
    if (const auto at = positions_[to_index(from)]; at != absent) {
      const auto deadline = heap_[at].deadline;
      erase(from);
      set(to, deadline);
    }
  }

  [[nodiscard]] std::size_t bytes() const noexcept {
    return positions_.capacity() * sizeof(std::uint32_t) + heap_.capacity() * sizeof(entry);
  }

 private:
  struct entry {
    timestamp deadline{};
    block_id block = no_block;
  };

  static constexpr auto absent = UINT32_MAX;

  void put(const entry& e, std::uint32_t at) noexcept {
    heap_[at] = e;
    positions_[to_index(e.block)] = at;
  }

  /// Puts an entry at `at`, whose own entry is gone, or as far up or down from there as the order requires.
  void settle(const entry& e, std::uint32_t at) noexcept {
    for (; at > 0 && e.deadline < heap_[(at - 1) / 2].deadline; at = (at - 1) / 2) {
      put(heap_[(at - 1) / 2], at);
    }
    for (auto child = 2 * at + 1; child < size_; child = 2 * at + 1) {
      child += child + 1 < size_ && heap_[child + 1].deadline < heap_[child].deadline ? 1U : 0U;
      if (e.deadline <= heap_[child].deadline) {
        break;
      }
      put(heap_[child], at);
      at = child;
    }
    put(e, at);
  }

  std::vector<std::uint32_t> positions_;
  std::vector<entry> heap_;
  std::uint32_t size_ = 0;
};

/// Observes whether blocks of sessions that are said to have ended return less often than others: a sample of the
/// released contents, each followed until it is released again or another takes its place. 1 to 2 bytes per block, 16
/// KB at least.
class observed_ends {
 public:
  explicit observed_ends(std::int32_t num_blocks)
      : notes_(std::bit_ceil(std::max(min_notes, static_cast<std::size_t>(num_blocks) / sampled_one_in))) {}

  /// Contents are released. `added`: by the request that computed them, so that their return is that of its session.
  void note(std::uint64_t hash, bool added, bool ended) noexcept {
    const auto mixed = hash * 0x9e3779b97f4a7c15U;
    if (mixed >> 32 & (sampled_one_in - 1)) {
      return;
    }
    auto& note = notes_[mixed >> 36 & (notes_.size() - 1)];
    const auto mark = static_cast<std::uint32_t>(mixed) | 1U;
    const auto returns = (note | 1U) == mark;
    if (!returns && !added) {
      return;
    }
    if (note != 0) {
      count((note & 1U) == 0, returns);
    }
    note = !added ? 0 : ended ? mark & ~1U : mark;
  }

  /// Whether such blocks return at most half as often as others; true while hardly any has returned.
  [[nodiscard]] bool are_true() const noexcept {
    const auto& [others, ends] = counted_;
    return ends.returned < 16 || 2 * ends.returned * others.followed <= others.returned * ends.followed;
  }

  [[nodiscard]] std::size_t bytes() const noexcept { return notes_.capacity() * sizeof(notes_[0]); }

 private:
  static constexpr auto min_notes = std::size_t{4096};
  static constexpr auto sampled_one_in = std::size_t{4};
  static constexpr auto most_followed = std::uint64_t{8192};

  struct counts {
    std::uint64_t followed = 0;
    std::uint64_t returned = 0;
  };

  void count(bool ended, bool returned) noexcept {
    auto& [followed, num_returned] = counted_[ended ? 1 : 0];
    ++followed;
    num_returned += returned ? 1 : 0;
    if (followed > most_followed) {
      std::ranges::for_each(counted_, [](counts& each) { each = {each.followed / 2, each.returned / 2}; });
    }
  }

  std::vector<std::uint32_t> notes_;  // a hash whose lowest bit is 0 where the session was said to have ended; 0: none
  std::array<counts, 2> counted_{};   // of other sessions, and of those
};
}  // namespace pagedkv::detail

namespace pagedkv {

/// Evicts the lowest priority first and, within one, the block whose next use is farthest off. Without a hint that is
/// the least recently released block: its next use is supposed to be as far ahead as its release lies back. A block
/// that the caller expects back counts with the time that is left until then. Half of that time after it was expected
/// it is given up, and counts as released when it was expected. Expectations change the order only as long as most
/// blocks return when they are expected, give or take half of the time. The policy observes this on the blocks that
/// each request added.
///
/// A priority that was given for a time falls back to 0 when the time is over, and counts as released then. Blocks of
/// sessions that have ended go before all others, except as far as others continue them, and unless the policy has
/// observed that they return more than half as often as others.
///
/// A retention time or an expected return makes the release of a block, and the end of that time, logarithmic. 89 bytes
/// per block.
class priority {
 public:
  static constexpr std::string_view name = "priority";
  static constexpr bool concurrent = false;
  static constexpr bool twins_first = false;
  static constexpr bool uses_priority = true;

  /// Blocks of this priority go last; those of 0 go first.
  static constexpr auto max_priority = 100;

  explicit priority(std::int32_t num_blocks)
      : lists_(num_blocks, num_lists),
        deadlines_(num_blocks),
        farthest_(num_blocks),
        ends_(num_blocks),
        times_(static_cast<std::size_t>(num_blocks)) {}

  void insert(block_id block, const block_release& release) noexcept {
    now_ = std::max(now_, release.released_at);
    auto given = given_times{};
    auto level = index{};
    if (release.as_before) {
      lists_.beside(block) = std::max(lists_.beside(block), release.released_at);
      level = level_noted(block);
      given = times_noted(block);
      given.due = given.due > lists_.beside(block) ? given.due : timestamp{};
      given.tells = false;  // the return that it would tell of may have come
    } else {
      lists_.beside(block) = release.released_at;
      ends_.note(release.hash, is_added(release), release.ended);
      level = level_in(release);
      given = times_in(release, level);
    }
    put(block, release.parent, level, given);
  }

  void note(block_id block, const block_release& release) noexcept {
    if (lists_.tracked(block) && !lists_.in_use(block)) {  // another thread's hit has not removed it yet
      forget(block);
      return insert(block, release);
    }
    lists_.beside(block) = release.released_at;
    const auto level = level_in(release);
    write_note(block, level, times_in(release, level));
  }

  void remove(block_id block) noexcept {
    if (const auto& given = times_[to_index(block)]; is_timed(block) && given.due != timestamp{}) {
      const auto half = half_of_pause(block);
      judge(given, nanoseconds(now_) >= nanoseconds(given.due) - half && now_ <= later(given.due, half));
    }
    forget(block);
    lists_.hold(block);
  }

  void erase(block_id block) noexcept {
    forget(block);
    lists_.erase(block);
  }

  void rename(block_id from, block_id to) noexcept {
    deadlines_.rename(from, to);
    farthest_.rename(from, to);
    lists_.rename(from, to);
    times_[to_index(to)] = times_[to_index(from)];
  }

  template <class Offer>
  [[nodiscard]] block_id victim(Offer&& offer, timestamp now) noexcept {
    now_ = std::max(now_, now);
    expire();
    auto block = lists_.take_due(offer);
    for (auto word = std::size_t{0}; word < occupied_.size() && block == no_block; ++word) {
      while (occupied_[word] != 0 && block == no_block) {
        const auto bit = static_cast<std::size_t>(std::countr_zero(occupied_[word]));
        block = take_of_level(static_cast<index>(word * 64 + bit), offer);
        if (block == no_block) {
          occupied_[word] &= ~(std::uint64_t{1} << bit);
        }
      }
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
    return lists_.bytes() + deadlines_.bytes() + farthest_.bytes() + ends_.bytes() +
           times_.capacity() * sizeof(given_times);
  }

 private:
  using index = chain_lists::list_index;

  // A time of 0 means none.
  struct given_times {
    timestamp due{};
    timestamp retained_until{};
    bool tells = false;  // whether the return of the block is that of the session
  };

  // The lowest bit of the note of a block to which `times_` applies; the others are its level, also while it is in use.
  // Most have no times, and a hit of one reads neither them nor its places in the heaps.
  static constexpr auto timed = std::uint16_t{1};

  // Level 0 is that of ended sessions; each other has a list of blocks in the order of release, and one of those that
  // are expected.
  static constexpr auto ended = index{0};
  static constexpr auto num_levels = static_cast<index>(max_priority + 2);
  static constexpr auto num_lists = static_cast<index>(2 * num_levels);

  static constexpr auto doubts = std::uint32_t{256};  // of expectations, before the first has come true
  static constexpr auto most_judged = std::uint32_t{8192};

  [[nodiscard]] static index level_of(int level) noexcept {
    return static_cast<index>(1 + std::min(level, max_priority));
  }
  [[nodiscard]] static index released_in(index level) noexcept { return static_cast<index>(2 * level); }
  [[nodiscard]] static index expected_in(index level) noexcept { return static_cast<index>(2 * level + 1); }

  [[nodiscard]] static std::int64_t nanoseconds(timestamp time) noexcept { return static_cast<std::int64_t>(time); }

  [[nodiscard]] static timestamp later(timestamp time, std::int64_t by) noexcept {
    constexpr auto last = std::numeric_limits<std::int64_t>::max();
    return static_cast<timestamp>(nanoseconds(time) > last - by ? last : nanoseconds(time) + by);
  }

  /// The least is the lowest level, and the latest return in it. In units of 1,024 ns, which leave room for the level.
  [[nodiscard]] static timestamp rank_of(index level, timestamp due) noexcept {
    constexpr auto latest = std::numeric_limits<std::int64_t>::max() >> 10;
    return static_cast<timestamp>(std::int64_t{level} << 54 | (latest - (nanoseconds(due) >> 10)));
  }

  [[nodiscard]] bool is_timed(block_id block) const noexcept { return (lists_.note(block) & timed) != 0; }
  [[nodiscard]] index level_noted(block_id block) const noexcept { return static_cast<index>(lists_.note(block) >> 1); }
  [[nodiscard]] given_times times_noted(block_id block) const noexcept {
    return is_timed(block) ? times_[to_index(block)] : given_times{};
  }
  void write_note(block_id block, index level, const given_times& given) noexcept {
    const bool has_times = given.due != timestamp{} || given.retained_until != timestamp{};
    lists_.set_note(block, static_cast<std::uint16_t>(unsigned{level} << 1U | (has_times ? timed : 0U)));
    if (has_times) {
      times_[to_index(block)] = given;
    }
  }

  [[nodiscard]] static bool is_added(const block_release& release) noexcept {
    return release.depth >= release.num_cached_blocks;
  }
  [[nodiscard]] index level_in(const block_release& release) const noexcept {
    return release.ended && ends_.are_true() ? ended : level_of(release.priority);
  }
  [[nodiscard]] static given_times times_in(const block_release& release, index level) noexcept {
    auto given = given_times{};
    if (level > level_of(0)) {
      given.retained_until = release.retain_until;
    }
    if (!release.ended && release.expected_return > 0) {
      given.due = later(release.released_at, release.expected_return);
      given.tells = is_added(release);
    }
    return given;
  }

  [[nodiscard]] bool is_expected(block_id block) const noexcept { return lists_.list_of(block) % 2 != 0; }

  void put(block_id block, block_id parent, index level, const given_times& given) noexcept {
    const auto by_due = given.due != timestamp{} && num_right_ > num_wrong_;
    lists_.insert(block, parent, by_due ? expected_in(level) : released_in(level));
    if (by_due) {
      farthest_.set(block, rank_of(level, given.due));
    }
    occupied_[level / 64] |= std::uint64_t{1} << level % 64;
    set_times(block, level, given);
  }

  /// Sets a deadline at the earlier of the end of a block's priority and the time when its session is no longer
  /// expected, if any.
  void set_times(block_id block, index level, const given_times& given) noexcept {
    write_note(block, level, given);
    if (!is_timed(block)) {
      return;
    }
    auto first = given.retained_until;
    if (given.due != timestamp{}) {
      const auto given_up = later(given.due, half_of_pause(block));
      first = first == timestamp{} ? given_up : std::min(first, given_up);
    }
    deadlines_.set(block, first);
  }

  /// Half of the time from the release of an expected block until it is due.
  [[nodiscard]] std::int64_t half_of_pause(block_id block) const noexcept {
    return (nanoseconds(times_[to_index(block)].due) - nanoseconds(lists_.beside(block))) / 2;
  }

  void expire() noexcept {
    while (!deadlines_.empty() && deadlines_.earliest_deadline() <= now_) {
      const auto block = deadlines_.earliest();
      deadlines_.erase(block);
      auto given = times_[to_index(block)];
      auto level = level_noted(block);
      if (given.retained_until != timestamp{} && given.retained_until <= now_) {
        lists_.beside(block) = given.retained_until;
        given = given_times{};
        level = level_of(0);
        put_last(block, level);
      } else {
        judge(given, false);
        lists_.beside(block) = std::exchange(given.due, timestamp{});
        if (is_expected(block)) {
          put_last(block, level);
        }
      }
      set_times(block, level, given);
    }
  }

  /// An evictable block, as the last in the order of release.
  void put_last(block_id block, index level) noexcept {
    farthest_.erase(block);
    lists_.move_newest(block, released_in(level));
    occupied_[level / 64] |= std::uint64_t{1} << level % 64;
  }

  void judge(const given_times& given, bool right) noexcept {
    if (!given.tells) {
      return;
    }
    ++(right ? num_right_ : num_wrong_);
    if (num_right_ + num_wrong_ > most_judged) {
      num_right_ /= 2;
      num_wrong_ /= 2;
    }
  }

  void forget(block_id block) noexcept {
    if (is_timed(block)) {
      deadlines_.erase(block);
      farthest_.erase(block);
    }
  }

  template <class Offer>
  [[nodiscard]] block_id take_of_level(index level, Offer& offer) noexcept {
    for (auto block = farthest_of(level); block != no_block; block = farthest_of(level)) {
      farthest_.erase(block);
      if (lists_.take(block, offer)) {
        return block;
      }
    }
    return no_block;
  }

  /// The block of a level whose next use is farthest off.
  [[nodiscard]] block_id farthest_of(index level) noexcept {
    const auto released = lists_.oldest_evictable(released_in(level));
    const auto found = !farthest_.empty() && lists_.list_of(farthest_.earliest()) == expected_in(level);
    const auto expected = found ? farthest_.earliest() : no_block;
    if (released == no_block || expected == no_block) {
      return released == no_block ? expected : released;
    }
    const auto ahead = nanoseconds(times_[to_index(expected)].due) - nanoseconds(now_);
    return ahead > nanoseconds(now_) - nanoseconds(lists_.beside(released)) ? expected : released;
  }

  basic_chain_lists<timestamp> lists_;  // beside a block, the time of its release
  detail::deadline_heap deadlines_;
  detail::deadline_heap farthest_;  // of expected blocks, by `rank_of`
  detail::observed_ends ends_;
  std::vector<given_times> times_;
  std::array<std::uint64_t, 2> occupied_{};  // levels that may have blocks
  timestamp now_{};                          // the latest that the policy was told
  std::uint32_t num_right_ = 0;              // expectations that came true
  std::uint32_t num_wrong_ = doubts;
};

static_assert(eviction_policy<priority>);

}  // namespace pagedkv
