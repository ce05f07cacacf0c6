#pragma once

#include "scheduler.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cassert>
#include <cstddef>
#include <cstdint>

namespace pagedkv::testing {

/// The interface of `std::atomic` under the scheduler: each operation is a step; vector clocks track happens-before.
///
/// A load may return any value that C++20 permits, as far as coherence and happens-before decide, if the bounds allow
/// surprises. All sequentially consistent operations are in one order, that of the schedule: a load among them sees
/// nothing older than what earlier ones have written or seen, but may miss later writes of others. A failed
/// compare-and-swap is a load; read-modify-writes see the newest value. Fences are not modelled.
template <class T>
class scheduled {
 public:
  scheduled() noexcept : scheduled(T{}) {}
  scheduled(T value) noexcept { append(value, std::memory_order_relaxed); }
  scheduled(const scheduled&) = delete;
  scheduled& operator=(const scheduled&) = delete;

  [[nodiscard]] T load(std::memory_order order = std::memory_order_seq_cst) const noexcept {
    step(false);
    return read(pick(order), order);
  }

  void store(T value, std::memory_order order = std::memory_order_seq_cst) noexcept {
    step(true);
    append(value, order);
  }

  T exchange(T value, std::memory_order order = std::memory_order_seq_cst) noexcept {
    return modify(order, [&](T) { return value; });
  }

  bool compare_exchange_strong(T& expected, T desired, std::memory_order success, std::memory_order failure) noexcept {
    step(true);
    return replace(expected, desired, success, failure);
  }

  bool compare_exchange_strong(T& expected, T desired, std::memory_order order = std::memory_order_seq_cst) noexcept {
    return compare_exchange_strong(expected, desired, order, on_failure(order));
  }

  bool compare_exchange_weak(T& expected, T desired, std::memory_order success, std::memory_order failure) noexcept {
    step(true);
    if (newest().value == expected && now().surprise(2) != 0) {
      return false;
    }
    return replace(expected, desired, success, failure);
  }

  bool compare_exchange_weak(T& expected, T desired, std::memory_order order = std::memory_order_seq_cst) noexcept {
    return compare_exchange_weak(expected, desired, order, on_failure(order));
  }

  T fetch_add(T operand, std::memory_order order = std::memory_order_seq_cst) noexcept {
    return modify(order, [&](T value) { return static_cast<T>(value + operand); });
  }

  T fetch_sub(T operand, std::memory_order order = std::memory_order_seq_cst) noexcept {
    return modify(order, [&](T value) { return static_cast<T>(value - operand); });
  }

  T fetch_or(T operand, std::memory_order order = std::memory_order_seq_cst) noexcept {
    return modify(order, [&](T value) { return static_cast<T>(value | operand); });
  }

  T fetch_and(T operand, std::memory_order order = std::memory_order_seq_cst) noexcept {
    return modify(order, [&](T value) { return static_cast<T>(value & operand); });
  }

  /// Sees the same values as a sequentially consistent load, whatever the order: a thread enters itself among the
  /// sleepers and then reads the word; a notification follows a change of the word and checks for sleepers. Unless the
  /// change is sequentially consistent, too, each may miss the other, and no thread wakes the sleeper. C++ guarantees
  /// more. But where a notification begins with a mere load, a processor that lets loads pass earlier stores breaks the
  /// guarantee, as x86 does after a release store.
  void wait(T old, std::memory_order order = std::memory_order_seq_cst) const noexcept {
    for (step(false); read(pick(std::memory_order_seq_cst), order) == old; step(false)) {
      now().sleep(this);
    }
  }

  void notify_one() noexcept { wake(false); }
  void notify_all() noexcept { wake(true); }

 private:
  // Without initial values: most words are rarely written, and scenes are set up anew for every schedule.
  struct written {
    T value;
    std::uint32_t thread;
    std::uint32_t step;     // of that thread
    vector_clock released;  // visible to an acquiring reader
  };

  static constexpr auto remembered = std::uint32_t{6};

  [[nodiscard]] static execution& now() {
    assert(execution::active() != nullptr);
    return *execution::active();
  }

  void step(bool writes) const { now().step(object_, writes); }

  [[nodiscard]] const written& newest() const { return history_[size_ - 1]; }

  [[nodiscard]] static bool acquires(std::memory_order order) {
    return order != std::memory_order_relaxed && order != std::memory_order_release;
  }

  [[nodiscard]] static bool releases(std::memory_order order) {
    return order == std::memory_order_release || order == std::memory_order_acq_rel ||
           order == std::memory_order_seq_cst;
  }

  [[nodiscard]] static std::memory_order on_failure(std::memory_order order) {
    return order == std::memory_order_acq_rel   ? std::memory_order_acquire
           : order == std::memory_order_release ? std::memory_order_relaxed
                                                : order;
  }

  // Selects the value that a load sees among the remembered ones.
  [[nodiscard]] std::uint32_t pick(std::memory_order order) const {
    const auto ordinary = size_ - 1;
    return now().may_surprise() ? ordinary - now().surprise(size_ - oldest_visible(order)) : ordinary;
  }

  // The oldest value that this thread may still see: neither overwritten in the thread's past, nor older than a value
  // that the thread has seen here or that earlier sequentially consistent operations have seen.
  [[nodiscard]] std::uint32_t oldest_visible(std::memory_order order) const {
    const auto seen = std::max(seen_[now().current()], order == std::memory_order_seq_cst ? agreed_ : 0);
    auto index = size_ - 1;
    while (index > 0 && forgotten_ + index > seen && history_[index].step > now().clock()[history_[index].thread]) {
      --index;
    }
    return index;
  }

  T read(std::uint32_t index, std::memory_order order) const {
    note_seen(forgotten_ + index, order);
    if (acquires(order)) {
      now().clock().join(history_[index].released);
    }
    return history_[index].value;
  }

  void append(T value, std::memory_order order, const vector_clock& inherited = {}) {
    auto released = inherited;
    if (releases(order)) {
      released.join(now().clock());
    }
    const auto thread = static_cast<std::uint32_t>(now().current());
    if (size_ == remembered) {
      std::move(history_.begin() + 1, history_.end(), history_.begin());
      --size_;
      ++forgotten_;
    }
    history_[size_++] = {value, thread, now().clock()[thread], released};
    note_seen(forgotten_ + size_ - 1, order);
  }

  void note_seen(std::uint32_t which, std::memory_order order) const {
    seen_[now().current()] = which;
    if (order == std::memory_order_seq_cst) {
      agreed_ = which;
    }
  }

  template <class Change>
  T modify(std::memory_order order, Change change) {
    step(true);
    return replace_newest(order, change);
  }

  template <class Change>
  T replace_newest(std::memory_order order, Change change) {
    const auto before = read(size_ - 1, order);
    append(change(before), order, newest().released);  // continues the release sequence
    return before;
  }

  bool replace(T& expected, T desired, std::memory_order success, std::memory_order failure) {
    const auto older = pick(failure);
    const auto seen = history_[older].value != expected ? older : size_ - 1;
    if (history_[seen].value != expected) {
      expected = read(seen, failure);
      return false;
    }
    replace_newest(success, [&](T) { return desired; });
    return true;
  }

  void wake(bool all) {
    step(true);
    now().wake(this, all);
  }

  object_id object_ = now().new_object();
  std::array<written, remembered> history_;  // not a vector: scenes are set up anew for every schedule
  std::uint32_t size_ = 0;
  std::uint32_t forgotten_ = 0;
  mutable std::array<std::uint32_t, max_threads> seen_{};
  mutable std::uint32_t agreed_ = 0;  // the newest that a sequentially consistent operation has written or seen
};

/// A plain value that reports when two threads access it, at least one writing, without happens-before.
template <class T>
class scheduled_data {
 public:
  scheduled_data() = default;
  explicit scheduled_data(T value) : value_(value) {}

  [[nodiscard]] T read() const {
    auto& now = *execution::active();
    now.tick();
    now.expect(written_step_ <= now.clock()[writer_], "data race: a read is not ordered after a write");
    reads_[now.current()] = now.clock()[now.current()];
    return value_;
  }

  void write(T value) {
    auto& now = *execution::active();
    now.tick();
    now.expect(written_step_ <= now.clock()[writer_], "data race: two writes are not ordered");
    for (auto thread = std::size_t{0}; thread < max_threads; ++thread) {
      now.expect(reads_[thread] <= now.clock()[thread], "data race: a write is not ordered after a read");
    }
    writer_ = now.current();
    written_step_ = now.clock()[writer_];
    value_ = value;
  }

 private:
  T value_{};
  std::size_t writer_ = 0;
  std::uint32_t written_step_ = 0;
  mutable std::array<std::uint32_t, max_threads> reads_{};
};

/// The number of the running thread, where components ask for an index of their thread.
struct scheduled_thread_index {
  [[nodiscard]] static std::uint32_t current() noexcept {
    return static_cast<std::uint32_t>(execution::active()->current());
  }

  [[nodiscard]] static std::uint32_t limit() noexcept { return max_threads; }
};

}  // namespace pagedkv::testing
