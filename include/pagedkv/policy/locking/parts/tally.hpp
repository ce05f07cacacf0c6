#pragma once

#include <pagedkv/policy/locking/concept.hpp>
#include <pagedkv/policy/locking/parts/thread_index.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace pagedkv {

/// `Count` running sums. `add` releases, `get` acquires: a reader that sees an addition also sees every earlier write
/// of its thread.
template <template <class> class Atomic, std::size_t Count>
class plain_tally {
 public:
  void add(std::size_t which, std::int64_t amount) noexcept {
    sums_[which].fetch_add(amount, std::memory_order_release);
  }
  [[nodiscard]] std::int64_t get(std::size_t which) const noexcept {
    return sums_[which].load(std::memory_order_acquire);
  }

 private:
  std::array<Atomic<std::int64_t>, Count> sums_{};
};

/// A tally for many threads: few threads share a cache line. `get` reads all lines; its result is exact unless other
/// threads add meanwhile.
template <template <class> class Atomic, std::size_t Count, class ThreadIndex = this_thread_index>
class striped_tally {
 public:
  void add(std::size_t which, std::int64_t amount) noexcept {
    stripes_[ThreadIndex{}.current() % stripes_.size()].add(which, amount);
  }
  [[nodiscard]] std::int64_t get(std::size_t which) const noexcept {
    auto sum = std::int64_t{0};
    for (const auto& stripe : stripes_) {
      sum += stripe.get(which);
    }
    return sum;
  }

 private:
  struct alignas(64) line : plain_tally<Atomic, Count> {};

  std::array<line, 16> stripes_{};
};

template <locking Locking, std::size_t Count>
using tally_for = std::conditional_t<Locking::family::concurrent,
                                     striped_tally<Locking::template atomic, Count, thread_index_for<Locking>>,
                                     plain_tally<Locking::template atomic, Count>>;

}  // namespace pagedkv
