#pragma once

#include "../support/static_scales.hpp"

#include <pagedkv/device/backend.hpp>
#include <pagedkv/device/stream.hpp>
#include <pagedkv/host/backend.hpp>

#include <catch2/catch_test_macros.hpp>

#include <cstring>
#include <string>
#include <vector>

// Tests that are also built for devices are in named namespaces: nvcc confuses an unnamed one with those that Catch2
// nests inside it.

namespace pagedkv::test {

/// The target of block operations on the host: plain code.
class host_target {
 public:
  static constexpr bool is_device = false;
  static constexpr const char* name = "host";

  [[nodiscard]] static std::string why_absent() { return ""; }

  host_backend backend;

  [[nodiscard]] host_backend::stream_type stream() const { return {}; }
  [[nodiscard]] void* allocate(std::size_t bytes) const { return ::operator new(bytes, std::align_val_t{4096}); }
  void release(void* memory) const { ::operator delete(memory, std::align_val_t{4096}); }
  void upload(void* to, const void* from, std::size_t bytes) const { std::memcpy(to, from, bytes); }
  void download(void* to, const void* from, std::size_t bytes) const { std::memcpy(to, from, bytes); }
};

/// A device of the HIP or CUDA runtime, or of the host executor, whose device 0 has waves of 64 lanes and devices 1 and
/// 2 waves of 32.
template <int Device>
class hip_target {
 public:
  static constexpr bool is_device = true;
  static constexpr const char* name = Device == 0 ? "hip device 0" : Device == 1 ? "hip device 1" : "hip device 2";

  [[nodiscard]] static std::string why_absent() {
    const auto found = hip::check_device(Device);
    return found ? "" : found.error().message();
  }

  hip_backend backend = hip_backend(Device);

  [[nodiscard]] runtime::stream stream() const { return stream_.get(); }

  [[nodiscard]] void* allocate(std::size_t bytes) const {
    const auto scope = hip::device_scope(Device);
    auto* memory = static_cast<void*>(nullptr);
    hip::require(runtime::allocate(&memory, bytes), "the allocation of device memory");
    return memory;
  }

  void release(void* memory) const { static_cast<void>(runtime::release(memory)); }

  void upload(void* to, const void* from, std::size_t bytes) const { copy(to, from, bytes, runtime::host_to_device); }
  void download(void* to, const void* from, std::size_t bytes) const { copy(to, from, bytes, runtime::device_to_host); }

 private:
  void copy(void* to, const void* from, std::size_t bytes, runtime::copy_kind kind) const {
    hip::require(runtime::copy_async(to, from, bytes, kind, stream_.get()), "the copy of memory");
    stream_.synchronize().value();
  }

  hip::stream stream_ = hip::stream(Device);
};

/// Values in memory that a target's operations can access.
template <class T, class Target>
class target_array {
 public:
  target_array(const Target& target, const std::vector<T>& values) : target_(&target), size_(values.size()) {
    data_ = static_cast<T*>(target.allocate((size_ == 0 ? 1 : size_) * sizeof(T)));
    if (size_ > 0) {
      target.upload(data_, values.data(), size_ * sizeof(T));
    }
  }

  target_array(const target_array&) = delete;
  target_array& operator=(const target_array&) = delete;
  ~target_array() { target_->release(data_); }

  [[nodiscard]] T* data() const { return data_; }
  [[nodiscard]] std::size_t size() const { return size_; }

  [[nodiscard]] std::vector<T> values() const {
    auto copy = std::vector<T>(size_);
    if (size_ > 0) {
      target_->download(copy.data(), data_, size_ * sizeof(T));
    }
    return copy;
  }

 private:
  const Target* target_;
  std::size_t size_;
  T* data_;
};

/// The static scales of an element in memory that a target's operations can access; of others, nothing.
template <class Element, class Target>
class target_scales {
 public:
  template <class Config>
  target_scales(const Target& target, const Config& config) : scales_(config), array_(target, scales_.numbers) {}

  /// The view with these scales.
  [[nodiscard]] block_storage_view in(block_storage_view view) const {
    view.static_scales = array_.size() == 0 ? nullptr : array_.data();
    return view;
  }

 private:
  static_scales<Element> scales_;
  target_array<float, Target> array_;
};

/// The target, or a visible skip where it is absent.
template <class Target>
[[nodiscard]] Target require_target() {
  if (const auto why = Target::why_absent(); !why.empty()) {
    SKIP(Target::name << " is absent: " << why);
  }
  return Target();
}

}  // namespace pagedkv::test
