#pragma once

#include <pagedkv/lifecycle/request.hpp>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace pagedkv {

/// Ids of ended requests in the order of their end: a ring of fixed capacity.
class ended_queue {
 public:
  explicit ended_queue(std::int32_t capacity) : ids_(static_cast<std::size_t>(capacity)) {}

  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] bool empty() const noexcept { return size_ == 0; }
  [[nodiscard]] bool full() const noexcept { return size_ != 0 && size_ == ids_.size(); }
  [[nodiscard]] request_id oldest() const noexcept { return ids_[first_]; }

  /// Not on a full queue.
  void push(request_id id) noexcept {
    ids_[(first_ + size_) % ids_.size()] = id;
    ++size_;
  }

  /// Not on an empty queue.
  request_id pop() noexcept {
    const auto id = ids_[first_];
    first_ = (first_ + 1) % ids_.size();
    --size_;
    return id;
  }

 private:
  std::vector<request_id> ids_;
  std::size_t first_ = 0;
  std::size_t size_ = 0;
};

}  // namespace pagedkv
