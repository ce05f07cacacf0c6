#pragma once

#include <pagedkv/core/ids.hpp>
#include <pagedkv/policy/locking/parts/guards.hpp>
#include <pagedkv/requests/ring.hpp>
#include <pagedkv/sequence/sequence.hpp>

#include <cstddef>
#include <optional>

namespace pagedkv {

/// Sequences whose release was deferred because another thread was inside them. A queue, so that a sequence that stays
/// busy does not delay the others. Only the constructor allocates.
template <class Mutex>
class deferred_releases {
 public:
  struct entry {
    sequence_id sequence{};
    release_hint hint;
  };

  explicit deferred_releases(std::size_t capacity) : entries_(capacity) {}

  [[nodiscard]] std::size_t size() noexcept {
    const auto guard = exclusive_guard{mutex_};
    return entries_.size();
  }
  void push(const entry& owed) noexcept {
    const auto guard = exclusive_guard{mutex_};
    entries_.push(owed);
  }
  [[nodiscard]] std::optional<entry> pop() noexcept {
    const auto guard = exclusive_guard{mutex_};
    if (entries_.empty()) {
      return std::nullopt;
    }
    return entries_.pop();
  }

 private:
  [[no_unique_address]] Mutex mutex_;
  ring<entry> entries_;
};

}  // namespace pagedkv
