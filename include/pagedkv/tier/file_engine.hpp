#pragma once

#include <unistd.h>
#include <pagedkv/core/result.hpp>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <concepts>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <span>
#include <stop_token>
#include <string_view>
#include <system_error>
#include <thread>
#include <vector>

namespace pagedkv {

/// A part of a file on its way to memory or back, named by a number below the engine's depth.
struct file_request {
  std::size_t slot = 0;
  int descriptor = -1;
  std::int64_t offset = 0;  // bytes from the file's start
  std::span<std::byte> bytes;
  bool is_write = false;
};

/// A request that has ended.
struct file_completion {
  std::size_t slot = 0;      // of the request
  std::int64_t outcome = 0;  // bytes, or a negative number of `errno`
};

/// Until when `next` waits.
using file_deadline = std::chrono::steady_clock::time_point;

/// Executes requests on files, many at once. One thread at a time uses an engine.
///
/// | requirement          | meaning                                                                             |
/// |----------------------|-------------------------------------------------------------------------------------|
/// | `T::create(depth)`   | an engine for at most so many requests at once, or the reason why there is none     |
/// | `t.name()`           | for tables                                                                          |
/// | `t.start(request)`   | begins it; its bytes are in use until it has completed                              |
/// | `t.next(deadline)`   | waits for a completion; none after the deadline, or when nothing has been started   |
/// | `t.cancel(slot)`     | may let the request of this slot complete earlier, with an error                    |
/// | destructor           | called only when every request has completed                                        |
template <class T>
concept file_engine = requires(T t, std::int32_t depth, const file_request& request, file_deadline deadline,
                               std::size_t slot) {
  { T::create(depth) } noexcept -> std::same_as<result<std::unique_ptr<T>>>;
  { t.name() } noexcept -> std::convertible_to<std::string_view>;
  { t.start(request) } noexcept -> std::same_as<void>;
  { t.next(deadline) } noexcept -> std::same_as<std::optional<file_completion>>;
  { t.cancel(slot) } noexcept -> std::same_as<void>;
};

/// Executes requests by `pread` and `pwrite`, with a thread for each that is in flight: for kernels and sandboxes
/// without io_uring.
class thread_files {
 public:
  /// Starts `depth` threads. Errors: `out_of_memory` also when the system starts no more threads.
  [[nodiscard]] static result<std::unique_ptr<thread_files>> create(std::int32_t depth) noexcept {
#if defined(__cpp_exceptions)
    try {
      return make(depth);
    } catch (const std::system_error&) {
    } catch (const std::bad_alloc&) {
    }
    return error{error_code::out_of_memory, "threads of a tier", depth};
#else
    return make(depth);
#endif
  }

  thread_files(const thread_files&) = delete;
  thread_files& operator=(const thread_files&) = delete;

  [[nodiscard]] static std::string_view name() noexcept { return "threads"; }

  void start(const file_request& request) noexcept {
    const auto lock = std::scoped_lock(mutex_);
    waiting_.push_back(request);
    ++num_started_;
    started_.notify_one();
  }

  [[nodiscard]] std::optional<file_completion> next(file_deadline deadline) noexcept {
    auto lock = std::unique_lock(mutex_);
    if (num_started_ == 0 || !completed_.wait_until(lock, deadline, [this] { return !completions_.empty(); })) {
      return std::nullopt;
    }
    const auto completion = completions_.back();
    completions_.pop_back();
    --num_started_;
    return completion;
  }

  /// A request that a thread executes completes by itself.
  void cancel(std::size_t slot) noexcept {
    const auto lock = std::scoped_lock(mutex_);
    const auto found = std::ranges::find(waiting_, slot, &file_request::slot);
    if (found != waiting_.end()) {
      waiting_.erase(found);
      completions_.push_back({slot, -ECANCELED});
    }
  }

 private:
  thread_files() = default;

  [[nodiscard]] static result<std::unique_ptr<thread_files>> make(std::int32_t depth) {
    auto engine = std::unique_ptr<thread_files>(new thread_files);
    const auto size = static_cast<std::size_t>(depth);
    engine->waiting_.reserve(size);
    engine->completions_.reserve(size);
    engine->threads_.reserve(size);
    for (std::size_t i = 0; i < size; ++i) {
      engine->threads_.emplace_back([self = engine.get()](const std::stop_token& stop) { self->work(stop); });
    }
    return engine;
  }

  void work(const std::stop_token& stop) noexcept {
    auto lock = std::unique_lock(mutex_);
    while (started_.wait(lock, stop, [this] { return !waiting_.empty(); })) {
      const auto request = waiting_.back();
      waiting_.pop_back();
      lock.unlock();
      const auto outcome = execute(request);
      lock.lock();
      completions_.push_back({request.slot, outcome});
      completed_.notify_one();
    }
  }

  [[nodiscard]] static std::int64_t execute(const file_request& request) noexcept {
    const auto [slot, descriptor, offset, bytes, is_write] = request;
    const auto size = is_write ? ::pwrite(descriptor, bytes.data(), bytes.size(), offset)
                               : ::pread(descriptor, bytes.data(), bytes.size(), offset);
    return size < 0 ? -errno : size;
  }

  std::mutex mutex_;
  std::condition_variable_any started_;
  std::condition_variable completed_;
  std::vector<file_request> waiting_;
  std::vector<file_completion> completions_;
  std::size_t num_started_ = 0;        // and not yet returned by `next`
  std::vector<std::jthread> threads_;  // last, so that they end first
};

static_assert(file_engine<thread_files>);

}  // namespace pagedkv
