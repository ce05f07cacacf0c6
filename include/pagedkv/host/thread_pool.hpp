#pragma once

#include <pagedkv/detail/spin_pause.hpp>
#include <pagedkv/host/workers.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <stop_token>
#include <thread>
#include <type_traits>
#include <vector>

#if defined(__linux__)
  #include <sched.h>
#endif

namespace pagedkv::host {

/// The number of processors that the calling thread may run on; at least 1.
[[nodiscard]] inline int usable_processors() noexcept {
#if defined(__linux__)
  auto set = cpu_set_t{};
  if (sched_getaffinity(0, sizeof set, &set) == 0) {
    return CPU_COUNT(&set);
  }
#endif
  return static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
}

/// A worker pool for engines without one. The thread that calls `run` works, too. Between operations, the other threads
/// wait for 50 us, in which they give way to any thread that is ready to run, and then sleep; they sleep at once where
/// the pool has more threads than there are processors. Concurrent calls of `run` are serialised; a call from within
/// `run` deadlocks.
class thread_pool {
 public:
  /// Starts `size - 1` threads. Throws `std::system_error` when the system cannot start them.
  explicit thread_pool(int size = usable_processors()) : spins_(size <= usable_processors()) {
    for (auto i = 1; i < size; ++i) {
      threads_.emplace_back([this](const std::stop_token& stop) { work(stop); });
    }
  }

  thread_pool(const thread_pool&) = delete;
  thread_pool& operator=(const thread_pool&) = delete;

  [[nodiscard]] int size() const noexcept { return static_cast<int>(threads_.size()) + 1; }

  template <class Call>
  void run(int n, Call&& call) {
    const auto one_at_a_time = std::scoped_lock(callers_);
    if (n <= 1 || threads_.empty()) {
      for (auto i = 0; i < n; ++i) {
        call(i);
      }
      return;
    }
    context_ = const_cast<void*>(static_cast<const void*>(std::addressof(call)));
    invoke_ = [](void* context, int i) { (*static_cast<std::remove_reference_t<Call>*>(context))(i); };
    num_calls_ = n;
    unfinished_.store(n, std::memory_order_relaxed);
    const auto number = (open_.load(std::memory_order_relaxed) >> 32) + 1;
    open_.store(number << 32 | static_cast<std::uint32_t>(n), std::memory_order_seq_cst);
    wake(n - 1);
    take_all();
    wait_for_all();
  }

 private:
  static constexpr auto spin_time = std::chrono::microseconds{50};  // about what a thread takes to wake up

  void work(const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      if (!spin_until([&] { return has_open() || stop.stop_requested(); })) {
        sleep(stop);
      }
      take_all();
    }
  }

  /// Whether a call of the current run has not been taken.
  [[nodiscard]] bool has_open() const noexcept {
    return static_cast<std::uint32_t>(open_.load(std::memory_order_seq_cst)) != 0;
  }

  /// Takes calls as long as there are any. A thread that takes one keeps `run` from returning, so it sees that run's
  /// call, and no thread takes a call of a run that has ended, because the run's number has changed.
  void take_all() {
    for (auto open = open_.load(std::memory_order_acquire); static_cast<std::uint32_t>(open) != 0;) {
      if (!open_.compare_exchange_weak(open, open - 1, std::memory_order_acquire)) {
        continue;
      }
      invoke_(context_, num_calls_ - static_cast<int>(static_cast<std::uint32_t>(open)));
      if (unfinished_.fetch_sub(1, std::memory_order_seq_cst) == 1 && caller_sleeps_.load(std::memory_order_seq_cst)) {
        const auto lock = std::scoped_lock(mutex_);
        finished_.notify_one();
      }
      open = open_.load(std::memory_order_acquire);
    }
  }

  /// Wakes up to `count` threads. One that is about to sleep has been counted, or sees the open calls.
  void wake(int count) {
    const auto sleeping = std::min(count, sleeping_.load(std::memory_order_seq_cst));
    if (sleeping > 0) {
      { const auto lock = std::scoped_lock(mutex_); }
      for (auto i = 0; i < sleeping; ++i) {
        started_.notify_one();
      }
    }
  }

  void sleep(const std::stop_token& stop) {
    auto lock = std::unique_lock(mutex_);
    sleeping_.fetch_add(1, std::memory_order_seq_cst);
    started_.wait(lock, stop, [this] { return has_open(); });
    sleeping_.fetch_sub(1, std::memory_order_relaxed);
  }

  void wait_for_all() {
    const auto all_finished = [this] { return unfinished_.load(std::memory_order_seq_cst) == 0; };
    if (!spin_until(all_finished)) {
      auto lock = std::unique_lock(mutex_);
      caller_sleeps_.store(true, std::memory_order_seq_cst);
      finished_.wait(lock, all_finished);
      caller_sleeps_.store(false, std::memory_order_relaxed);
    }
  }

  /// Waits for a condition for a short time; whether it is met.
  template <class Condition>
  [[nodiscard]] bool spin_until(Condition condition) const {
    constexpr auto checks_each = 64;  // between looks at the clock
    if (!spins_) {
      return condition();
    }
    const auto end = std::chrono::steady_clock::now() + spin_time;
    do {
      for (auto i = 0; i < checks_each; ++i) {
        if (condition()) {
          return true;
        }
        spin_pause();
      }
      std::this_thread::yield();
    } while (std::chrono::steady_clock::now() < end);
    return condition();
  }

  bool spins_;
  std::mutex callers_;
  void* context_ = nullptr;
  void (*invoke_)(void*, int) = nullptr;
  int num_calls_ = 0;
  std::atomic<std::uint64_t> open_ = 0;  // the run's number, and how many of its calls are not taken
  std::atomic<int> unfinished_ = 0;
  std::mutex mutex_;  // of sleepers
  std::atomic<int> sleeping_ = 0;
  std::atomic<bool> caller_sleeps_ = false;
  std::condition_variable_any started_;
  std::condition_variable finished_;
  std::vector<std::jthread> threads_;  // last: destroyed first, so that they stop before the other members end
};

static_assert(worker_pool<thread_pool>);

}  // namespace pagedkv::host
