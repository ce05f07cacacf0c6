#pragma once

#include <pagedkv/policy/locking/lock_free.hpp>
#include <pagedkv/policy/locking/thread_index.hpp>
#include <pagedkv/pool/free_list.hpp>
#include <pagedkv/pool/tagged_index_stack.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace pagedkv {

/// Free blocks of many threads. Every operation is lock-free; while a thread finds what it needs in its own cache, it
/// neither retries nor touches a line that others write.
///
/// Ids lie in *magazines* of `MagazineSize` slots. Each thread has a cache of two; full magazines lie on one tagged stack,
/// empty ones on another, and change hands whole (Bonwick and Adams, "Magazines and vmem", USENIX 2001). Capacity is exact:
///
/// - An id never leaves its slot but to be handed out. Whoever takes it swaps `none` for it, owner or not, so an id can be
///   taken out of any magazine, wherever that is just then. Only the owner of a magazine fills its slots, and only empty
///   ones, so filling one is a plain store.
/// - A magazine on its way from the stack into a cache is announced there first, so a thread stopped in between hides none.
/// - `pop` gives up only after it found every place empty while nothing was pushed anywhere.
///
/// Threads beyond the number of caches, and pushes that find no empty magazine, use a tagged stack of single ids.
/// `ThreadIndex` has the interface of `this_thread_index`.
template <template <class> class Atomic = std::atomic, class ThreadIndex = this_thread_index,
          std::uint32_t MagazineSize = 64>
class lock_free_free_list {
 public:
  explicit lock_free_free_list(std::int32_t num_blocks)
      : lock_free_free_list(num_blocks, std::clamp(static_cast<std::uint32_t>(num_blocks) / MagazineSize,
                                                   std::uint32_t{16}, std::uint32_t{256})) {}

  lock_free_free_list(std::int32_t num_blocks, std::uint32_t num_caches)
      : num_blocks_(static_cast<std::uint32_t>(num_blocks)),
        num_caches_(num_caches),
        num_magazines_((num_blocks_ + MagazineSize - 1) / MagazineSize + magazines_per_cache * num_caches),
        caches_(std::make_unique<cache[]>(num_caches)),
        magazines_(std::make_unique<magazine[]>(num_magazines_)),
        next_magazine_(std::make_unique<Atomic<std::uint32_t>[]>(num_magazines_)),
        next_single_(std::make_unique<Atomic<std::uint32_t>[]>(num_blocks_)) {
    assert(num_blocks >= 0);
    for (auto index = num_magazines_; index-- > 0;) {
      stock(index);
    }
    for (auto i = std::uint32_t{0}; i < num_caches; ++i) {
      for (auto& place : caches_[i].magazines) {
        place.store(empties_.pop(next_magazine_), std::memory_order_relaxed);
      }
    }
  }

  [[nodiscard]] block_id pop() noexcept {
    const auto thread = ThreadIndex::current();
    if (thread >= num_caches_) [[unlikely]] {
      return pop_without_cache();
    }
    auto& own = caches_[thread];
    auto now = levels{own.filled.load(std::memory_order_relaxed)};
    if (now.in_use() > 0) [[likely]] {
      now.lower();
      const auto id = magazine_in_use(own, now)[now.in_use()].exchange(no_id, std::memory_order_acquire);
      own.filled.store(now.word(), std::memory_order_release);
      if (id != no_id) [[likely]] {
        return block_id{id};
      }
      adjust(own, 1);
    }
    return pop_beyond(own);
  }

  void push(block_id block) noexcept {
    const auto thread = ThreadIndex::current();
    if (thread >= num_caches_) [[unlikely]] {
      return push_without_cache(block);
    }
    auto& own = caches_[thread];
    auto now = levels{own.filled.load(std::memory_order_relaxed)};
    if (now.in_use() == MagazineSize) [[unlikely]] {
      return push_beyond(own, block);
    }
    fill_slot(own, now, block);
  }

  /// Takes time in the number of threads.
  [[nodiscard]] std::int32_t size() const noexcept {
    auto total = num_blocks_ - taken_without_cache_.load(std::memory_order_relaxed);
    for (auto i = std::uint32_t{0}; i < num_caches_in_use(); ++i) {
      const auto now = levels{caches_[i].filled.load(std::memory_order_relaxed)};
      total += now.in_use() + now.aside() + caches_[i].adjustment.load(std::memory_order_relaxed);
    }
    // Read one after the other while threads are at work, they may come out too small or too large.
    return std::clamp(static_cast<std::int32_t>(total), 0, static_cast<std::int32_t>(num_blocks_));
  }

  [[nodiscard]] std::size_t metadata_bytes() const noexcept {
    return num_caches_ * sizeof(cache) + num_magazines_ * (sizeof(magazine) + sizeof(std::uint32_t)) +
           num_blocks_ * sizeof(std::uint32_t);
  }

 private:
  using stack = tagged_index_stack<Atomic>;

  static constexpr auto no_id = static_cast<std::int32_t>(no_block);
  static constexpr auto no_magazine = stack::none;
  static constexpr auto minus_one = ~std::uint32_t{0};
  static constexpr auto magazines_per_cache = std::uint32_t{3};  // two in it, one while they are exchanged

  /// How high the two magazines of a cache are filled: the one in use and the one set aside; which is which; and the number
  /// of pushes modulo 2^32. Slots from the level up are empty; others may have emptied some of those below.
  class levels {
   public:
    explicit levels(std::uint64_t word) noexcept : word_(word) {}

    [[nodiscard]] std::uint64_t word() const noexcept { return word_; }
    [[nodiscard]] std::uint32_t in_use() const noexcept { return word_ & level_mask; }
    [[nodiscard]] std::uint32_t aside() const noexcept { return word_ >> 8 & level_mask; }
    [[nodiscard]] std::uint32_t place_in_use() const noexcept { return word_ >> 16 & 1; }
    [[nodiscard]] std::uint32_t pushes() const noexcept { return static_cast<std::uint32_t>(word_ >> 32); }

    void raise() noexcept { word_ += one_push + 1; }
    void lower() noexcept { word_ -= 1; }
    void count_push() noexcept { word_ += one_push; }
    void set_in_use(std::uint32_t level) noexcept { word_ = (word_ & ~level_mask) | level; }
    void swap() noexcept {
      const auto both = word_ & 0xffff;
      word_ = (word_ - both + (both >> 8 | (both & level_mask) << 8)) ^ std::uint64_t{1} << 16;
    }

   private:
    static constexpr auto level_mask = std::uint64_t{0xff};
    static constexpr auto one_push = std::uint64_t{1} << 32;

    std::uint64_t word_;
  };

  static_assert(MagazineSize < 256, "a level is kept in 8 bits");

  using magazine = std::array<Atomic<std::int32_t>, MagazineSize>;

  /// Written by its owner only; on a line of its own.
  struct alignas(64) cache {
    Atomic<std::uint64_t> filled{0};  // as `levels`
    std::array<Atomic<std::uint32_t>, 2> magazines{};
    Atomic<std::uint32_t> announced{no_magazine};
    Atomic<std::uint32_t> adjustment{0};  // what the levels count too little, modulo 2^32; see `size`
  };

  /// The lowest ids lie uppermost in the first magazine, so they are popped first.
  void stock(std::uint32_t index) noexcept {
    const auto first = std::uint64_t{index} * MagazineSize;
    for (auto i = std::uint32_t{0}; i < MagazineSize; ++i) {
      const auto id = first + (MagazineSize - 1 - i);
      magazines_[index][i].store(id < num_blocks_ ? static_cast<std::int32_t>(id) : no_id, std::memory_order_relaxed);
    }
    (first < num_blocks_ ? stocked_ : empties_).push(next_magazine_, index);
  }

  [[nodiscard]] magazine& magazine_in_use(const cache& own, levels now) noexcept {
    return magazines_[own.magazines[now.place_in_use()].load(std::memory_order_relaxed)];
  }

  static void adjust(cache& own, std::uint32_t difference) noexcept {
    own.adjustment.store(own.adjustment.load(std::memory_order_relaxed) + difference, std::memory_order_relaxed);
  }

  void fill_slot(cache& own, levels now, block_id block) noexcept {
    magazine_in_use(own, now)[now.in_use()].store(static_cast<std::int32_t>(block), std::memory_order_release);
    now.raise();
    own.filled.store(now.word(), std::memory_order_release);
  }

  [[gnu::noinline]] block_id pop_beyond(cache& own) noexcept {
    for (;;) {
      auto stocked = typename stack::word{};
      do {
        const auto id = pop_own(own);
        if (id != no_id) {
          return block_id{id};
        }
      } while (restock(own, stocked));
      const auto found = search_elsewhere(stocked);
      if (found.id != no_id) {
        adjust(own, minus_one);
        return block_id{found.id};
      }
      if (found.exhausted) {
        return no_block;
      }
    }
  }

  [[nodiscard]] std::int32_t pop_own(cache& own) noexcept {
    auto now = levels{own.filled.load(std::memory_order_relaxed)};
    for (auto tries = 0; tries < 2; ++tries) {
      auto& slots = magazine_in_use(own, now);
      while (now.in_use() > 0) {
        now.lower();
        const auto id = slots[now.in_use()].exchange(no_id, std::memory_order_acquire);
        if (id != no_id) {
          own.filled.store(now.word(), std::memory_order_release);
          return id;
        }
        adjust(own, 1);
      }
      now.swap();
    }
    own.filled.store(now.word(), std::memory_order_release);
    return no_id;
  }

  /// Changes the magazine in use, which is empty, for a stocked one. False when there was none, as `stocked` shows.
  [[nodiscard]] bool restock(cache& own, typename stack::word& stocked) noexcept {
    const auto index = stocked_.pop(next_magazine_, stocked, [&](std::uint32_t candidate) {
      own.announced.store(candidate, std::memory_order_relaxed);
    });
    if (index != no_magazine) {
      auto now = levels{own.filled.load(std::memory_order_relaxed)};
      auto& place = own.magazines[now.place_in_use()];
      const auto empty = place.load(std::memory_order_relaxed);
      place.store(index, std::memory_order_release);
      now.set_in_use(MagazineSize);
      own.filled.store(now.word(), std::memory_order_release);
      adjust(own, 0 - MagazineSize);
      empties_.push(next_magazine_, empty);
    }
    own.announced.store(no_magazine, std::memory_order_release);
    return index != no_magazine;
  }

  [[gnu::noinline]] void push_beyond(cache& own, block_id block) noexcept {
    auto now = levels{own.filled.load(std::memory_order_relaxed)};
    now.swap();
    if (now.in_use() < MagazineSize || exchange_full(own, now)) {
      fill_slot(own, now, block);
    } else {
      singles_.push(next_single_, static_cast<std::uint32_t>(block));
      adjust(own, 1);
      now.count_push();
      own.filled.store(now.word(), std::memory_order_release);
    }
  }

  /// Changes the magazine in use, which is full, for an empty one. False when there is none.
  [[nodiscard]] bool exchange_full(cache& own, levels& now) noexcept {
    const auto empty = empties_.pop(next_magazine_);
    if (empty == no_magazine) {
      return false;
    }
    auto& place = own.magazines[now.place_in_use()];
    stocked_.push(next_magazine_, place.load(std::memory_order_relaxed));
    place.store(empty, std::memory_order_release);
    now.set_in_use(0);
    adjust(own, MagazineSize);
    return true;
  }

  [[gnu::noinline]] block_id pop_without_cache() noexcept {
    for (;;) {
      auto stocked = typename stack::word{};
      auto found = search_result{pop_stocked_in_place(stocked)};
      if (found.id == no_id) {
        found = search_elsewhere(stocked);
      }
      if (found.id != no_id) {
        taken_without_cache_.fetch_add(1, std::memory_order_relaxed);
        return block_id{found.id};
      }
      if (found.exhausted) {
        return no_block;
      }
    }
  }

  [[gnu::noinline]] void push_without_cache(block_id block) noexcept {
    taken_without_cache_.fetch_sub(1, std::memory_order_relaxed);
    singles_.push(next_single_, static_cast<std::uint32_t>(block));
  }

  /// An id of the topmost stocked magazine, which stays where it is unless it proves empty.
  [[nodiscard]] std::int32_t pop_stocked_in_place(typename stack::word& stocked) noexcept {
    for (stocked = stocked_.top(); stack::index_of(stocked) != no_magazine; stocked = stocked_.top()) {
      const auto id = steal(stack::index_of(stocked), MagazineSize);
      if (id != no_id) {
        return id;
      }
      if (stocked_.pop_unchanged(next_magazine_, stocked)) {
        empties_.push(next_magazine_, stack::index_of(stocked));
      }
    }
    return no_id;
  }

  struct search_result {
    std::int32_t id = no_id;
    bool exhausted = false;  // there was no id anywhere at some moment
  };

  /// Looks in all places but the stocked magazines, of which there were none when their stack was `stocked`.
  [[nodiscard]] search_result search_elsewhere(typename stack::word stocked) noexcept {
    auto singles = typename stack::word{};
    const auto single = singles_.pop(next_single_, singles, [](std::uint32_t) {});
    if (single != stack::none) {
      return {static_cast<std::int32_t>(single)};
    }
    const auto num_seen = num_caches_in_use();
    auto pushes = std::uint64_t{0};
    for (auto i = std::uint32_t{0}; i < num_seen; ++i) {
      const auto id = steal(caches_[i], pushes);
      if (id != no_id) {
        return {id};
      }
    }
    for (auto i = std::uint32_t{0}; i < num_seen; ++i) {
      pushes -= levels{caches_[i].filled.load(std::memory_order_acquire)}.pushes();
    }
    return {no_id, pushes == 0 && singles_.top() == singles && stocked_.top() == stocked &&
                       num_caches_in_use() == num_seen};
  }

  /// Adds to `pushes` how often the cache was pushed to before this look at it.
  [[nodiscard]] std::int32_t steal(const cache& from, std::uint64_t& pushes) noexcept {
    // Before the levels: a magazine that is no longer announced is counted in them.
    auto id = steal(from.announced.load(std::memory_order_acquire), MagazineSize);
    auto now = levels{from.filled.load(std::memory_order_acquire)};
    pushes += now.pushes();
    for (auto tries = 0; tries < 2 && id == no_id; ++tries) {
      if (now.in_use() > 0) {
        id = steal(from.magazines[now.place_in_use()].load(std::memory_order_acquire), now.in_use());
      }
      now.swap();
    }
    return id;
  }

  /// From the bottom up, since the owner comes from the top.
  [[nodiscard]] std::int32_t steal(std::uint32_t index, std::uint32_t level) noexcept {
    auto id = no_id;
    for (auto i = std::uint32_t{0}; index != no_magazine && id == no_id && i < level; ++i) {
      auto& slot = magazines_[index][i];
      if (slot.load(std::memory_order_relaxed) != no_id) {
        id = slot.exchange(no_id, std::memory_order_acquire);
      }
    }
    return id;
  }

  [[nodiscard]] std::uint32_t num_caches_in_use() const noexcept {
    return std::min(ThreadIndex::limit(), num_caches_);
  }

  std::uint32_t num_blocks_;
  std::uint32_t num_caches_;
  std::uint32_t num_magazines_;
  std::unique_ptr<cache[]> caches_;
  std::unique_ptr<magazine[]> magazines_;
  typename stack::links next_magazine_;
  typename stack::links next_single_;
  alignas(64) stack stocked_;  // magazines with ids: full when they came here
  alignas(64) stack empties_;  // magazines without
  alignas(64) stack singles_;
  Atomic<std::uint32_t> taken_without_cache_{0};
};

static_assert(free_list<lock_free_free_list<>>);

template <locking Locking>
struct free_list_of<lock_free_family, Locking> {
  using type = lock_free_free_list<Locking::template atomic>;
};

}  // namespace pagedkv
