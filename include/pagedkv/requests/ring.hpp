#pragma once

#include <cstddef>
#include <utility>
#include <vector>

namespace pagedkv {

/// A queue of fixed capacity.
template <class T>
class ring {
 public:
  explicit ring(std::size_t capacity) : entries_(capacity) {}

  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] bool empty() const noexcept { return size_ == 0; }
  [[nodiscard]] bool full() const noexcept { return size_ != 0 && size_ == entries_.size(); }
  [[nodiscard]] const T& oldest() const noexcept { return entries_[first_]; }

  /// Not on a full queue.
  void push(const T& entry) noexcept {
    entries_[(first_ + size_) % entries_.size()] = entry;
    ++size_;
  }

  /// Not on an empty queue.
  T pop() noexcept {
    --size_;
    return entries_[std::exchange(first_, (first_ + 1) % entries_.size())];
  }

 private:
  std::vector<T> entries_;
  std::size_t first_ = 0;
  std::size_t size_ = 0;
};

}  // namespace pagedkv
