#pragma once

#include <pagedkv/core/ids.hpp>
#include <pagedkv/policy/locking/parts/unsynchronized.hpp>

#include <array>
#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>

namespace pagedkv {

/// Maps hashes to the ids of nodes. Several ids may have the same hash; each id is in the table at most once. Open
/// addressing over buckets of one cache line. A full bucket passes entries on, by a stride that depends on the hash,
/// and counts them, so that erasing leaves no tombstones (the idea of Facebook's F14). 7.5 bytes for each of
/// `num_nodes` ids; nothing allocates after construction.
///
/// Buckets have 15 entries, 8.5 of them used on average. An entry that was passed on stays there when its home has
/// space again, so full buckets accumulate; at this load, a look-up then reads 1.02 buckets, and one that finds nothing
/// 1.09.
///
/// With an atomic `Atomic`, every member may be called from any thread and none waits. An id may be erased, or have
/// another hash, after it is found: the caller takes a lease on the node and then compares.
template <template <class> class Atomic, class Node = block_id>
class bucket_table {
 public:
  explicit bucket_table(std::int32_t num_nodes)
      : id_mask_((std::uint32_t{1} << std::bit_width(static_cast<std::uint32_t>(num_nodes))) - 1),
        num_buckets_(prime_from(static_cast<std::uint32_t>(std::int64_t{num_nodes} * 2 / 17 + 1))),
        buckets_(std::make_unique<bucket[]>(num_buckets_)) {}

  void insert(std::uint64_t hash, Node node) noexcept {
    const auto entry = make_entry(hash, node);
    for (;;) {
      auto at = home(hash);
      for (std::size_t passed = 0; passed < num_buckets_; ++passed, at = next(at, hash)) {
        if (try_put(buckets_[at], first_slot(hash), entry)) {
          return;
        }
        buckets_[at].passed_on.fetch_add(1, std::memory_order_release);
      }
      // Other threads filled every free entry before this one reached it.
      uncount(hash, num_buckets_);
    }
  }

  /// Requires that the id is in the table under this hash.
  void erase(std::uint64_t hash, Node node) noexcept {
    const auto sought = make_entry(hash, node);
    auto at = home(hash);
    for (std::size_t passed = 0;; ++passed, at = next(at, hash)) {
      if (try_take(buckets_[at], first_slot(hash), sought)) {
        uncount(hash, passed);
        return;
      }
    }
  }

  /// Calls `accept(id)` on ids that may carry this hash until one returns true; returns that id, or -1.
  template <class Accept>
  [[nodiscard]] Node find(std::uint64_t hash, Accept&& accept) const {
    auto at = home(hash);
    for (std::size_t visited = 0; visited < num_buckets_; ++visited, at = next(at, hash)) {
      const auto& here = buckets_[at];
      auto slot = first_slot(hash);
      for (std::size_t i = 0; i < num_slots; ++i, slot = next_slot(slot)) {
        const auto seen = here.entries[slot].load(std::memory_order_acquire);
        if (((seen ^ tag_source(hash)) & ~id_mask_) == 0 && seen != empty) {
          if (const auto node = node_of(seen); accept(node)) {
            return node;
          }
        }
      }
      if (here.passed_on.load(std::memory_order_acquire) == 0) {
        break;
      }
    }
    return Node{-1};
  }

  /// `find`, in less time where no id is accepted.
  template <class Accept>
  [[nodiscard]] Node find_if_any(std::uint64_t hash, Accept&& accept) const {
    if constexpr (!compares_at_once) {
      return find(hash, accept);
    }
    auto at = home(hash);
    for (std::size_t visited = 0; visited < num_buckets_; ++visited, at = next(at, hash)) {
      const auto& here = buckets_[at];
      const auto tagged = equal_entries(here, tag_source(hash) & ~id_mask_, ~id_mask_);
      // Twice, so that they come in the order of `find`: from the first slot on, and on behind the last.
      const auto first = first_slot(hash);
      for (auto slots = (tagged << num_slots | tagged) >> first & all_slots; slots != 0; slots &= slots - 1) {
        const auto slot = first + first_of(slots);
        const auto seen = here.entries[slot < num_slots ? slot : slot - num_slots].load(std::memory_order_relaxed);
        if (seen != empty && accept(node_of(seen))) {
          return node_of(seen);
        }
      }
      if (here.passed_on.load(std::memory_order_relaxed) == 0) {
        break;
      }
    }
    return Node{-1};
  }

  /// Inlined, because g++ drops calls of functions that do nothing but prefetch.
  [[gnu::always_inline]] void prefetch(std::uint64_t hash) const noexcept { __builtin_prefetch(&buckets_[home(hash)]); }

  [[nodiscard]] std::size_t metadata_bytes() const noexcept { return num_buckets_ * sizeof(bucket); }

 private:
  static constexpr auto num_slots = std::size_t{15};
  static constexpr auto all_slots = (std::uint32_t{1} << num_slots) - 1;
  static constexpr auto empty = std::uint32_t{0};

  struct alignas(64) bucket {
    Atomic<std::uint32_t> passed_on{0};
    std::array<Atomic<std::uint32_t>, num_slots> entries{};
  };

  /// A prime number of buckets, so that every stride visits every bucket.
  [[nodiscard]] static std::size_t prime_from(std::uint32_t least) noexcept {
    const auto is_prime = [](std::uint32_t n) {
      auto divisor = std::uint32_t{2};
      while (divisor * divisor <= n && n % divisor != 0) {
        ++divisor;
      }
      return n > 1 && divisor * divisor > n;
    };
    while (!is_prime(least)) {
      ++least;
    }
    return least;
  }

  // The lower half of the hash selects the bucket. The upper half gives the stride, the first slot and, above as many
  // bits as an id needs plus 1, the tag.
  [[nodiscard]] static std::uint32_t tag_source(std::uint64_t hash) noexcept {
    return static_cast<std::uint32_t>(hash >> 32);
  }
  [[nodiscard]] std::uint32_t make_entry(std::uint64_t hash, Node node) const noexcept {
    return (tag_source(hash) & ~id_mask_) | (static_cast<std::uint32_t>(node) + 1);
  }
  [[nodiscard]] Node node_of(std::uint32_t entry) const noexcept {
    return static_cast<Node>((entry & id_mask_) - 1);
  }
  [[nodiscard]] std::size_t home(std::uint64_t hash) const noexcept {
    return static_cast<std::size_t>((hash & 0xffff'ffff) * num_buckets_ >> 32);
  }
  [[nodiscard]] std::size_t next(std::size_t at, std::uint64_t hash) const noexcept {
    const auto to = at + 1 + static_cast<std::size_t>((hash >> 32) * (num_buckets_ - 1) >> 32);
    return to < num_buckets_ ? to : to - num_buckets_;
  }
  [[nodiscard]] static std::size_t first_slot(std::uint64_t hash) noexcept {
    return static_cast<std::size_t>((hash >> 32 & 0xffff) * num_slots >> 16);
  }
  [[nodiscard]] static std::size_t first_of(std::uint32_t slots) noexcept {
    return static_cast<std::size_t>(std::countr_zero(slots));
  }
  [[nodiscard]] static std::size_t next_slot(std::size_t slot) noexcept { return slot + 1 < num_slots ? slot + 1 : 0; }

#if defined(__x86_64__) && defined(__GNUC__)
  /// Whether `insert`, `erase` and `find_if_any` compare all entries of a bucket at once: the processor cannot predict
  /// which of them the right one is. A look-up mostly finds its entry in the first slot, and goes on before the
  /// comparison ends.
  static constexpr bool compares_at_once = std::same_as<Atomic<std::uint32_t>, unsynchronized<std::uint32_t>>;

  /// The entries that are equal to a value in the bits of a mask: bit i stands for entry i.
  [[nodiscard]] [[gnu::always_inline]] static std::uint32_t equal_entries(const bucket& in, std::uint32_t value,
                                                                          std::uint32_t mask = ~0U) noexcept {
    using four_words [[gnu::vector_size(16)]] = int;
    const auto compare = [&, all = static_cast<int>(value), bits = static_cast<int>(mask)](std::size_t first) {
      auto words = four_words{};
      std::memcpy(&words, reinterpret_cast<const std::byte*>(&in) + first * sizeof(int), sizeof(words));
      return (words & four_words{bits, bits, bits, bits}) == four_words{all, all, all, all};
    };
    const auto lower = __builtin_ia32_packssdw128(compare(0), compare(4));
    const auto upper = __builtin_ia32_packssdw128(compare(8), compare(12));
    const auto equal = static_cast<std::uint32_t>(__builtin_ia32_pmovmskb128(__builtin_ia32_packsswb128(lower, upper)));
    return equal >> 1;  // without `passed_on`
  }
#else
  static constexpr bool compares_at_once = false;

  [[nodiscard]] static std::uint32_t equal_entries(const bucket&, std::uint32_t, std::uint32_t = ~0U) noexcept {
    return 0;
  }
#endif

  [[nodiscard]] static bool try_put(bucket& in, std::size_t slot, std::uint32_t entry) noexcept {
    if constexpr (compares_at_once) {
      const auto vacant = equal_entries(in, empty);
      const auto behind = vacant >> slot << slot;
      if (vacant != 0) {
        in.entries[first_of(behind != 0 ? behind : vacant)].store(entry, std::memory_order_release);
      }
      return vacant != 0;
    } else {
      for (std::size_t i = 0; i < num_slots; ++i, slot = next_slot(slot)) {
        auto expected = empty;
        if (in.entries[slot].load(std::memory_order_relaxed) == empty &&
            in.entries[slot].compare_exchange_strong(expected, entry, std::memory_order_release,
                                                     std::memory_order_relaxed)) {
          return true;
        }
      }
      return false;
    }
  }

  [[nodiscard]] static bool try_take(bucket& from, [[maybe_unused]] std::size_t slot, std::uint32_t entry) noexcept {
    if constexpr (compares_at_once) {
      const auto there = equal_entries(from, entry);
      if (there != 0) {
        from.entries[first_of(there)].store(empty, std::memory_order_release);
      }
      return there != 0;
    } else {
      for (std::size_t i = 0; i < num_slots; ++i, slot = next_slot(slot)) {
        if (from.entries[slot].load(std::memory_order_relaxed) == entry) {
          from.entries[slot].store(empty, std::memory_order_release);
          return true;
        }
      }
      return false;
    }
  }

  /// Removes an entry from the counts of the first `count` buckets that passed it on, from its home on.
  void uncount(std::uint64_t hash, std::size_t count) noexcept {
    for (auto at = home(hash); count > 0; --count, at = next(at, hash)) {
      buckets_[at].passed_on.fetch_sub(1, std::memory_order_release);
    }
  }

  std::uint32_t id_mask_;
  std::size_t num_buckets_;
  std::unique_ptr<bucket[]> buckets_;
};

}  // namespace pagedkv
