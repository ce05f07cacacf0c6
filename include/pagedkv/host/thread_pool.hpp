#pragma once

#include <pagedkv/host/workers.hpp>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

namespace pagedkv::host {

/// A worker pool for engines without one; its threads sleep between operations. The thread that calls `run` works, too.
/// Concurrent calls of `run` are serialised; a call from within `run` deadlocks.
class thread_pool {
 public:
  /// Starts `size - 1` threads. Throws `std::system_error` when the system cannot start them.
  explicit thread_pool(int size = static_cast<int>(std::thread::hardware_concurrency())) {
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
    auto lock = std::unique_lock(mutex_);
    context_ = std::addressof(call);
    invoke_ = [](void* context, int i) { (*static_cast<std::remove_reference_t<Call>*>(context))(i); };
    next_ = 0;
    end_ = unfinished_ = n;
    started_.notify_all();
    take_all(lock);
    finished_.wait(lock, [this] { return unfinished_ == 0; });
  }

 private:
  void work(const std::stop_token& stop) {
    auto lock = std::unique_lock(mutex_);
    while (started_.wait(lock, stop, [this] { return next_ < end_; })) {
      take_all(lock);
    }
  }

  void take_all(std::unique_lock<std::mutex>& lock) {
    while (next_ < end_) {
      const auto i = next_++;
      lock.unlock();
      invoke_(context_, i);
      lock.lock();
      if (--unfinished_ == 0) {
        finished_.notify_one();
      }
    }
  }

  std::mutex callers_;
  std::mutex mutex_;
  std::condition_variable_any started_;
  std::condition_variable finished_;
  void* context_ = nullptr;
  void (*invoke_)(void*, int) = nullptr;
  int next_ = 0;
  int end_ = 0;
  int unfinished_ = 0;
  std::vector<std::jthread> threads_;  // last: destroyed first, so that they stop before the other members end
};

static_assert(worker_pool<thread_pool>);

}  // namespace pagedkv::host
