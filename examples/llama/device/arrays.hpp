#pragma once

#include <pagedkv/core/result.hpp>
#include <pagedkv/device/allocators.hpp>
#include <pagedkv/device/device.hpp>
#include <pagedkv/storage/memory_plan.hpp>

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

namespace llama::device {

namespace hip = pagedkv::hip;
namespace runtime = pagedkv::runtime;

/// Numbers in memory of one allocator, which an object owns. Throws `pagedkv::exception` where there is no room.
template <class T, class Allocator>
class array {
 public:
  array() = default;
  explicit array(std::size_t size)
      : size_(size), data_(reinterpret_cast<T*>(allocator_.allocate(bytes(), pagedkv::block_alignment))) {
    if (data_ == nullptr) {
      throw pagedkv::exception(pagedkv::error{pagedkv::error_code::out_of_memory, "bytes of an array of the model",
                                              static_cast<std::int64_t>(bytes())});
    }
  }
  array(array&& other) noexcept
      : allocator_(std::move(other.allocator_)),
        size_(std::exchange(other.size_, 0)),
        data_(std::exchange(other.data_, nullptr)) {}
  array& operator=(array&& other) noexcept {
    std::swap(allocator_, other.allocator_);
    std::swap(size_, other.size_);
    std::swap(data_, other.data_);
    return *this;
  }
  ~array() {
    if (data_ != nullptr) {
      allocator_.deallocate(reinterpret_cast<std::byte*>(data_), bytes());
    }
  }

  [[nodiscard]] T* data() const noexcept { return data_; }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] std::span<T> all() const noexcept { return {data_, size_}; }

 private:
  [[nodiscard]] std::size_t bytes() const noexcept { return std::max(size_, std::size_t{1}) * sizeof(T); }

  Allocator allocator_;
  std::size_t size_ = 0;
  T* data_ = nullptr;
};

template <class T>
using device_array = array<T, hip::device_allocator>;
/// In memory of the host that copies to and from the device need not wait for.
template <class T>
using pinned_array = array<T, hip::pinned_allocator>;

template <class T>
void copy(T* to, const T* from, std::size_t count, runtime::copy_kind kind, runtime::stream stream) {
  if (count > 0) {
    hip::require(runtime::copy_async(to, from, count * sizeof(T), kind, stream), "the copy of an array");
  }
}

/// An array of a step: the host fills its copy, `upload` copies that to the device.
template <class T>
class step_array {
 public:
  explicit step_array(std::size_t most) : host_(most), device_(most) {}

  void clear() noexcept { size_ = 0; }
  void push_back(T value) {
    assert(size_ < host_.size());
    host_.data()[size_++] = value;
  }
  template <class Values>
  void assign(const Values& values) {
    assert(values.size() <= host_.size());
    std::copy(values.begin(), values.end(), host_.data());
    size_ = values.size();
  }
  void upload(runtime::stream stream) const {
    copy(device_.data(), static_cast<const T*>(host_.data()), size_, runtime::host_to_device, stream);
  }

  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] const T* on_device() const noexcept { return device_.data(); }
  [[nodiscard]] std::span<const T> of_device() const noexcept { return {device_.data(), size_}; }

 private:
  pinned_array<T> host_;
  device_array<T> device_;
  std::size_t size_ = 0;
};

}  // namespace llama::device
