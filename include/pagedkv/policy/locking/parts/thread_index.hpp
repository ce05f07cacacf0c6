#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstdint>

namespace pagedkv {

/// Allocates small numbers, the lowest free one first. Lock-free.
template <template <class> class Atomic = std::atomic>
class index_registry {
 public:
  static constexpr std::uint32_t capacity = 1024;
  static constexpr std::uint32_t none = 0xffff'ffff;

  /// A number below `capacity` that no other thread holds, or `none`. All writes of its last holder happen before.
  [[nodiscard]] std::uint32_t claim() noexcept {
    for (std::uint32_t i = 0; i < claimed_.size(); ++i) {
      auto taken = claimed_[i].load(std::memory_order_relaxed);
      while (taken != ~std::uint64_t{0}) {
        const auto position = static_cast<std::uint32_t>(std::countr_one(taken));
        const auto bit = std::uint64_t{1} << position;
        taken = claimed_[i].fetch_or(bit, std::memory_order_acquire);
        if ((taken & bit) == 0) {
          raise_limit(64 * i + position + 1);
          return 64 * i + position;
        }
      }
    }
    return none;
  }

  void release(std::uint32_t index) noexcept {
    claimed_[index / 64].fetch_and(~(std::uint64_t{1} << (index % 64)), std::memory_order_release);
  }

  /// Greater than every number that was ever claimed.
  [[nodiscard]] std::uint32_t limit() const noexcept { return limit_.load(std::memory_order_acquire); }

 private:
  void raise_limit(std::uint32_t limit) noexcept {
    auto seen = limit_.load(std::memory_order_relaxed);
    while (seen < limit &&
           !limit_.compare_exchange_weak(seen, limit, std::memory_order_release, std::memory_order_relaxed)) {
    }
  }

  std::array<Atomic<std::uint64_t>, capacity / 64> claimed_{};
  Atomic<std::uint32_t> limit_{0};
};

/// A small number for every live thread, released when the thread ends. Components index an array with it, so that a
/// thread finds its own element without a search.
///
/// Shared objects with hidden symbols each number threads separately. Therefore the numbering is that of the object
/// that constructed this one: a component that stores it gets the same number for a thread in whichever object the call
/// is compiled.
class this_thread_index {
 public:
  this_thread_index() noexcept : numbering_(&own_) {}

  /// `index_registry<>::none` if no number was free at the thread's first call, and while the thread ends.
  [[nodiscard]] std::uint32_t current() const noexcept {
    if (numbering_ != &own_) [[unlikely]] {
      return numbering_->current();
    }
    const auto index = index_;
    return index != unknown ? index : claim();
  }

  [[nodiscard]] std::uint32_t limit() const noexcept { return numbering_->registry.limit(); }

 private:
  static constexpr auto unknown = index_registry<>::none - 1;

  struct numbering {
    index_registry<> registry;
    std::uint32_t (*current)() noexcept;
  };

  struct [[gnu::visibility("hidden")]] returned_at_exit {
    ~returned_at_exit() {
      if (index_ < index_registry<>::capacity) {
        own_.registry.release(index_);
      }
      index_ = index_registry<>::none;
    }
  };

  // All of these are hidden: they belong together, and a linker that merged only some between objects would mix them
  // up.
  [[gnu::noinline, gnu::visibility("hidden")]] static std::uint32_t claim() noexcept {
    static thread_local const auto at_exit = returned_at_exit{};
    index_ = own_.registry.claim();
    return index_;
  }
  [[gnu::visibility("hidden")]] static std::uint32_t current_of_own() noexcept {
    return index_ != unknown ? index_ : claim();
  }
  [[gnu::visibility("hidden")]] static constinit inline numbering own_{.registry = {}, .current = current_of_own};
  // Separate from the object with a destructor, so that reading it is one load.
  [[gnu::visibility("hidden")]] static constinit inline thread_local std::uint32_t index_ = unknown;

  numbering* numbering_;
};

/// The interface of `this_thread_index` for components that one thread at a time calls.
struct only_thread_index {
  [[nodiscard]] static constexpr std::uint32_t current() noexcept { return 0; }
  [[nodiscard]] static constexpr std::uint32_t limit() noexcept { return 1; }
};

/// How components identify the threads of a locking policy, as member `type`. Specialise it for threads that are not
/// the operating system's.
template <class Locking>
struct thread_index_of {
  using type = this_thread_index;
};

template <class Locking>
using thread_index_for = typename thread_index_of<Locking>::type;

}  // namespace pagedkv
