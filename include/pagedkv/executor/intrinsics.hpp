#pragma once

// The device intrinsics that kernels call, emulated by the executor.

#include <pagedkv/executor/memory.hpp>
#include <pagedkv/executor/shared.hpp>

#include <atomic>

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

[[nodiscard]] inline std::uint32_t lane_in_wave() noexcept { return here().current().index % here().work().wave_size; }

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

[[nodiscard]] inline unsigned long long ballot(int predicate,
                                               const executor::call_site& where = executor::call_site::current()) {
  auto& group = executor::here();
  group.meet_wave(predicate != 0, group.work().wave_size, where);
  auto votes = 0ULL;
  for (auto i = std::uint32_t{0}; i < group.lanes_in_wave(); ++i) {
    votes |= static_cast<unsigned long long>(group.exchanged(i)) << i;
  }
  return votes;
}

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

/// Each returns the previous value. `pointer` is in global memory, or `&shared[i]`.
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
