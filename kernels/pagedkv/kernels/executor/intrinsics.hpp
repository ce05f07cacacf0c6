#pragma once

// HIP's device-side names, run by the executor. Global, as in HIP, so that kernels compile unchanged.

#include <pagedkv/kernels/executor/memory.hpp>
#include <pagedkv/kernels/executor/shared.hpp>

#include <atomic>
#include <bit>
#include <cmath>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__ static thread_local

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

/// `choose(lane, width)` names the lane to read from, or any lane outside the own group of `width` for one's own value.
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

#define threadIdx (::pagedkv::executor::here().current().thread)
#define blockIdx (::pagedkv::executor::here().index())
#define blockDim (::pagedkv::executor::here().work().workgroup)
#define gridDim (::pagedkv::executor::here().work().grid)

namespace pagedkv::executor {

// No macro: the runtime's device properties have a member of this name.
struct wave_size_of_lane {
  operator int() const noexcept { return static_cast<int>(here().work().wave_size); }
};

}  // namespace pagedkv::executor

inline constexpr auto warpSize = pagedkv::executor::wave_size_of_lane{};

inline void __syncthreads(const pagedkv::executor::call_site& where = pagedkv::executor::call_site::current()) {
  pagedkv::executor::here().barrier(where);
}

template <class T>
[[nodiscard]] T __shfl(T value, int source, int width = warpSize,
                       const pagedkv::executor::call_site& where = pagedkv::executor::call_site::current()) {
  return pagedkv::executor::shuffle(value, width, where, [=](std::int64_t) { return source & (width - 1); });
}

template <class T>
[[nodiscard]] T __shfl_up(T value, unsigned delta, int width = warpSize,
                          const pagedkv::executor::call_site& where = pagedkv::executor::call_site::current()) {
  return pagedkv::executor::shuffle(value, width, where, [=](std::int64_t own) { return own - delta; });
}

template <class T>
[[nodiscard]] T __shfl_down(T value, unsigned delta, int width = warpSize,
                            const pagedkv::executor::call_site& where = pagedkv::executor::call_site::current()) {
  return pagedkv::executor::shuffle(value, width, where, [=](std::int64_t own) { return own + delta; });
}

template <class T>
[[nodiscard]] T __shfl_xor(T value, int mask, int width = warpSize,
                           const pagedkv::executor::call_site& where = pagedkv::executor::call_site::current()) {
  return pagedkv::executor::shuffle(value, width, where, [=](std::int64_t own) { return own ^ mask; });
}

[[nodiscard]] inline unsigned long long __ballot(
    int predicate, const pagedkv::executor::call_site& where = pagedkv::executor::call_site::current()) {
  auto& group = pagedkv::executor::here();
  group.meet_wave(predicate != 0, group.work().wave_size, where);
  auto ballot = 0ULL;
  for (auto i = std::uint32_t{0}; i < group.lanes_in_wave(); ++i) {
    ballot |= static_cast<unsigned long long>(group.exchanged(i)) << i;
  }
  return ballot;
}

[[nodiscard]] inline int __any(int predicate,
                               const pagedkv::executor::call_site& where = pagedkv::executor::call_site::current()) {
  return __ballot(predicate, where) != 0;
}

[[nodiscard]] inline int __all(int predicate,
                               const pagedkv::executor::call_site& where = pagedkv::executor::call_site::current()) {
  return __ballot(!predicate, where) == 0;
}

[[nodiscard]] inline int __float_as_int(float value) noexcept { return std::bit_cast<int>(value); }
[[nodiscard]] inline float __int_as_float(int bits) noexcept { return std::bit_cast<float>(bits); }

namespace pagedkv::executor {

/// The whole of [pointer, pointer + bytes) may be touched by kernels, at this alignment.
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

template <class Pointer, class T>
T atomicAdd(Pointer target, T value) {
  return pagedkv::executor::combine(target, [=](T before) { return static_cast<T>(before + value); });
}

template <class Pointer, class T>
T atomicMax(Pointer target, T value) {
  return pagedkv::executor::combine(target, [=](T before) { return before < value ? value : before; });
}

template <class Pointer, class T>
T atomicMin(Pointer target, T value) {
  return pagedkv::executor::combine(target, [=](T before) { return value < before ? value : before; });
}

template <class Pointer, class T>
T atomicExch(Pointer target, T value) {
  return pagedkv::executor::combine(target, [=](T) { return value; });
}

template <class Pointer, class T>
T atomicCAS(Pointer target, T expected, T desired) {
  return pagedkv::executor::combine(target, [=](T before) { return before == expected ? desired : before; });
}
