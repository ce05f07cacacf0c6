#pragma once

#include <sched.h>
#include <pagedkv/core/ids.hpp>
#include <pagedkv/core/result.hpp>
#include <pagedkv/policy/locking/parts/guards.hpp>
#include <pagedkv/requests/records.hpp>
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

namespace detail {

/// Calls `operation()`, and repeats it while another thread keeps the sequence busy: a bounded number of times, because
/// that thread may be stopped.
template <class Operation>
[[nodiscard]] auto repeat_while_busy(Operation&& operation) noexcept {
  constexpr auto max_attempts = 16;
  auto done = operation();
  for (auto attempts = 1; !done && done.error().code == error_code::sequence_busy && attempts < max_attempts;
       ++attempts) {
    sched_yield();  // <thread> would take a tenth of the time to compile a tracker
    done = operation();
  }
  return done;
}
/// Repeats an operation that finds a sequence busy only while another thread is inside.
template <class Locking, class Operation>
[[nodiscard]] auto retry_while_busy(Operation&& operation) noexcept {
  if constexpr (Locking::waits_for_sequence) {
    return operation();
  } else {
    return repeat_while_busy(operation);
  }
}

}  // namespace detail

/// Releases sequences, deferred if necessary. Only the constructor allocates, and only if the cache may return
/// `sequence_busy`.
template <class Cache, class Mutex>
class sequence_releases {
 public:
  explicit sequence_releases(Cache& cache)
      : cache_(cache),
        deferred_(waits_for_sequence ? 0 : static_cast<std::size_t>(cache.config().max_sequences)) {}

  /// Only the caller knows the sequence, so the release fails only while another operation is inside it.
  void release(sequence_id id, const release_hint& hint) noexcept {
    const auto released =
        detail::retry_while_busy<typename Cache::locking_type>([&] { return cache_.release(id, hint); });
    if (!waits_for_sequence && !released && released.error().code == error_code::sequence_busy) {
      deferred_.push({id, hint});
    }
  }

  /// Repeats each deferred release. Returns whether there were any.
  bool release_deferred() noexcept {
    auto any = false;
    if constexpr (!waits_for_sequence) {
      for (auto left = deferred_.size(); left > 0; --left) {
        if (const auto next = deferred_.pop()) {
          release(next->sequence, next->hint);
          any = true;
        }
      }
    }
    return any;
  }

 private:
  static constexpr bool waits_for_sequence = Cache::locking_type::waits_for_sequence;

  Cache& cache_;
  deferred_releases<Mutex> deferred_;
};

}  // namespace pagedkv
