#pragma once

#include <atomic>
#include <cstddef>
#include <mutex>

namespace pagedkv::replay {

/// A bar on standard error, if that is a terminal. Thread-safe.
class progress {
 public:
  explicit progress(std::size_t total);
  ~progress();

  progress(const progress&) = delete;
  progress& operator=(const progress&) = delete;

  void advance();

 private:
  void show(std::size_t percent);

  std::size_t total_;
  bool shown_;
  std::atomic<std::size_t> done_{0};
  std::mutex mutex_;
  std::size_t shown_percent_ = 0;
};

}  // namespace pagedkv::replay
