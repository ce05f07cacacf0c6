#pragma once

#include <liburing.h>
#include <pagedkv/core/result.hpp>
#include <pagedkv/tier/basic_file_tier.hpp>
#include <pagedkv/tier/file_descriptor.hpp>
#include <pagedkv/tier/file_engine.hpp>
#include <pagedkv/tier/record.hpp>

#include <cassert>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <optional>
#include <string_view>
#include <utility>

namespace pagedkv {

/// Executes requests by io_uring, through liburing. Needs Linux 5.11.
class uring_files {
 public:
  /// Errors: `backend_failure` where the kernel has no io_uring or a sandbox refuses it; `out_of_memory`.
  [[nodiscard]] static result<std::unique_ptr<uring_files>> create(std::int32_t depth) noexcept {
    auto engine = std::unique_ptr<uring_files>(new (std::nothrow) uring_files);
    if (engine == nullptr) {
      return error{error_code::out_of_memory, "queue of io_uring", depth};
    }
    auto parameters = io_uring_params{};
    const auto num_entries = 2 * static_cast<unsigned>(depth);  // a request and its cancellation
    const auto made = io_uring_queue_init_params(num_entries, &engine->ring_, &parameters);
    if (made < 0) {
      return detail::system_error("io_uring, which this kernel or sandbox refuses (thread_files does without)", -made);
    }
    engine->is_open_ = true;
    if ((parameters.features & IORING_FEAT_EXT_ARG) == 0) {
      return detail::system_error("io_uring, which is older here than Linux 5.11 (thread_files does without)", ENOSYS);
    }
    return engine;
  }

  uring_files(const uring_files&) = delete;
  uring_files& operator=(const uring_files&) = delete;
  ~uring_files() {
    if (is_open_) {
      io_uring_queue_exit(&ring_);
    }
  }

  [[nodiscard]] static std::string_view name() noexcept { return "io_uring"; }

  void start(const file_request& request) noexcept {
    auto& entry = free_entry();
    const auto size = static_cast<unsigned>(request.bytes.size());
    const auto offset = static_cast<std::uint64_t>(request.offset);
    if (request.is_write) {
      io_uring_prep_write(&entry, request.descriptor, request.bytes.data(), size, offset);
    } else {
      io_uring_prep_read(&entry, request.descriptor, request.bytes.data(), size, offset);
    }
    io_uring_sqe_set_data64(&entry, request.slot);
    ++num_started_;
    io_uring_submit(&ring_);  // after a signal or a shortage, `next` submits it
  }

  [[nodiscard]] std::optional<file_completion> next(file_deadline deadline) noexcept {
    while (num_started_ > 0) {
      if (io_uring_sq_ready(&ring_) > 0) {
        io_uring_submit(&ring_);
      }
      io_uring_cqe* entry = nullptr;
      if (io_uring_peek_cqe(&ring_, &entry) != 0 && !wait(deadline)) {
        return std::nullopt;
      }
      if (entry == nullptr) {
        continue;
      }
      const auto completion = file_completion{io_uring_cqe_get_data64(entry), entry->res};
      io_uring_cqe_seen(&ring_, entry);
      if (completion.slot != of_cancellations) {
        --num_started_;
        return completion;
      }
    }
    return std::nullopt;
  }

  void cancel(std::size_t slot) noexcept {
    auto& entry = free_entry();
    io_uring_prep_cancel64(&entry, slot, 0);
    io_uring_sqe_set_data64(&entry, of_cancellations);
  }

 private:
  static constexpr auto of_cancellations = ~std::uint64_t{0};

  uring_files() noexcept = default;

  /// The queue has room for all of them, even while the kernel takes none.
  [[nodiscard]] io_uring_sqe& free_entry() noexcept {
    auto* const entry = io_uring_get_sqe(&ring_);
    assert(entry != nullptr && "more requests than the engine is deep");
    return *entry;
  }

  /// Whether there may be a completion, before the deadline.
  [[nodiscard]] bool wait(file_deadline deadline) noexcept {
    const auto left = std::chrono::nanoseconds{deadline - std::chrono::steady_clock::now()}.count();
    if (left <= 0) {
      return false;
    }
    constexpr auto second = std::int64_t{1'000'000'000};
    auto time = __kernel_timespec{left / second, left % second};
    io_uring_cqe* entry = nullptr;
    return io_uring_submit_and_wait_timeout(&ring_, &entry, 1, &time, nullptr) != -ETIME;
  }

  io_uring ring_{};
  bool is_open_ = false;
  std::size_t num_started_ = 0;  // and not yet completed
};

static_assert(file_engine<uring_files>);

/// io_uring where the kernel grants it, threads elsewhere.
class automatic_files {
 public:
  /// Errors: those of `thread_files::create`; `out_of_memory`.
  [[nodiscard]] static result<std::unique_ptr<automatic_files>> create(std::int32_t depth) noexcept {
    auto engine = std::unique_ptr<automatic_files>(new (std::nothrow) automatic_files);
    if (engine == nullptr) {
      return error{error_code::out_of_memory, "queue of files", depth};
    }
    if (auto uring = uring_files::create(depth); uring) {
      engine->uring_ = std::move(*uring);
      return engine;
    }
    auto threads = thread_files::create(depth);
    if (!threads) {
      return threads.error();
    }
    engine->threads_ = std::move(*threads);
    return engine;
  }

  [[nodiscard]] std::string_view name() const noexcept { return uring_ ? uring_->name() : threads_->name(); }
  void start(const file_request& request) noexcept { uring_ ? uring_->start(request) : threads_->start(request); }
  [[nodiscard]] std::optional<file_completion> next(file_deadline deadline) noexcept {
    return uring_ ? uring_->next(deadline) : threads_->next(deadline);
  }
  void cancel(std::size_t slot) noexcept { uring_ ? uring_->cancel(slot) : threads_->cancel(slot); }

 private:
  automatic_files() noexcept = default;

  std::unique_ptr<uring_files> uring_;
  std::unique_ptr<thread_files> threads_;
};

/// Files as a tier, over io_uring where the kernel grants it, and otherwise over threads.
using file_tier = basic_file_tier<automatic_files>;

static_assert(file_engine<automatic_files> && persistent_tier<file_tier>);

}  // namespace pagedkv
