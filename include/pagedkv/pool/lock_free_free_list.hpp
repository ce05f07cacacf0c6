#pragma once

#include <pagedkv/policy/locking/lock_free.hpp>
#include <pagedkv/policy/locking/parts/contention.hpp>
#include <pagedkv/policy/locking/parts/thread_index.hpp>
#include <pagedkv/pool/free_list.hpp>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace pagedkv {

/// Stack of indices below 2^32 - 1, linked through an array (after Treiber, "Systems programming: coping with
/// parallelism", 1986). A tag beside the top index counts pushes: a pop fails if its index was popped and pushed again
/// meanwhile, unless exactly a multiple of 2^32 pushes came between. Every member is lock-free.
template <template <class> class Atomic, contention_metrics Metrics = no_contention_metrics>
class tagged_index_stack {
 public:
  static constexpr std::uint32_t none = 0xffff'ffff;

  /// One link for every index. Stacks that never hold the same index may share them.
  using links = std::unique_ptr<Atomic<std::uint32_t>[]>;

  /// The top index and the number of pushes so far, modulo 2^32. Equal words mean that nothing was pushed in between.
  using word = std::uint64_t;

  [[nodiscard]] static constexpr std::uint32_t index_of(word top) noexcept { return static_cast<std::uint32_t>(top); }

  [[nodiscard]] word top() const noexcept { return top_.load(std::memory_order_acquire); }

  void push(links& next, std::uint32_t index) noexcept {
    auto seen = top_.load(std::memory_order_relaxed);
    for (;;) {
      next[index].store(index_of(seen), std::memory_order_relaxed);
      if (top_.compare_exchange_weak(seen, ((seen >> 32) + 1) << 32 | index, std::memory_order_release,
                                     std::memory_order_relaxed)) {
        return;
      }
      metrics_.retried();
    }
  }

  /// Takes the top, or leaves `seen` as the word that showed the stack empty. Calls `announce` with each index before
  /// the attempt to take it; a thread that then sees the stack without the index sees the effects of `announce`.
  template <class Announce>
  [[nodiscard]] std::uint32_t pop(const links& next, word& seen, Announce&& announce) noexcept {
    seen = top();
    while (index_of(seen) != none) {
      const auto index = index_of(seen);
      announce(index);
      const auto below = next[index].load(std::memory_order_relaxed);
      if (top_.compare_exchange_weak(seen, seen >> 32 << 32 | below, std::memory_order_acq_rel,
                                     std::memory_order_acquire)) {
        return index;
      }
      metrics_.retried();
    }
    return none;
  }

  [[nodiscard]] std::uint32_t pop(const links& next) noexcept {
    auto seen = word{};
    return pop(next, seen, [](std::uint32_t) {});
  }

  /// Takes the top only if it has not changed since `seen` was read.
  [[nodiscard]] bool pop_unchanged(const links& next, word seen) noexcept {
    const auto below = next[index_of(seen)].load(std::memory_order_relaxed);
    return top_.compare_exchange_strong(seen, seen >> 32 << 32 | below, std::memory_order_acq_rel,
                                        std::memory_order_relaxed);
  }

  /// Requires that no other thread uses the stack. Visits at most `most`: an index that was pushed twice is below
  /// itself.
  template <class Visit>
  void for_each(const links& next, std::uint32_t most, Visit&& visit) const {
    auto index = index_of(top());
    for (auto i = std::uint32_t{0}; i < most && index != none;
         ++i, index = next[index].load(std::memory_order_relaxed)) {
      visit(index);
    }
  }

  [[nodiscard]] contention_counts contention() const noexcept { return metrics_.counts(); }

 private:
  Atomic<word> top_{none};
  [[no_unique_address]] Metrics metrics_;
};

/// Free blocks of many threads. Every operation is lock-free. A thread that finds an id in its own cache neither
/// retries nor writes a cache line that others write.
///
/// Ids are in *magazines* of `MagazineSize` slots. Each thread has a cache of two, one to pop from and one to push to.
/// Full magazines are on one tagged stack, empty ones on another, and threads exchange whole magazines (after Bonwick
/// and Adams, "Magazines and vmem", USENIX 2001). Capacity is exact:
///
/// - An id leaves its slot only when it is popped: every thread, owner or not, swaps "none" for it, so an id can be
///   taken out of any magazine, wherever that magazine is. Only the owner of a magazine fills its slots, and only empty
///   ones, so a plain store fills one.
/// - A magazine that moves between a cache and a stack is announced in the cache first, so that a thread stopped in
///   between hides none.
/// - `pop` fails only after it found everything empty while no thread pushed. Taking an id out of a slot releases, and
///   reading a slot acquires: a thread that finds a slot empty also sees all earlier pushes.
///
/// Threads beyond the number of caches, and pushes that find no empty magazine, use a tagged stack of single ids.
/// `ThreadIndex` has the interface of `this_thread_index`; `MagazineSize` is best one less than a power of two.
template <template <class> class Atomic = std::atomic, class ThreadIndex = this_thread_index,
          std::uint32_t MagazineSize = 63, contention_metrics Metrics = no_contention_metrics>
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
        slots_(std::make_unique<Atomic<std::int32_t>[]>(std::size_t{num_magazines_} * stride)),
        next_magazine_(std::make_unique<Atomic<std::uint32_t>[]>(num_magazines_)),
        next_single_(std::make_unique<Atomic<std::uint32_t>[]>(num_blocks_)) {
    assert(num_blocks >= 0);
    for (auto magazine = num_magazines_; magazine-- > 0;) {
      stock(magazine);
    }
    for (auto i = std::uint32_t{0}; i < num_caches; ++i) {
      caches_[i].popping.store(empties_.pop(next_magazine_) * stride, std::memory_order_relaxed);
      caches_[i].pushing.store(empties_.pop(next_magazine_) * stride, std::memory_order_relaxed);
    }
  }

  [[nodiscard]] block_id pop() noexcept {
    const auto thread = threads_.current();
    if (thread >= num_caches_) [[unlikely]] {
      return pop_without_cache();
    }
    auto& own = caches_[thread];
    const auto popping = own.popping.load(std::memory_order_relaxed);
    if (level_of(popping) > 0) [[likely]] {
      const auto id = slots_[position_of(popping) - 1].exchange(no_id, std::memory_order_acq_rel);
      if (id != no_id) [[likely]] {
        own.popping.store(popping - 1, std::memory_order_release);
        return block_id{id};
      }
    }
    return pop_beyond(own);
  }

  void push(block_id block) noexcept {
    const auto thread = threads_.current();
    if (thread >= num_caches_) [[unlikely]] {
      return push_without_cache(block);
    }
    auto& own = caches_[thread];
    const auto pushing = own.pushing.load(std::memory_order_relaxed);
    if (level_of(pushing) == MagazineSize) [[unlikely]] {
      return push_beyond(own, block);
    }
    fill_slot(own, pushing, block);
  }

  /// Visits all slots. Single ids that stay are out of the list for a moment, as if another thread had popped them.
  template <class Visit>
  void take_from(block_id first, Visit&& visit) noexcept {
    const auto lowest = static_cast<std::int32_t>(first);
    const auto found = [&](std::int32_t id) {
      popped_without_cache_.fetch_add(1, std::memory_order_release);
      visit(block_id{id});
    };
    for (auto slot = std::uint32_t{0}; slot < num_magazines_ * stride; ++slot) {
      auto id = level_of(slot) < MagazineSize ? slots_[slot].load(std::memory_order_acquire) : no_id;
      if (id >= lowest && slots_[slot].compare_exchange_strong(id, no_id, std::memory_order_acq_rel,
                                                               std::memory_order_acquire)) {
        found(id);
      }
    }
    auto kept = stack{};
    for (auto id = singles_.pop(next_single_); id != stack::none; id = singles_.pop(next_single_)) {
      if (static_cast<std::int32_t>(id) >= lowest) {
        found(static_cast<std::int32_t>(id));
      } else {
        popped_without_cache_.fetch_add(1, std::memory_order_release);
        kept.push(next_single_, id);
      }
    }
    for (auto id = kept.pop(next_single_); id != stack::none; id = kept.pop(next_single_)) {
      push_without_cache(to_block(id));
    }
  }

  /// Visits all caches. With other threads at work, never less than the size at some moment of the call.
  [[nodiscard]] std::int32_t size() const noexcept {
    // Pops first: then every push that enabled a counted pop is also counted.
    auto total = num_blocks_ - popped_without_cache_.load(std::memory_order_acquire);
    for (auto i = std::uint32_t{0}; i < num_caches_in_use(); ++i) {
      total += count_of(caches_[i].popping.load(std::memory_order_acquire));
    }
    total += pushed_without_cache_.load(std::memory_order_relaxed);
    for (auto i = std::uint32_t{0}; i < num_caches_in_use(); ++i) {
      total += caches_[i].begun.load(std::memory_order_relaxed);
    }
    return std::clamp(static_cast<std::int32_t>(total), 0, static_cast<std::int32_t>(num_blocks_));
  }

  template <class Visit>
  void for_each(Visit&& visit) const {
    for (auto slot = std::uint32_t{0}; slot < num_magazines_ * stride; ++slot) {
      const auto id = level_of(slot) < MagazineSize ? slots_[slot].load(std::memory_order_relaxed) : no_id;
      if (id != no_id) {
        visit(block_id{id});
      }
    }
    singles_.for_each(next_single_, num_blocks_ + 1, [&](std::uint32_t id) { visit(to_block(id)); });
  }

  [[nodiscard]] contention_counts contention() const noexcept {
    auto sum = metrics_.counts();
    for (const auto* each : {&stocked_, &empties_, &singles_}) {
      sum += each->contention();
    }
    return sum;
  }
  [[nodiscard]] std::size_t metadata_bytes() const noexcept {
    return num_caches_ * sizeof(cache) + std::size_t{num_magazines_} * (stride + 1) * sizeof(std::uint32_t) +
           num_blocks_ * sizeof(std::uint32_t);
  }

 private:
  using stack = tagged_index_stack<Atomic, Metrics>;

  static constexpr auto no_id = static_cast<std::int32_t>(no_block);
  static constexpr auto magazines_per_cache = std::uint32_t{3};  // two in it, one while they are exchanged

  // A magazine has more slots than it uses, so that one number encodes the magazine and its level: a position.
  static constexpr auto stride = std::bit_ceil(MagazineSize + 1);

  /// A magazine is identified by the position above its ids. Slots from there up are empty; other threads may have
  /// emptied slots below. Only the owner writes the members, on a line of its own.
  struct alignas(64) cache {
    Atomic<std::uint64_t> pushing{0};    // word; its count is the ids that its thread has pushed, modulo 2^32
    Atomic<std::uint64_t> popping{0};    // the same, negated, for ids that its thread has popped
    Atomic<std::uint32_t> begun{0};      // pushes, including one not yet counted in `pushing`
    Atomic<std::uint32_t> announced{0};  // full position of a magazine that moves between cache and stack, or 0
  };

  // The lower half of a word is a position; the upper half plus the position's level is the count. So filling or
  // emptying the next slot adds or subtracts one, and an exchange of magazines never shows a wrong count.
  static constexpr auto one_more = std::uint64_t{1} << 32;

  [[nodiscard]] static std::uint32_t position_of(std::uint64_t word) noexcept {
    return static_cast<std::uint32_t>(word);
  }
  [[nodiscard]] static std::uint32_t level_of(std::uint64_t word) noexcept { return word % stride; }
  [[nodiscard]] static std::uint32_t magazine_of(std::uint64_t word) noexcept { return position_of(word) / stride; }
  [[nodiscard]] static std::uint32_t count_of(std::uint64_t word) noexcept {
    return static_cast<std::uint32_t>(word >> 32) + level_of(word);
  }
  [[nodiscard]] static std::uint64_t moved(std::uint64_t word, std::uint32_t position) noexcept {
    return std::uint64_t{count_of(word) - level_of(position)} << 32 | position;
  }
  [[nodiscard]] static std::uint32_t full_position(std::uint32_t magazine) noexcept {
    return magazine * stride + MagazineSize;
  }

  /// The lowest ids are uppermost in the first magazine, so they are popped first.
  void stock(std::uint32_t magazine) noexcept {
    const auto first = std::uint64_t{magazine} * MagazineSize;
    for (auto i = std::uint32_t{0}; i < MagazineSize; ++i) {
      const auto id = first + (MagazineSize - 1 - i);
      slots_[magazine * stride + i].store(id < num_blocks_ ? static_cast<std::int32_t>(id) : no_id,
                                          std::memory_order_relaxed);
    }
    (first < num_blocks_ ? stocked_ : empties_).push(next_magazine_, magazine);
  }

  /// Counts an id that was pushed to, or popped from, a stack instead of the cache.
  static void count(Atomic<std::uint64_t>& word, std::uint64_t one) noexcept {
    word.store(word.load(std::memory_order_relaxed) + one, std::memory_order_release);
  }

  void fill_slot(cache& own, std::uint64_t pushing, block_id block) noexcept {
    own.begun.store(count_of(pushing) + 1, std::memory_order_relaxed);
    slots_[position_of(pushing)].store(static_cast<std::int32_t>(block), std::memory_order_release);
    own.pushing.store(pushing + 1, std::memory_order_release);
  }

  [[gnu::noinline]] block_id pop_beyond(cache& own) noexcept {
    for (;;) {
      auto stocked = typename stack::word{};
      do {
        auto id = pop_own(own);
        if (id == no_id && level_of(own.pushing.load(std::memory_order_relaxed)) > 0) {
          exchange_magazines(own);
          id = pop_own(own);
        }
        if (id != no_id) {
          return block_id{id};
        }
      } while (restock(own, stocked));
      const auto found = search_elsewhere(stocked);
      if (found.id != no_id) {
        count(own.popping, 0 - one_more);
        return block_id{found.id};
      }
      if (found.exhausted) {
        return no_block;
      }
    }
  }

  [[nodiscard]] std::int32_t pop_own(cache& own) noexcept {
    auto popping = own.popping.load(std::memory_order_relaxed);
    while (level_of(popping) > 0) {
      const auto below = position_of(popping) - 1;
      const auto id = slots_[below].exchange(no_id, std::memory_order_acq_rel);
      popping = id != no_id ? popping - 1 : moved(popping, below);
      own.popping.store(popping, std::memory_order_release);
      if (id != no_id) {
        return id;
      }
    }
    return no_id;
  }

  /// The magazine to pop from is empty. A thread that searches for ids reads `pushing`, `announced` and `popping`, in
  /// this order, and so finds the other magazine in one of them.
  void exchange_magazines(cache& own) noexcept {
    const auto pushing = own.pushing.load(std::memory_order_relaxed);
    const auto popping = own.popping.load(std::memory_order_relaxed);
    own.announced.store(full_position(magazine_of(pushing)), std::memory_order_relaxed);
    own.pushing.store(moved(pushing, position_of(popping)), std::memory_order_release);
    own.popping.store(moved(popping, position_of(pushing)), std::memory_order_release);
    own.announced.store(0, std::memory_order_release);
  }

  /// Exchanges the empty magazine to pop from for a stocked one. False if there was none; `stocked` is then the word
  /// that showed it.
  [[nodiscard]] bool restock(cache& own, typename stack::word& stocked) noexcept {
    const auto magazine = stocked_.pop(next_magazine_, stocked, [&](std::uint32_t candidate) {
      own.announced.store(full_position(candidate), std::memory_order_relaxed);
    });
    if (magazine != stack::none) {
      const auto popping = own.popping.load(std::memory_order_relaxed);
      own.popping.store(moved(popping, full_position(magazine)), std::memory_order_release);
      empties_.push(next_magazine_, magazine_of(popping));
    }
    own.announced.store(0, std::memory_order_release);
    return magazine != stack::none;
  }

  /// Pushes when the magazine to push to is full.
  [[gnu::noinline]] void push_beyond(cache& own, block_id block) noexcept {
    if (level_of(own.popping.load(std::memory_order_relaxed)) == 0) {
      exchange_magazines(own);
    } else if (!exchange_full(own)) {
      own.begun.store(own.begun.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
      count(own.pushing, one_more);
      return singles_.push(next_single_, static_cast<std::uint32_t>(block));
    }
    fill_slot(own, own.pushing.load(std::memory_order_relaxed), block);
  }

  /// Exchanges the full magazine to push to for an empty one. False if there is none.
  [[nodiscard]] bool exchange_full(cache& own) noexcept {
    const auto empty = empties_.pop(next_magazine_);
    if (empty == stack::none) {
      return false;
    }
    const auto pushing = own.pushing.load(std::memory_order_relaxed);
    stocked_.push(next_magazine_, magazine_of(pushing));
    own.pushing.store(moved(pushing, empty * stride), std::memory_order_release);
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
        popped_without_cache_.fetch_add(1, std::memory_order_release);
        return block_id{found.id};
      }
      if (found.exhausted) {
        return no_block;
      }
    }
  }

  [[gnu::noinline]] void push_without_cache(block_id block) noexcept {
    pushed_without_cache_.fetch_add(1, std::memory_order_relaxed);
    singles_.push(next_single_, static_cast<std::uint32_t>(block));
  }

  /// Takes an id of the topmost stocked magazine, which stays on its stack unless it is empty.
  [[nodiscard]] std::int32_t pop_stocked_in_place(typename stack::word& stocked) noexcept {
    for (stocked = stocked_.top(); stack::index_of(stocked) != stack::none; stocked = stocked_.top()) {
      const auto id = steal(full_position(stack::index_of(stocked)));
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
    bool exhausted = false;  // at some moment of the search, there was no id anywhere
  };

  /// Searches everything but the stocked magazines, of which there were none when their stack was `stocked`.
  [[nodiscard]] search_result search_elsewhere(typename stack::word stocked) noexcept {
    auto singles = typename stack::word{};
    const auto single = singles_.pop(next_single_, singles, [](std::uint32_t) {});
    if (single != stack::none) {
      return {static_cast<std::int32_t>(single)};
    }
    const auto num_seen = num_caches_in_use();
    auto pushes = std::uint32_t{0};
    for (auto i = std::uint32_t{0}; i < num_seen; ++i) {
      const auto id = steal(caches_[i], pushes);
      if (id != no_id) {
        metrics_.stole();
        return {id};
      }
    }
    for (auto i = std::uint32_t{0}; i < num_seen; ++i) {
      pushes -= count_of(caches_[i].pushing.load(std::memory_order_acquire));
    }
    return {no_id,
            pushes == 0 && singles_.top() == singles && stocked_.top() == stocked && num_caches_in_use() == num_seen};
  }

  /// Adds the number of ids that the thread had pushed before this reading to `pushes`.
  [[nodiscard]] std::int32_t steal(const cache& from, std::uint32_t& pushes) noexcept {
    const auto pushing = from.pushing.load(std::memory_order_acquire);
    pushes += count_of(pushing);
    auto id = steal(position_of(pushing));
    if (id == no_id) {
      id = steal(from.announced.load(std::memory_order_acquire));
    }
    return id != no_id ? id : steal(position_of(from.popping.load(std::memory_order_acquire)));
  }

  /// Takes an id of a magazine from the bottom up, because the owner takes them from the top.
  [[nodiscard]] std::int32_t steal(std::uint32_t position) noexcept {
    auto id = no_id;
    for (auto i = position / stride * stride; i < position && id == no_id; ++i) {
      if (slots_[i].load(std::memory_order_acquire) != no_id) {
        id = slots_[i].exchange(no_id, std::memory_order_acq_rel);
      }
    }
    return id;
  }

  [[nodiscard]] std::uint32_t num_caches_in_use() const noexcept { return std::min(threads_.limit(), num_caches_); }

  [[no_unique_address]] ThreadIndex threads_;
  std::uint32_t num_blocks_;
  std::uint32_t num_caches_;
  std::uint32_t num_magazines_;
  std::unique_ptr<cache[]> caches_;
  std::unique_ptr<Atomic<std::int32_t>[]> slots_;
  typename stack::links next_magazine_;
  typename stack::links next_single_;
  alignas(64) stack stocked_;  // magazines with ids; full when they were pushed
  alignas(64) stack empties_;  // magazines without ids
  alignas(64) stack singles_;
  Atomic<std::uint32_t> popped_without_cache_{0};
  Atomic<std::uint32_t> pushed_without_cache_{0};
  [[no_unique_address]] Metrics metrics_;
};

static_assert(free_list<lock_free_free_list<>>);

template <locking Locking>
struct free_list_of<lock_free_family, Locking> {
  using type =
      lock_free_free_list<Locking::template atomic, thread_index_for<Locking>, 63, typename Locking::contention>;
};

}  // namespace pagedkv
