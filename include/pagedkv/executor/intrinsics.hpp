#pragma once

#include <pagedkv/executor/memory.hpp>
#include <pagedkv/executor/workgroup.hpp>

#include <array>
#include <atomic>
#include <type_traits>

namespace pagedkv::executor {

/// The last lanes that wrote and read one element of shared memory, and between which barriers. Decides which accesses
/// are faults: two by different lanes with no barrier between, at least one of them a write, unless both are atomic.
class shared_history {
 public:
  void check_read(workgroup& group) {
    begin(group);
    if (!written_) {
      group.report(fault_kind::uninitialised_shared_read, "no lane of this workgroup has written it yet");
    }
    if (write_epoch_ == group.epoch() && writer_ != group.current().index) {
      report_race(group, "read", "wrote", writer_);
    }
    reader_ = read_ && read_epoch_ == group.epoch() && reader_ != group.current().index ? many : group.current().index;
    read_epoch_ = group.epoch();
    read_ = true;
  }

  void check_write(workgroup& group) {
    begin(group);
    check_no_reader(group);
    if (written_ && write_epoch_ == group.epoch() && writer_ != group.current().index) {
      report_race(group, "write", "wrote", writer_);
    }
    record_write(group, group.current().index);
  }

  void check_atomic(workgroup& group) {
    begin(group);
    if (!written_) {
      group.report(fault_kind::uninitialised_shared_read,
                   "an atomic on what no lane of this workgroup has written yet");
    }
    check_no_reader(group);
    if (write_epoch_ == group.epoch() && writer_ != group.current().index && writer_ != many) {
      report_race(group, "atomic", "wrote", writer_);
    }
    // An earlier plain write between the same barriers stays recorded: no other lane may access the element then, not
    // even atomically.
    const auto plain = write_epoch_ == group.epoch() && writer_ == group.current().index;
    record_write(group, plain ? writer_ : many);
  }

 private:
  static constexpr auto many = ~std::uint32_t{0};

  void begin(const workgroup& group) noexcept {
    if (run_number_ != group.run_number()) {
      *this = {};
      run_number_ = group.run_number();
    }
  }

  void check_no_reader(workgroup& group) {
    if (read_ && read_epoch_ == group.epoch() && reader_ != group.current().index) {
      report_race(group, "write", "read", reader_);
    }
  }

  void record_write(const workgroup& group, std::uint32_t writer) noexcept {
    written_ = true;
    write_epoch_ = group.epoch();
    writer_ = writer;
  }

  [[noreturn]] static void report_race(workgroup& group, const char* mine, const char* theirs, std::uint32_t other) {
    const auto who = other == many ? std::string("several lanes") : "lane " + std::to_string(other);
    group.report(fault_kind::shared_race,
                 std::string(mine) + " of what " + who + " " + theirs + " since the last barrier");
  }

  std::uint64_t run_number_ = 0;
  std::uint32_t write_epoch_ = 0;
  std::uint32_t read_epoch_ = 0;
  std::uint32_t writer_ = 0;
  std::uint32_t reader_ = 0;
  bool written_ = false;
  bool read_ = false;
};

/// The result of `&shared[i]`; for atomics.
template <class T>
struct shared_pointer {
  T* value;
  shared_history* history;
};

/// One element of shared memory; behaves as `T&`.
template <class T>
class shared_reference {
 public:
  shared_reference(T* value, shared_history* history) noexcept : value_(value), history_(history) {}
  shared_reference(const shared_reference&) = default;

  operator T() const {
    history_->check_read(*workgroup::running());
    return *value_;
  }

  const shared_reference& operator=(const T& value) const {
    history_->check_write(*workgroup::running());
    *value_ = value;
    return *this;
  }

  const shared_reference& operator=(const shared_reference& other) const { return *this = T(other); }
  const shared_reference& operator+=(const T& value) const { return *this = static_cast<T>(T(*this) + value); }

  shared_pointer<T> operator&() const noexcept { return {value_, history_}; }

 private:
  T* value_;
  shared_history* history_;
};

inline void check_shared_index(std::size_t i, std::size_t size) {
  if (i >= size) {
    workgroup::running()->report(fault_kind::shared_out_of_bounds,
                                 "element " + std::to_string(i) + " of " + std::to_string(size));
  }
}

/// Static shared memory: declare it `PAGEDKV_SHARED`. A plain array on devices.
template <class T, std::size_t N>
class shared_array {
 public:
  static_assert(std::is_trivially_copyable_v<T>);

  [[nodiscard]] shared_reference<T> operator[](std::size_t i) {
    check_shared_index(i, N);
    return {&values_[i], &history_[i]};
  }

 private:
  std::array<T, N> values_;
  std::array<shared_history, N> history_{};
};

/// A typed part of the workgroup's dynamic shared memory. A plain pointer on devices.
template <class T>
class shared_span {
 public:
  static_assert(std::is_trivially_copyable_v<T>);

  shared_span(T* values, shared_history* history, std::size_t size) noexcept
      : values_(values), history_(history), size_(size) {}

  [[nodiscard]] shared_reference<T> operator[](std::size_t i) const {
    check_shared_index(i, size_);
    return {values_ + i, history_ + i * sizeof(T)};
  }

 private:
  T* values_;
  shared_history* history_;
  std::size_t size_;
};

/// `count` elements that start `byte_offset` bytes into the dynamic shared memory of this launch. Parts must not
/// overlap.
template <class T>
[[nodiscard]] shared_span<T> dynamic_shared(std::size_t byte_offset, std::size_t count) {
  static thread_local auto histories = std::vector<shared_history>();
  auto& group = *workgroup::running();
  const auto available = group.work().dynamic_shared_bytes;
  if (byte_offset > available || count > (available - byte_offset) / sizeof(T)) {
    group.report(fault_kind::shared_out_of_bounds, std::to_string(count) + " elements of " + std::to_string(sizeof(T)) +
                                                       " bytes from byte " + std::to_string(byte_offset) + " of " +
                                                       std::to_string(available));
  }
  if (byte_offset % alignof(T) != 0) {
    group.report(fault_kind::misaligned_access, "dynamic shared memory from byte " + std::to_string(byte_offset));
  }
  // Histories are indexed by first byte, because spans of one launch may have different types. They do not move while
  // the workgroup runs, because its first span reserves space for all.
  if (histories.size() < available) {
    histories.resize(available);
  }
  return {reinterpret_cast<T*>(group.dynamic_shared() + byte_offset), histories.data() + byte_offset, count};
}

}  // namespace pagedkv::executor

// The device intrinsics that kernels call, emulated by the executor.

namespace pagedkv::executor {

[[nodiscard]] inline workgroup& here() noexcept { return *workgroup::running(); }

template <class T>
[[nodiscard]] std::uint64_t to_bits(T value) noexcept {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= 8);
  auto bits = std::uint64_t{0};
  std::memcpy(&bits, &value, sizeof(T));
  return bits;
}

template <class T>
[[nodiscard]] T from_bits(std::uint64_t bits) noexcept {
  auto value = T{};
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}

[[nodiscard]] inline std::uint32_t lane_in_wave() noexcept { return here().current().index_in_wave; }

/// `choose(lane, width)` names the lane to read from. A lane outside the caller's own group of `width` lanes yields the
/// caller's own value.
template <class T, class Choose>
[[nodiscard]] T shuffle(T value, int width, const call_site& where, Choose choose) {
  here().meet_wave(to_bits(value), static_cast<std::uint32_t>(width), where);
  const auto own = static_cast<std::int64_t>(lane_in_wave());
  const auto first = own / width * width;
  const auto chosen = std::int64_t{choose(own - first)};
  const auto source = chosen < 0 || chosen >= width ? own : first + chosen;
  return from_bits<T>(here().exchanged(static_cast<std::uint32_t>(source)));
}

}  // namespace pagedkv::executor

namespace pagedkv::kernels {

/// The lane's position in its workgroup, the workgroup's position in the grid, and the sizes of both.
[[nodiscard]] inline extent local_index() noexcept { return executor::here().current().thread; }
[[nodiscard]] inline extent workgroup_index() noexcept { return executor::here().index(); }
[[nodiscard]] inline extent workgroup_extent() noexcept { return executor::here().work().workgroup; }
[[nodiscard]] inline extent grid_extent() noexcept { return executor::here().work().grid; }

/// Lanes of a wave: 32 or 64.
[[nodiscard]] inline int wave_size() noexcept { return static_cast<int>(executor::here().work().wave_size); }

/// Waits for every lane of the workgroup. Writes to shared memory before the barrier happen before reads after it.
inline void barrier(const executor::call_site& where = executor::call_site::current()) {
  executor::here().barrier(where);
}

/// The value of another lane: of number `source` modulo `width` in the group; of the one `delta` before or behind; of
/// the one whose number differs in the bits of `mask`; its own where that one is outside the group. `width` is a power
/// of two up to the wave size: groups are aligned and of this many lanes. Every lane of the wave takes part.
template <class T>
[[nodiscard]] T shuffle(T value, int source, int width = wave_size(),
                        const executor::call_site& where = executor::call_site::current()) {
  return executor::shuffle(value, width, where, [=](std::int64_t) { return source & (width - 1); });
}
template <class T>
[[nodiscard]] T shuffle_up(T value, unsigned delta, int width = wave_size(),
                           const executor::call_site& where = executor::call_site::current()) {
  return executor::shuffle(value, width, where, [=](std::int64_t own) { return own - delta; });
}
template <class T>
[[nodiscard]] T shuffle_down(T value, unsigned delta, int width = wave_size(),
                             const executor::call_site& where = executor::call_site::current()) {
  return executor::shuffle(value, width, where, [=](std::int64_t own) { return own + delta; });
}
template <class T>
[[nodiscard]] T shuffle_xor(T value, int mask, int width = wave_size(),
                            const executor::call_site& where = executor::call_site::current()) {
  return executor::shuffle(value, width, where, [=](std::int64_t own) { return own ^ mask; });
}

/// Bit i says whether the predicate of the wave's i-th lane is not 0. Every lane of the wave takes part.
[[nodiscard]] inline unsigned long long ballot(int predicate,
                                               const executor::call_site& where = executor::call_site::current()) {
  auto& group = executor::here();
  group.meet_wave(predicate != 0, group.work().wave_size, where);
  const auto num_lanes = group.lanes_in_wave();
  const auto* const brought = group.exchanged_up_to(num_lanes - 1);
  auto votes = 0ULL;
  for (auto i = std::uint32_t{0}; i < num_lanes; ++i) {
    votes |= static_cast<unsigned long long>(brought[i]) << i;
  }
  return votes;
}

/// Whether the predicate of any, or of every, lane of the wave is not 0. Every lane of the wave takes part.
[[nodiscard]] inline int any(int predicate, const executor::call_site& where = executor::call_site::current()) {
  return ballot(predicate, where) != 0;
}
[[nodiscard]] inline int all(int predicate, const executor::call_site& where = executor::call_site::current()) {
  return ballot(!predicate, where) == 0;
}

}  // namespace pagedkv::kernels

namespace pagedkv::executor {

/// Reports a fault unless kernels may touch all of [pointer, pointer + bytes) at this alignment.
inline void check_global(const void* pointer, std::size_t bytes, std::size_t alignment, const char* access) {
  if (!memory().contains(pointer, bytes)) {
    here().report(fault_kind::global_out_of_bounds, std::string(access) + " of " + std::to_string(bytes) + " bytes");
  }
  if (reinterpret_cast<std::uintptr_t>(pointer) % alignment != 0) {
    here().report(fault_kind::misaligned_access, std::string(access) + " of " + std::to_string(bytes) + " bytes");
  }
}

template <class T>
[[nodiscard]] std::atomic_ref<T> global_atomic(T* target) {
  check_global(target, sizeof(T), alignof(T), "atomic");
  return std::atomic_ref<T>(*target);
}

template <class T, class Combine>
T combine(shared_pointer<T> target, Combine combined) {
  target.history->check_atomic(here());
  const auto before = *target.value;
  *target.value = combined(before);
  return before;
}

template <class T, class Combine>
T combine(T* target, Combine combined) {
  auto atomic = global_atomic(target);
  auto before = atomic.load();
  while (!atomic.compare_exchange_weak(before, combined(before))) {
  }
  return before;
}

}  // namespace pagedkv::executor

namespace pagedkv::kernels {

/// Each returns the previous value. `target` is in global memory, or `&shared[i]`.
template <class Pointer, class T>
T atomic_add(Pointer target, T value) {
  return executor::combine(target, [=](T before) { return static_cast<T>(before + value); });
}
template <class Pointer, class T>
T atomic_max(Pointer target, T value) {
  return executor::combine(target, [=](T before) { return before < value ? value : before; });
}
template <class Pointer, class T>
T atomic_min(Pointer target, T value) {
  return executor::combine(target, [=](T before) { return value < before ? value : before; });
}
template <class Pointer, class T>
T atomic_exchange(Pointer target, T value) {
  return executor::combine(target, [=](T) { return value; });
}
template <class Pointer, class T>
T atomic_compare_exchange(Pointer target, T expected, T desired) {
  return executor::combine(target, [=](T before) { return before == expected ? desired : before; });
}

}  // namespace pagedkv::kernels
