#pragma once

#include <pagedkv/requests/request.hpp>

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>

namespace pagedkv::replay {

struct live_request {
  request_id id{};
  std::uint32_t num_answer_tokens = 0;  // that it did not append
};

/// The live requests, oldest first, up to a number of permits. A worker takes a permit before it submits a request, and
/// then either enters the request or returns the permit.
class live_requests {
 public:
  explicit live_requests(std::size_t capacity) : capacity_(capacity) {}

  /// Waits for a permit. Returns a live request if it takes that request's permit: the caller ends the request first.
  [[nodiscard]] std::optional<live_request> take_permit() {
    auto lock = std::unique_lock{mutex_};
    changed_.wait(lock, [&] { return num_taken_ < capacity_ || !alive_.empty(); });
    if (num_taken_ < capacity_) {
      ++num_taken_;
      return std::nullopt;
    }
    return pop_oldest();
  }

  /// Removes the oldest live request, frees its permit, and returns the request, for the caller to end.
  [[nodiscard]] std::optional<live_request> remove_oldest() {
    const auto lock = std::lock_guard{mutex_};
    if (alive_.empty()) {
      return std::nullopt;
    }
    --num_taken_;
    return pop_oldest();
  }

  void enter(const live_request& request) {
    {
      const auto lock = std::lock_guard{mutex_};
      alive_.push_back(request);
    }
    changed_.notify_one();
  }

  void leave() noexcept {
    {
      const auto lock = std::lock_guard{mutex_};
      --num_taken_;
    }
    changed_.notify_one();
  }

 private:
  [[nodiscard]] live_request pop_oldest() {
    const auto oldest = alive_.front();
    alive_.pop_front();
    return oldest;
  }

  std::size_t capacity_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t num_taken_ = 0;
  std::deque<live_request> alive_;
};

}  // namespace pagedkv::replay
