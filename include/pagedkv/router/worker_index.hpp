#pragma once

#include <pagedkv/core/result.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace pagedkv {

/// Names one worker of a router: 0 to `num_workers` - 1.
enum class worker_id : std::int32_t {};

/// The outcome of adding a block to a `worker_index`.
enum class index_addition : std::uint8_t {
  added,
  held,     // nothing: the worker holds the block already
  refused,  // nothing: both buckets are full, or other threads try their free entries; the block is not found later
};

/// How much a `worker_index` holds.
struct worker_index_config {
  std::int64_t num_blocks = 0;    // different ones, over all workers
  std::int32_t num_workers = 63;  // at most 1,023
};

/// Which workers hold which blocks: a set of workers for each key. A hint: a worker may have evicted a block whose
/// removal is still on its way.
///
/// Lock-free: no member waits for another thread, and queries do not write. Any thread may query; one thread at a time
/// adds and removes for a worker. While others add and remove, an answer may miss a block, or name a worker that does
/// not hold it.
///
/// A fixed table of buckets of eight keys, two cache lines each; a key lies in one of two buckets. An entry without
/// workers is free. One bit of an entry's set of workers claims it while its key changes. A thread passes by an entry
/// that is claimed, so a key may be in several entries, and a look-up unites them. Memory: for up to 63 workers 32 to
/// 64 bytes for each of `num_blocks`, taken at construction.
template <template <class> class Atomic>
class basic_worker_index {
 public:
  /// Throws `exception` on sizes that are not positive or too large.
  explicit basic_worker_index(const worker_index_config& config)
      : num_workers_(config.num_workers), num_words_(static_cast<std::size_t>(config.num_workers) / word_bits + 1) {
    if (config.num_workers <= 0 || config.num_workers > max_workers) {
      detail::fail({error_code::invalid_argument, "worker_index_config.num_workers", config.num_workers,
                    config.num_workers <= 0 ? 1 : max_workers});
    }
    if (config.num_blocks <= 0 || config.num_blocks > max_blocks) {
      detail::fail({error_code::invalid_argument, "worker_index_config.num_blocks", config.num_blocks,
                    config.num_blocks <= 0 ? 1 : max_blocks});
    }
    const auto num_buckets = std::bit_ceil(static_cast<std::size_t>(config.num_blocks) * 2 / bucket_size + 2);
    bucket_mask_ = num_buckets - 1;
    buckets_ = std::make_unique<bucket[]>(num_buckets);
    if (num_words_ > 1) {
      further_words_ = std::make_unique<Atomic<std::uint64_t>[]>(num_buckets * bucket_size * (num_words_ - 1));
    }
  }

  /// Workers of the configuration.
  [[nodiscard]] std::int32_t num_workers() const noexcept { return num_workers_; }

  /// Notes that a worker holds a block; false when it is refused.
  bool add(worker_id worker, std::uint64_t key) noexcept { return try_add(worker, key) != index_addition::refused; }
  index_addition try_add(worker_id worker, std::uint64_t key) noexcept {
    const auto bit = position(worker);
    auto is_known = false;
    const auto held = visit(key, [&](std::size_t entry) {
      const bool matches = has_key(entry, key);
      is_known |= matches;
      return matches && (word(entry, bit.word).load() & bit.mask) != 0;
    });
    if (held != no_entry) {
      return index_addition::held;
    }
    const bool added =
        (is_known &&
         visit(key, [&](std::size_t entry) { return has_key(entry, key) && join(entry, key, bit); }) != no_entry) ||
        visit(key, [&](std::size_t entry) { return claim(entry, key, bit); }) != no_entry;
    return added ? index_addition::added : index_addition::refused;
  }

  /// Notes that a worker has lost a block; nothing when it held none.
  void remove(worker_id worker, std::uint64_t key) noexcept {
    const auto bit = position(worker);
    // At most one entry says that the worker holds the key, and while it does, its key stays.
    visit(key, [&](std::size_t entry) {
      const bool held = has_key(entry, key) && (word(entry, bit.word).load() & bit.mask) != 0;
      if (held) {
        word(entry, bit.word).fetch_and(~bit.mask);
      }
      return held;
    });
  }

  /// Sets, for each worker, the number of leading keys that it holds. `held` has an element for each worker.
  void num_held(std::span<const std::uint64_t> keys, std::span<std::int64_t> held) const noexcept {
    assert(std::ssize(held) == num_workers_);
    auto left = all_workers();  // those that hold all keys so far
    std::ranges::fill(held, std::ssize(keys));
    for (const auto key : keys.first(std::min(keys.size(), lookahead))) {
      prefetch(key);
    }
    for (std::size_t i = 0; i < keys.size(); ++i) {
      if (i + lookahead < keys.size()) {
        prefetch(keys[i + lookahead]);
      }
      auto any = std::uint64_t{0};
      for (std::size_t w = 0; w < num_words_; ++w) {
        const auto holders = workers_of(keys[i], w);
        for (auto lost = left[w] & ~holders; lost != 0; lost &= lost - 1) {
          held[index_of(w, lost)] = static_cast<std::int64_t>(i);
        }
        left[w] &= holders;
        any |= left[w];
      }
      if (any == 0) {
        return;
      }
    }
  }

  /// Whether a worker holds a block.
  [[nodiscard]] bool holds(worker_id worker, std::uint64_t key) const noexcept {
    const auto bit = position(worker);
    return (workers_of(key, bit.word) & bit.mask) != 0;
  }

 private:
  static constexpr auto bucket_size = std::size_t{8};
  static constexpr auto word_bits = std::size_t{64};
  static constexpr auto max_words = std::size_t{16};
  static constexpr auto max_workers = std::int32_t{max_words * word_bits - 1};
  static constexpr auto max_blocks = std::int64_t{1} << 40;
  static constexpr auto claimed = std::uint64_t{1} << 63;  // in the first word
  static constexpr auto lookahead = std::size_t{8};
  static constexpr auto no_entry = ~std::size_t{0};

  using worker_set = std::array<std::uint64_t, max_words>;

  /// Two cache lines, neighbours that processors often fetch together.
  struct alignas(128) bucket {
    std::array<Atomic<std::uint64_t>, bucket_size> keys{};
    std::array<Atomic<std::uint64_t>, bucket_size> first_words{};  // of each entry's set of workers
  };

  /// Where a worker is in an entry's set.
  struct worker_bit {
    std::size_t word;
    std::uint64_t mask;
  };

  [[nodiscard]] worker_bit position(worker_id worker) const noexcept {
    const auto index = static_cast<std::size_t>(worker);
    assert(index < static_cast<std::size_t>(num_workers_));
    const auto place = index < word_bits - 1 ? index : index + 1;  // past the bit that claims
    return {place / word_bits, std::uint64_t{1} << place % word_bits};
  }
  [[nodiscard]] static std::size_t index_of(std::size_t word, std::uint64_t bits) noexcept {
    return word * word_bits + static_cast<std::size_t>(std::countr_zero(bits)) - (word == 0 ? 0 : 1);
  }

  /// Two different buckets, from the two halves of the key, which is a hash.
  [[nodiscard]] std::array<std::size_t, 2> homes(std::uint64_t key) const noexcept {
    const auto first = static_cast<std::size_t>(key) & bucket_mask_;
    const auto distance = static_cast<std::size_t>(key >> 32 | 1) & bucket_mask_;
    return {first, first ^ distance};
  }

  [[nodiscard]] Atomic<std::uint64_t>& key_of(std::size_t entry) const noexcept {
    return buckets_[entry / bucket_size].keys[entry % bucket_size];
  }
  [[nodiscard]] Atomic<std::uint64_t>& word(std::size_t entry, std::size_t index) const noexcept {
    return index == 0 ? buckets_[entry / bucket_size].first_words[entry % bucket_size]
                      : further_words_[entry * (num_words_ - 1) + index - 1];
  }

  [[nodiscard]] bool has_key(std::size_t entry, std::uint64_t key) const noexcept {
    return key_of(entry).load() == key;
  }

  [[nodiscard]] worker_set all_workers() const noexcept {
    auto all = worker_set{};
    for (auto worker = 0; worker < num_workers_; ++worker) {
      const auto bit = position(worker_id{worker});
      all[bit.word] |= bit.mask;
    }
    return all;
  }

  /// The first entry where the key may be and for which `accept(entry)` is true; `no_entry` if there is none.
  template <class Accept>
  std::size_t visit(std::uint64_t key, Accept accept) const noexcept {
    for (const auto home : homes(key)) {
      for (auto entry = home * bucket_size; entry < (home + 1) * bucket_size; ++entry) {
        if (accept(entry)) {
          return entry;
        }
      }
    }
    return no_entry;
  }

  [[gnu::always_inline]] void prefetch(std::uint64_t key) const noexcept {
    const auto [first, second] = homes(key);
    __builtin_prefetch(&buckets_[first].keys);
    __builtin_prefetch(&buckets_[first].first_words);
    __builtin_prefetch(&buckets_[second].keys);
  }

  /// Adds a worker to an entry that has this key; false when the entry is claimed or has another key by now. The bit is
  /// then taken back, which takes no true one away: only this thread sets the bits of this worker.
  bool join(std::size_t entry, std::uint64_t key, worker_bit bit) noexcept {
    auto& first = word(entry, 0);
    if (bit.word == 0) {
      auto seen = first.load();
      do {
        if ((seen & claimed) != 0) {
          return false;
        }
      } while (!first.compare_exchange_weak(seen, seen | bit.mask));
    } else {
      word(entry, bit.word).fetch_or(bit.mask);
    }
    // The order matters: a thread that claims the entry behind the first load sees the bit, and leaves the key.
    if ((first.load() & claimed) == 0 && has_key(entry, key)) {
      return true;
    }
    word(entry, bit.word).fetch_and(~bit.mask);
    return false;
  }

  /// Gives a free entry this key and this worker.
  bool claim(std::size_t entry, std::uint64_t key, worker_bit bit) noexcept {
    auto& first = word(entry, 0);
    auto none = std::uint64_t{0};
    if (first.load() != 0 || !first.compare_exchange_strong(none, claimed)) {
      return false;
    }
    for (std::size_t w = 1; w < num_words_; ++w) {
      if (word(entry, w).load() != 0) {
        first.fetch_and(~claimed);
        return false;
      }
    }
    key_of(entry).store(key, std::memory_order_release);
    if (bit.word != 0) {
      word(entry, bit.word).fetch_or(bit.mask);
    }
    first.store(bit.word == 0 ? bit.mask : 0, std::memory_order_release);  // no other thread changes a claimed word
    return true;
  }

  /// One word of the set of workers that hold a key.
  [[nodiscard]] std::uint64_t workers_of(std::uint64_t key, std::size_t index) const noexcept {
    auto found = std::uint64_t{0};
    visit(key, [&](std::size_t entry) {
      const auto& here = key_of(entry);
      if (here.load(std::memory_order_acquire) == key) {
        const auto seen = word(entry, index).load(std::memory_order_acquire);
        // A worker is added behind the key, so workers of another key come with that key.
        if (here.load(std::memory_order_acquire) == key) {
          found |= index == 0 ? seen & ~claimed : seen;
        }
      }
      return false;
    });
    return found;
  }

  std::int32_t num_workers_;
  std::size_t num_words_;
  std::size_t bucket_mask_ = 0;
  std::unique_ptr<bucket[]> buckets_;
  std::unique_ptr<Atomic<std::uint64_t>[]> further_words_;
};

/// The index over `std::atomic`.
class worker_index : public basic_worker_index<std::atomic> {
 public:
  using basic_worker_index::basic_worker_index;
};

}  // namespace pagedkv
