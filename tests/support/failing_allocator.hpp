#pragma once

#include <pagedkv/policy/allocator/host_allocator.hpp>

#include <cstdint>

namespace pagedkv::test {

/// The plan and the record of failing allocators; outlives them.
struct allocation_log {
  std::int64_t fail_at = 0;  // the call to `allocate` that fails, counted from 1; 0 for none
  std::int64_t calls = 0;
  std::int64_t live = 0;  // allocations not yet released
  std::int64_t live_bytes = 0;
};

/// `Upstream`, except that the n-th call fails. Copies share one log.
template <allocator Upstream = host_allocator>
class failing_allocator {
 public:
  explicit failing_allocator(allocation_log& log) : log_(&log) {}

  [[nodiscard]] std::byte* allocate(std::size_t bytes, std::size_t alignment) noexcept {
    ++log_->calls;
    auto* const pointer = log_->calls == log_->fail_at ? nullptr : upstream_.allocate(bytes, alignment);
    if (pointer != nullptr) {
      ++log_->live;
      log_->live_bytes += static_cast<std::int64_t>(bytes);
    }
    return pointer;
  }

  void deallocate(std::byte* pointer, std::size_t bytes) noexcept {
    --log_->live;
    log_->live_bytes -= static_cast<std::int64_t>(bytes);
    upstream_.deallocate(pointer, bytes);
  }

 private:
  Upstream upstream_;
  allocation_log* log_;
};

static_assert(allocator<failing_allocator<>>);

}  // namespace pagedkv::test
