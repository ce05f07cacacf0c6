#pragma once

#include <atomic>
#include <concepts>
#include <cstdint>
#include <type_traits>

namespace pagedkv {

/// How often threads got into each other's way.
struct contention_counts {
  std::int64_t waits = 0;    // a mutex was held by another thread
  std::int64_t retries = 0;  // a compare-and-swap found the word changed
  std::int64_t steals = 0;   // a free block was taken from another thread's cache or shard

  contention_counts& operator+=(const contention_counts& other) noexcept {
    waits += other.waits;
    retries += other.retries;
    steals += other.steals;
    return *this;
  }
  friend bool operator==(const contention_counts&, const contention_counts&) = default;
};

/// Where a component counts its contention: a member of every mutex, stack and list, so that counts belong to one
/// cache.
///
/// | requirement                               | meaning                   |
/// |-------------------------------------------|---------------------------|
/// | `m.waited()`, `m.retried()`, `m.stole()`  | one more; from any thread |
/// | `m.counts()`                              | the sums so far           |
template <class M>
concept contention_metrics = std::default_initializable<M> && requires(M metrics, const M& constant) {
  { metrics.waited() } noexcept;
  { metrics.retried() } noexcept;
  { metrics.stole() } noexcept;
  { constant.counts() } noexcept -> std::same_as<contention_counts>;
};

/// Counts nothing and costs nothing.
struct no_contention_metrics {
  static void waited() noexcept {}
  static void retried() noexcept {}
  static void stole() noexcept {}
  [[nodiscard]] static contention_counts counts() noexcept { return {}; }
};

static_assert(contention_metrics<no_contention_metrics> && std::is_empty_v<no_contention_metrics>);

/// Counts, in 24 bytes per component. Contention is rare next to its cost, so one counter per kind serves all threads.
class count_contention {
 public:
  void waited() noexcept { waits_.fetch_add(1, std::memory_order_relaxed); }
  void retried() noexcept { retries_.fetch_add(1, std::memory_order_relaxed); }
  void stole() noexcept { steals_.fetch_add(1, std::memory_order_relaxed); }

  [[nodiscard]] contention_counts counts() const noexcept {
    return {waits_.load(std::memory_order_relaxed), retries_.load(std::memory_order_relaxed),
            steals_.load(std::memory_order_relaxed)};
  }

 private:
  std::atomic<std::int64_t> waits_{0};
  std::atomic<std::int64_t> retries_{0};
  std::atomic<std::int64_t> steals_{0};
};

static_assert(contention_metrics<count_contention>);

namespace detail {

/// The counts of a component, zero for one that keeps none.
template <class Component>
[[nodiscard]] contention_counts contention_in(const Component& component) noexcept {
  if constexpr (requires { component.contention(); }) {
    return component.contention();
  } else {
    return {};
  }
}

}  // namespace detail

}  // namespace pagedkv
