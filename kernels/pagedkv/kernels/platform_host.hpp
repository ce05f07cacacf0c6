#pragma once

#include <pagedkv/executor/intrinsics.hpp>
#include <pagedkv/executor/launch_shape.hpp>
#include <pagedkv/executor/runtime.hpp>
#include <pagedkv/kernels/vector.hpp>

#include <cstddef>
#include <new>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace pagedkv::executor {

/// The kernel's name with its template arguments.
template <auto Kernel>
[[nodiscard]] consteval std::string_view kernel_name() noexcept {
  constexpr auto marker = std::string_view("Kernel = ");
  auto name = std::string_view(__PRETTY_FUNCTION__);
  name.remove_prefix(name.find(marker) + marker.size());
  return name.substr(0, name.find_first_of(";]"));
}

[[nodiscard]] inline bool valid_shape(const kernels::launch_shape& shape) noexcept {
  const auto lanes = std::uint64_t{shape.workgroup.x} * shape.workgroup.y * shape.workgroup.z;
  constexpr auto most_across = 65535U;  // the same limit as CUDA
  return shape.grid.x > 0 && shape.grid.y > 0 && shape.grid.z > 0 && shape.grid.y <= most_across &&
         shape.grid.z <= most_across && lanes * shape.grid.x < std::uint64_t{1} << 32 && lanes > 0 &&
         lanes <= max_workgroup_size && shape.dynamic_shared_bytes <= shared_bytes_per_workgroup;
}

/// A kernel as the executor knows it. Everything else of a launch is compiled once for all kernels.
struct kernel_entry {
  std::string_view name;
  void (*run)(const void* arguments);
  void (*copy)(void* to, const void* arguments);
  std::size_t bytes;  // of the arguments
};

template <class Indices, class... Arguments>
struct kernel_arguments;
template <std::size_t... I, class... Arguments>
struct kernel_arguments<std::index_sequence<I...>, Arguments...> {
  using type = std::tuple<Arguments...>;
  // Nothing ends their lifetime but the release of their memory.
  static_assert(std::is_trivially_destructible_v<type> && alignof(type) <= alignof(std::max_align_t));

  template <auto Kernel>
  static void run([[maybe_unused]] const void* arguments) {
    Kernel(std::get<I>(*static_cast<const type*>(arguments))...);
  }
  static void copy(void* to, const void* arguments) { ::new (to) type(*static_cast<const type*>(arguments)); }

  template <auto Kernel>
  static constexpr auto entry = kernel_entry{kernel_name<Kernel>(), run<Kernel>, copy, sizeof(type)};
};

[[nodiscard]] inline runtime::status enqueue(const kernel_entry& kernel, const kernels::launch_shape& shape,
                                             runtime::stream stream, const void* arguments) {
  if (!valid_shape(shape)) {
    return runtime::error_invalid_configuration;
  }
  return attempt([&] {
    auto& queue = resolve(stream);
    auto copies = std::vector<std::max_align_t>(kernel.bytes / sizeof(std::max_align_t) + 1);
    kernel.copy(copies.data(), arguments);
    auto work = launch{kernel.name,       shape.grid, shape.workgroup,  shape.dynamic_shared_bytes,
                       queue.wave_size(), kernel.run, std::move(copies)};
    queue.enqueue([work = std::move(work)] {
      auto found = workers().run(work);
      if (!found) {
        return runtime::success;
      }
      faults().put(*std::move(found));
      return runtime::error_launch_failure;
    });
    return runtime::success;
  });
}

inline void check_alignment(const void* address, std::size_t alignment) {
  if (reinterpret_cast<std::uintptr_t>(address) % alignment != 0) {
    here().report(fault_kind::misaligned_access, "a vector in shared memory");
  }
}

}  // namespace pagedkv::executor

namespace pagedkv::kernels {

/// Properties of a platform that kernels heed: whether lanes without data form pointers, too; whether the lanes of a
/// wave put vectors that they store into the order of addresses first; and workgroups of kernels over tiles of rows
/// that a processor is to have room for, 0 for as many as the compiler finds right.
inline constexpr bool points_on_every_lane = true;
inline constexpr bool joins_stores = true;
inline constexpr int workgroups_of_tiles = 0;

using executor::dynamic_shared;
using executor::shared_array;
using executor::shared_span;

/// Enqueues the kernel. The call copies the arguments; a fault is reported when the stream is next synchronised.
template <auto Kernel, class... Arguments>
[[nodiscard]] runtime::status launch(const launch_shape& shape, runtime::stream stream, Arguments... arguments) {
  using of_kernel = executor::kernel_arguments<std::index_sequence_for<Arguments...>, Arguments...>;
  const auto packed = std::tuple<Arguments...>(arguments...);
  return executor::enqueue(of_kernel::template entry<Kernel>, shape, stream, &packed);
}

/// Launches a kernel that calls `wait_for_previous_kernel`, on devices where an early start is faster.
template <auto Kernel, class... Arguments>
[[nodiscard]] runtime::status launch_following(const launch_shape& shape, runtime::stream stream,
                                               Arguments... arguments) {
  return launch<Kernel>(shape, stream, arguments...);
}

/// A kernel launched with `launch_following` may start while the previous kernel still runs; the first call waits for
/// the end of that kernel, and the second one lets the next kernel start. On the executor, kernels of a stream run one
/// after the other.
inline void wait_for_previous_kernel() {}
inline void let_next_kernel_start() {}

/// Lanes of the wave see what others wrote to shared memory before.
inline void meet_wave() {
  auto& group = executor::here();
  group.meet_wave(0, group.work().wave_size, executor::call_site::current());
}

/// Does what `meet_wave` does, where all lanes of the workgroup call it: the executor knows an order of shared memory
/// only between barriers.
inline void order_wave() { barrier(); }

/// A value that is equal on every lane of the wave: AMD's compiler then keeps it in a scalar register.
[[nodiscard]] inline int uniform(int value) { return value; }

/// The value: AMD's compiler then keeps it in a vector register.
[[nodiscard]] inline std::int32_t of_lane(std::int32_t value) { return value; }

/// The kernel's first argument, which `argument` is: between distant uses its members need no registers on AMD.
template <class T>
[[nodiscard]] const T& read_again(const T& argument) {
  return argument;
}

/// Read and write global memory. A vector's address has the alignment of `vector`.
template <class T>
[[nodiscard]] T load(const T* from) {
  executor::check_global(from, sizeof(T), alignof(T), "read");
  return *from;
}
template <class T>
void store(T* to, std::type_identity_t<T> value) {
  executor::check_global(to, sizeof(T), alignof(T), "write");
  *to = value;
}
template <int N, class T>
[[nodiscard]] vector<T, N> load_vector(const T* from) {
  auto values = vector<T, N>{};
  executor::check_global(from, sizeof(values), alignof(vector<T, N>), "read");
  std::memcpy(&values, from, sizeof(values));
  return values;
}
template <int N, class T>
void store_vector(T* to, const vector<T, N>& values) {
  executor::check_global(to, sizeof(values), alignof(vector<T, N>), "write");
  std::memcpy(to, &values, sizeof(values));
}

/// Read and write a vector in shared memory, from element `first` on.
template <int N, class T>
[[nodiscard]] vector<T, N> load_shared_vector(const shared_span<T>& from, std::size_t first) {
  executor::check_alignment((&from[first]).value, alignof(vector<T, N>));
  auto values = vector<T, N>{};
  for (auto i = std::size_t{0}; i < N; ++i) {
    values.values[i] = from[first + i];
  }
  return values;
}
template <int N, class T>
void store_shared_vector(const shared_span<T>& to, std::size_t first, const vector<T, N>& values) {
  executor::check_alignment((&to[first]).value, alignof(vector<T, N>));
  for (auto i = std::size_t{0}; i < N; ++i) {
    to[first + i] = values.values[i];
  }
}

/// Debug builds stop the kernel, the host executor reports a fault, release builds do not check.
inline void check(bool holds, const char* what) {
  if (!holds) {
    executor::here().report(executor::fault_kind::failed_check, what);
  }
}

}  // namespace pagedkv::kernels
