#pragma once

#include <pagedkv/policy/locking/parts/fair_shared_mutex.hpp>
#include <pagedkv/policy/locking/parts/thread_index.hpp>

#include <array>
#include <atomic>

namespace pagedkv {

/// Any number of threads may pass at once, readers and writers alike, until one thread closes the gate to be alone.
/// Passing writes a cache line that few other threads write; closing waits for the threads inside.
template <contention_metrics Metrics = no_contention_metrics>
class gate {
 public:
  void lock() noexcept { own().lock_shared(); }
  void unlock() noexcept { own().unlock_shared(); }
  void lock_shared() noexcept { lock(); }
  void unlock_shared() noexcept { unlock(); }

  void close() noexcept {
    for (auto& each : parts_) {
      each.mutex.lock();
    }
  }
  void open() noexcept {
    for (auto& each : parts_) {
      each.mutex.unlock();
    }
  }

  [[nodiscard]] contention_counts contention() const noexcept {
    auto sum = contention_counts{};
    for (const auto& each : parts_) {
      sum += each.mutex.contention();
    }
    return sum;
  }

 private:
  using mutex_type = basic_fair_shared_mutex<std::atomic, Metrics>;

  struct alignas(64) part {
    mutex_type mutex;
  };

  [[nodiscard]] mutex_type& own() noexcept { return parts_[threads_.current() % parts_.size()].mutex; }

  this_thread_index threads_;  // stored, so that every shared object leaves by the same part by which it entered
  std::array<part, 16> parts_;
};

static_assert(shared_mutex<gate<>>);

}  // namespace pagedkv
