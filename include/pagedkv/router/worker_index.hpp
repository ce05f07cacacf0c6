#pragma once

#include <pagedkv/core/error.hpp>

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

/// How much a `worker_index` holds.
struct worker_index_config {
  std::int64_t num_blocks = 0;    // different ones, over all workers
  std::int32_t num_workers = 63;  // at most 1,023
};

/// Which workers hold which blocks: a set of workers for each key. A hint: a worker may have evicted a block whose removal
/// is still on its way.
///
/// Lock-free: no member waits for another thread, and queries do not write. Any thread may ask; one thread at a time adds
/// and removes for a worker. While others add and remove, an answer may miss a block, or name a worker that does not hold it.
///
/// A fixed table of buckets of eight keys, one cache line each; a key lies in one of two buckets. An entry without workers
/// is free. One bit of an entry's set of workers claims it while its key changes. A thread passes by an entry that is
/// claimed, so a key may be in several entries, and a look-up unites them. Memory: for up to 63 workers 32 to 64 bytes for
/// each of `num_blocks`, taken at construction.
template <template <class> class Atomic>
class basic_worker_index {
 public:
  /// Throws `exception` on sizes that are not positive or too large.
  explicit basic_worker_index(const worker_index_config& config)
      : num_workers_(config.num_workers), num_words_(static_cast<std::size_t>(config.num_workers) / word_bits + 1) {
    if (config.num_workers <= 0 || config.num_workers > max_workers) {
      detail::fail({error_code::invalid_argument, "worker_index_config.num_workers", config.num_workers, max_workers});
    }
    if (config.num_blocks <= 0 || config.num_blocks > max_blocks) {
      detail::fail({error_code::invalid_argument, "worker_index_config.num_blocks", config.num_blocks, max_blocks});
    }
    const auto num_buckets = std::bit_ceil(static_cast<std::size_t>(config.num_blocks) * 2 / bucket_size + 2);
    bucket_mask_ = num_buckets - 1;
    buckets_ = std::make_unique<bucket[]>(num_buckets);
    workers_ = std::make_unique<Atomic<std::uint64_t>[]>(num_buckets * bucket_size * num_words_);
  }

  [[nodiscard]] std::int32_t num_workers() const noexcept { return num_workers_; }

  /// Notes that a worker holds a block. False when both buckets are full: the block is not found later.
  bool add(worker_id worker, std::uint64_t key) noexcept {
    const auto bit = position(worker);
    const auto added =
        visit(key, [&](std::size_t entry) { return key_of(entry).load() == proper(key) && join(entry, key, bit); });
    return added || visit(key, [&](std::size_t entry) { return claim(entry, key, bit); });
  }

  /// Notes that a worker has lost a block; nothing when it held none.
  void remove(worker_id worker, std::uint64_t key) noexcept {
    const auto bit = position(worker);
    visit(key, [&](std::size_t entry) {
      // While the worker's bit is set, the key cannot change.
      if (key_of(entry).load() == proper(key) && (word(entry, bit.word).load() & bit.mask) != 0) {
        word(entry, bit.word).fetch_and(~bit.mask);
      }
      return false;
    });
  }

  /// Sets, for each worker, the number of leading keys that it holds. `held` has an element for each worker.
  void num_held(std::span<const std::uint64_t> keys, std::span<std::int64_t> held) const noexcept {
    assert(std::ssize(held) == num_workers_);
    auto left = worker_set{};  // workers that hold all keys so far
    for (std::int32_t worker = 0; worker < num_workers_; ++worker) {
      const auto bit = position(worker_id{worker});
      left[bit.word] |= bit.mask;
    }
    std::ranges::fill(held, std::ssize(keys));
    for (std::size_t i = 0; i < keys.size(); ++i) {
      if (i + lookahead < keys.size()) {
        prefetch(keys[i + lookahead]);
      }
      const auto holders = workers_of(keys[i]);
      auto any = std::uint64_t{0};
      for (std::size_t w = 0; w < num_words_; ++w) {
        for (auto lost = left[w] & ~holders[w]; lost != 0; lost &= lost - 1) {
          held[index_of(w, lost)] = static_cast<std::int64_t>(i);
        }
        left[w] &= holders[w];
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
    return (workers_of(key)[bit.word] & bit.mask) != 0;
  }

 private:
  static constexpr auto bucket_size = std::size_t{8};
  static constexpr auto word_bits = std::size_t{64};
  static constexpr auto max_words = std::size_t{16};
  static constexpr auto max_workers = std::int32_t{max_words * word_bits - 1};
  static constexpr auto max_blocks = std::int64_t{1} << 40;
  static constexpr auto claimed = std::uint64_t{1} << 63;  // in the first word
  static constexpr auto lookahead = std::size_t{8};

  using worker_set = std::array<std::uint64_t, max_words>;

  struct alignas(64) bucket {
    std::array<Atomic<std::uint64_t>, bucket_size> keys{};
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

  /// 0 means that an entry never had a key.
  [[nodiscard]] static std::uint64_t proper(std::uint64_t key) noexcept { return key == 0 ? 1 : key; }

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
    return workers_[entry * num_words_ + index];
  }

  /// Calls `found(entry)` on the entries where the key may be, until one returns true; whether one did.
  template <class Found>
  bool visit(std::uint64_t key, Found found) const noexcept {
    for (const auto home : homes(key)) {
      for (auto entry = home * bucket_size; entry < (home + 1) * bucket_size; ++entry) {
        if (found(entry)) {
          return true;
        }
      }
    }
    return false;
  }

  void prefetch(std::uint64_t key) const noexcept {
    for (const auto home : homes(key)) {
      __builtin_prefetch(&buckets_[home]);
    }
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
    // In this order: a thread that claims the entry behind the first load sees the bit, and leaves the key.
    if ((first.load() & claimed) == 0 && key_of(entry).load() == proper(key)) {
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
    key_of(entry).store(proper(key));
    word(entry, bit.word).fetch_or(bit.mask);
    first.fetch_and(~claimed);
    return true;
  }

  [[nodiscard]] worker_set workers_of(std::uint64_t key) const noexcept {
    auto found = worker_set{};
    const auto sought = proper(key);
    visit(key, [&](std::size_t entry) {
      if (key_of(entry).load(std::memory_order_acquire) == sought) {
        auto seen = worker_set{};
        for (std::size_t w = 0; w < num_words_; ++w) {
          seen[w] = word(entry, w).load(std::memory_order_acquire);
        }
        // A worker is added behind the key, so workers of another key come with that key.
        if (key_of(entry).load(std::memory_order_acquire) == sought) {
          seen[0] &= ~claimed;
          std::ranges::transform(found, seen, found.begin(), std::bit_or{});
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
  std::unique_ptr<Atomic<std::uint64_t>[]> workers_;
};

class worker_index : public basic_worker_index<std::atomic> {
 public:
  using basic_worker_index::basic_worker_index;
};

}  // namespace pagedkv
