#pragma once

// The runtime of the host executor. It has three devices: 0 with waves of 64 lanes, 1 and 2 with waves of 32; each
// emulates matrix instructions of another kind.

#include <pagedkv/executor/launch_shape.hpp>
#include <pagedkv/executor/memory.hpp>
#include <pagedkv/executor/stream.hpp>

namespace pagedkv::executor {

inline constexpr auto wave_sizes = std::array<std::uint32_t, 3>{64, 32, 32};
inline constexpr auto matrices = std::array{runtime::matrix_instructions::mfma, runtime::matrix_instructions::mma,
                                            runtime::matrix_instructions::wmma};
inline constexpr auto num_devices = static_cast<int>(wave_sizes.size());
inline constexpr auto max_workgroup_size = std::uint32_t{1024};
inline constexpr auto shared_bytes_per_workgroup = std::size_t{64} << 10;

[[nodiscard]] inline int& current_device() noexcept {
  static thread_local auto device = 0;
  return device;
}

/// The stream behind a handle. Null is the current device's default stream, which waits for no other stream here.
[[nodiscard]] inline stream& resolve(runtime::stream handle) {
  static auto defaults = std::array<stream, 3>{stream(wave_sizes[0]), stream(wave_sizes[1]), stream(wave_sizes[2])};
  return handle != nullptr ? *handle : defaults[static_cast<std::size_t>(current_device())];
}

/// Makes runtime calls fail, for tests of error handling. Thread-safe.
class failure_plan {
 public:
  /// The first `num_calls` calls succeed; every later call returns `failure`.
  void fail_after(std::int64_t num_calls, runtime::status failure) noexcept {
    failure_.store(failure);
    remaining_.store(num_calls);
  }

  void clear() noexcept { remaining_.store(never); }

  [[nodiscard]] runtime::status next() noexcept {
    auto remaining = remaining_.load();
    while (remaining != never && remaining > 0 && !remaining_.compare_exchange_weak(remaining, remaining - 1)) {
    }
    return remaining == 0 ? failure_.load() : runtime::success;
  }

 private:
  static constexpr auto never = std::int64_t{-1};

  std::atomic<std::int64_t> remaining_ = never;
  std::atomic<runtime::status> failure_ = runtime::success;
};

[[nodiscard]] inline failure_plan& failures() {
  static auto plan = failure_plan();
  return plan;
}

/// `call` unless a failure is planned.
template <class Call>
[[nodiscard]] runtime::status attempt(Call call) noexcept {
  try {
    const auto planned = failures().next();
    return planned != runtime::success ? planned : call();
  } catch (const std::bad_alloc&) {
    return runtime::error_out_of_memory;
  }
}

[[nodiscard]] inline bool readable(const void* pointer, std::size_t bytes, bool on_device) {
  return !on_device || memory().contains(pointer, bytes);
}

[[nodiscard]] inline bool valid_copy(const void* to, const void* from, std::size_t bytes, runtime::copy_kind kind) {
  const auto to_device = kind == runtime::host_to_device || kind == runtime::device_to_device;
  const auto from_device = kind == runtime::device_to_host || kind == runtime::device_to_device;
  return readable(to, bytes, to_device) && readable(from, bytes, from_device);
}

inline runtime::status allocate_into(void** pointer, std::size_t bytes) {
  return attempt([&] {
    *pointer = memory().allocate(bytes);
    return *pointer != nullptr ? runtime::success : runtime::error_out_of_memory;
  });
}

inline runtime::status release_from(void* pointer) {
  return pointer == nullptr || memory().release(pointer) ? runtime::success : runtime::error_invalid_value;
}

}  // namespace pagedkv::executor

namespace pagedkv::runtime {

inline const char* error_text(status error) {
  switch (error) {
    case success: return "no error";
    case error_invalid_value: return "invalid argument";
    case error_out_of_memory: return "out of memory";
    case error_invalid_configuration: return "invalid configuration argument";
    case error_no_device: return "no device is detected";
    case error_invalid_device: return "invalid device ordinal";
    case error_invalid_handle: return "invalid resource handle";
    case error_not_ready: return "not ready";
    case error_launch_failure: return "a kernel was at fault";
  }
  return "unknown error";
}

inline status get_device_count(int* count) {
  return executor::attempt([&] {
    *count = executor::num_devices;
    return success;
  });
}

inline status set_device(int device) {
  if (device < 0 || device >= executor::num_devices) {
    return error_invalid_device;
  }
  executor::current_device() = device;
  return success;
}

inline status get_device(int* device) {
  *device = executor::current_device();
  return success;
}

inline status get_device_properties(device_properties* properties, int device) {
  if (device < 0 || device >= executor::num_devices) {
    return error_invalid_device;
  }
  const auto wave_size = executor::wave_sizes[static_cast<std::size_t>(device)];
  *properties = {"host executor, waves of " + std::to_string(wave_size),
                 executor::memory_map::capacity,
                 static_cast<int>(wave_size),
                 2,
                 executor::shared_bytes_per_workgroup,
                 static_cast<int>(executor::max_workgroup_size),
                 executor::matrices[static_cast<std::size_t>(device)],
                 false};
  return success;
}

inline status allocate(void** pointer, std::size_t bytes) { return executor::allocate_into(pointer, bytes); }

inline status release(void* pointer) {
  executor::streams().wait_idle();
  return executor::release_from(pointer);
}

inline status allocate_pinned(void** pointer, std::size_t bytes) { return executor::allocate_into(pointer, bytes); }

inline status release_pinned(void* pointer) { return release(pointer); }

inline status allocate_async(void** pointer, std::size_t bytes, stream) {
  return executor::allocate_into(pointer, bytes);
}

inline status release_async(void* pointer, stream in) {
  return executor::attempt([&] {
    executor::resolve(in).enqueue_always([=] { return executor::release_from(pointer); });
    return success;
  });
}

inline status get_memory_info(std::size_t* free, std::size_t* total) {
  *total = executor::memory_map::capacity;
  *free = *total - executor::memory().used();
  return success;
}

/// The devices of the executor share the host's memory.
inline status can_access_peer(int* can, int device, int peer) {
  const auto exists = [](int index) { return index >= 0 && index < executor::num_devices; };
  *can = device != peer ? 1 : 0;
  return exists(device) && exists(peer) ? success : error_invalid_device;
}
inline status enable_peer_access(int peer) {
  return peer >= 0 && peer < executor::num_devices && peer != executor::current_device() ? success
                                                                                         : error_invalid_device;
}

/// Names an allocation in other processes; here only in this one.
struct memory_handle {
  void* pointer = nullptr;
};
inline status get_memory_handle(memory_handle* handle, void* pointer) {
  handle->pointer = pointer;
  return success;
}
inline status open_memory_handle(void** pointer, const memory_handle& handle) {
  *pointer = handle.pointer;
  return success;
}
inline status close_memory_handle(void*) { return success; }

inline status copy_rows_async(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch,
                              std::size_t width, std::size_t height, copy_kind kind, stream in) {
  return executor::attempt([&] {
    for (auto row = std::size_t{0}; row < height; ++row) {
      if (!executor::valid_copy(static_cast<std::byte*>(to) + row * to_pitch,
                                static_cast<const std::byte*>(from) + row * from_pitch, width, kind)) {
        return error_invalid_value;
      }
    }
    executor::resolve(in).enqueue([=] {
      for (auto row = std::size_t{0}; row < height; ++row) {
        std::memmove(static_cast<std::byte*>(to) + row * to_pitch,
                     static_cast<const std::byte*>(from) + row * from_pitch, width);
      }
      return success;
    });
    return success;
  });
}

inline status copy_async(void* to, const void* from, std::size_t bytes, copy_kind kind, stream in) {
  return copy_rows_async(to, bytes, from, bytes, bytes, 1, kind, in);
}

inline status fill_async(void* to, int value, std::size_t bytes, stream in) {
  return executor::attempt([&] {
    if (!executor::readable(to, bytes, true)) {
      return error_invalid_value;
    }
    executor::resolve(in).enqueue([=] {
      std::memset(to, value, bytes);
      return success;
    });
    return success;
  });
}

/// Creates a stream that does not wait for the default stream; no stream of the executor does.
inline status create_stream(stream* created) {
  return executor::attempt([&] {
    const auto device = static_cast<std::size_t>(executor::current_device());
    *created = new executor::stream(executor::wave_sizes[device]);
    return success;
  });
}

inline status destroy_stream(stream destroyed) {
  delete destroyed;
  return success;
}

inline status synchronize_stream(stream in) {
  return executor::attempt([&] { return executor::resolve(in).synchronize(); });
}

inline status query_stream(stream in) {
  return executor::attempt([&] { return executor::resolve(in).query(); });
}

inline status create_event(event* created) {
  return executor::attempt([&] {
    *created = new executor::event();
    return success;
  });
}

inline status create_timed_event(event* created) { return create_event(created); }

inline status destroy_event(event destroyed) {
  delete destroyed;
  return success;
}

inline status record_event(event mark, stream in) {
  return executor::attempt([&] {
    executor::resolve(in).enqueue_always([marks = mark->marks(), recording = mark->marks()->record()] {
      marks->reach(recording);
      return success;
    });
    return success;
  });
}

inline status synchronize_event(event mark) {
  return executor::attempt([&] {
    mark->marks()->wait(mark->marks()->last_recording());
    return success;
  });
}

inline status query_event(event mark) {
  return executor::attempt(
      [&] { return mark->marks()->reached(mark->marks()->last_recording()) ? success : error_not_ready; });
}

inline status elapsed_milliseconds(float* milliseconds, event start, event stop) {
  const auto elapsed = stop->marks()->when() - start->marks()->when();
  *milliseconds = std::chrono::duration<float, std::milli>(elapsed).count();
  return success;
}

inline status wait_for_event(stream waiting, event mark) {
  return executor::attempt([&] {
    executor::resolve(waiting).enqueue_always([marks = mark->marks(), recording = mark->marks()->last_recording()] {
      marks->wait(recording);
      return success;
    });
    return success;
  });
}

inline status add_callback(stream in, stream_callback callback, void* argument) {
  return executor::attempt([&] {
    executor::resolve(in).enqueue_always([=] {
      callback(in, success, argument);
      return success;
    });
    return success;
  });
}

}  // namespace pagedkv::runtime
