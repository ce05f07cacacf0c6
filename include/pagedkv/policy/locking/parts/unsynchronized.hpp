#pragma once

#include <atomic>

namespace pagedkv {

/// A plain value with the interface of `std::atomic`, for components that only one thread at a time enters. Memory
/// orders are ignored, and every operation compiles to ordinary loads and stores.
template <class T>
class unsynchronized {
 public:
  constexpr unsynchronized() noexcept = default;
  constexpr unsynchronized(T value) noexcept : value_(value) {}
  unsynchronized(const unsynchronized&) = delete;
  unsynchronized& operator=(const unsynchronized&) = delete;

  [[nodiscard]] T load(std::memory_order = std::memory_order_seq_cst) const noexcept { return value_; }

  void store(T value, std::memory_order = std::memory_order_seq_cst) noexcept { value_ = value; }

  T exchange(T value, std::memory_order = std::memory_order_seq_cst) noexcept {
    const auto before = value_;
    value_ = value;
    return before;
  }

  bool compare_exchange_strong(T& expected, T desired, std::memory_order = std::memory_order_seq_cst) noexcept {
    const auto equal = value_ == expected;
    if (equal) {
      value_ = desired;
    } else {
      expected = value_;
    }
    return equal;
  }

  bool compare_exchange_strong(T& expected, T desired, std::memory_order success, std::memory_order) noexcept {
    return compare_exchange_strong(expected, desired, success);
  }

  bool compare_exchange_weak(T& expected, T desired, std::memory_order = std::memory_order_seq_cst) noexcept {
    return compare_exchange_strong(expected, desired);
  }

  bool compare_exchange_weak(T& expected, T desired, std::memory_order success, std::memory_order) noexcept {
    return compare_exchange_strong(expected, desired, success);
  }

  T fetch_add(T operand, std::memory_order = std::memory_order_seq_cst) noexcept {
    return exchange(static_cast<T>(value_ + operand));
  }

  T fetch_sub(T operand, std::memory_order = std::memory_order_seq_cst) noexcept {
    return exchange(static_cast<T>(value_ - operand));
  }

  T fetch_or(T operand, std::memory_order = std::memory_order_seq_cst) noexcept {
    return exchange(static_cast<T>(value_ | operand));
  }

  T fetch_and(T operand, std::memory_order = std::memory_order_seq_cst) noexcept {
    return exchange(static_cast<T>(value_ & operand));
  }

 private:
  T value_{};
};

/// A mutex that does nothing.
struct no_mutex {
  void lock() noexcept {}
  [[nodiscard]] bool try_lock() noexcept { return true; }
  void unlock() noexcept {}
  void lock_shared() noexcept {}
  void unlock_shared() noexcept {}
};

/// Components that one thread at a time changes; several threads may read them while no thread changes them.
struct unsynchronized_family {
  static constexpr bool concurrent = false;
};

}  // namespace pagedkv
