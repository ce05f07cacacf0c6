#pragma once

#include <pagedkv/kernels/platform.hpp>

#include <optional>
#include <vector>

namespace pagedkv::test {

/// Memory that kernels may touch, filled with `T{}`. Cannot be moved.
template <class T>
class device_array {
 public:
  explicit device_array(std::size_t size) : size_(size) {
    auto* memory = static_cast<void*>(nullptr);
    if (size > 0 && runtime::allocate(&memory, size * sizeof(T)) != runtime::success) {
      throw std::bad_alloc();
    }
    data_ = static_cast<T*>(memory);
    std::fill_n(data_, size, T{});
  }

  explicit device_array(const std::vector<T>& values) : device_array(values.size()) {
    std::copy(values.begin(), values.end(), data_);
  }

  device_array(const device_array&) = delete;
  device_array& operator=(const device_array&) = delete;
  ~device_array() { static_cast<void>(runtime::release(data_)); }

  [[nodiscard]] T* data() const noexcept { return data_; }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] T& operator[](std::size_t i) const noexcept { return data_[i]; }
  [[nodiscard]] std::vector<T> values() const { return {data_, data_ + size_}; }

 private:
  T* data_ = nullptr;
  std::size_t size_;
};

/// Selects a device of the executor, by its wave size, until the end of the scope.
class wave_size_scope {
 public:
  explicit wave_size_scope(int wave_size) { static_cast<void>(runtime::set_device(wave_size == 64 ? 0 : 1)); }
  wave_size_scope(const wave_size_scope&) = delete;
  wave_size_scope& operator=(const wave_size_scope&) = delete;
  ~wave_size_scope() { static_cast<void>(runtime::set_device(0)); }
};

/// Runs a kernel to its end. Returns its fault, if any.
template <auto Kernel, class... Arguments>
[[nodiscard]] std::optional<executor::fault> run_kernel(const kernels::launch_shape& shape, Arguments... arguments) {
  const auto launched = kernels::launch<Kernel>(shape, nullptr, arguments...);
  if (launched != runtime::success) {
    throw std::runtime_error(runtime::error_text(launched));
  }
  static_cast<void>(runtime::synchronize_stream(nullptr));
  return executor::faults().take();
}

}  // namespace pagedkv::test
