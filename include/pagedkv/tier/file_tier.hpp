#pragma once

#include <pagedkv/core/result.hpp>
#include <pagedkv/tier/basic_file_tier.hpp>
#include <pagedkv/tier/file_engine.hpp>
#include <pagedkv/tier/file_threads.hpp>
#include <pagedkv/tier/file_uring.hpp>
#include <pagedkv/tier/persistent_tier.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <optional>
#include <string_view>
#include <utility>

namespace pagedkv {

/// io_uring where the kernel grants it, threads elsewhere.
class automatic_files {
 public:
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
