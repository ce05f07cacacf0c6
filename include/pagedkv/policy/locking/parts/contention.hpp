#pragma once

#include <atomic>
#include <concepts>
#include <cstdint>

namespace pagedkv {

/// How often threads delayed each other.
struct contention_counts {
  std::int64_t waits = 0;    // a mutex was held by another thread
  std::int64_t retries = 0;  // a compare-and-swap found the word changed
  std::int64_t steals = 0;   // a free block was taken from another thread's cache or shard

  friend bool operator==(const contention_counts&, const contention_counts&) = default;
};

/// Where components report contention. Members are static: counts belong to the type.
///
/// | requirement                               | meaning                       |
/// |-------------------------------------------|-------------------------------|
/// | `M::waited()`, `M::retried()`, `M::stole()` | one more; from any thread     |
/// | `M::counts()`                             | the sums so far               |
template <class M>
concept contention_metrics = requires {
  { M::waited() } noexcept;
  { M::retried() } noexcept;
  { M::stole() } noexcept;
  { M::counts() } noexcept -> std::same_as<contention_counts>;
};

/// Counts nothing and costs nothing.
struct no_contention_metrics {
  static void waited() noexcept {}
  static void retried() noexcept {}
  static void stole() noexcept {}
  [[nodiscard]] static contention_counts counts() noexcept { return {}; }
};

static_assert(contention_metrics<no_contention_metrics>);

/// Counts for all caches whose locking policy names the same `Tag`. One counter per kind serves all threads, because
/// contention is rare compared to the operations that it delays.
template <class Tag = void>
class count_contention {
 public:
  static void waited() noexcept { waits_.fetch_add(1, std::memory_order_relaxed); }
  static void retried() noexcept { retries_.fetch_add(1, std::memory_order_relaxed); }
  static void stole() noexcept { steals_.fetch_add(1, std::memory_order_relaxed); }

  [[nodiscard]] static contention_counts counts() noexcept {
    return {waits_.load(std::memory_order_relaxed), retries_.load(std::memory_order_relaxed),
            steals_.load(std::memory_order_relaxed)};
  }
  static void reset() noexcept {
    waits_ = 0;
    retries_ = 0;
    steals_ = 0;
  }

 private:
  static inline std::atomic<std::int64_t> waits_{0};
  static inline std::atomic<std::int64_t> retries_{0};
  static inline std::atomic<std::int64_t> steals_{0};
};

static_assert(contention_metrics<count_contention<>>);

}  // namespace pagedkv
