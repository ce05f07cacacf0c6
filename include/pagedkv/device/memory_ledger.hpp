#pragma once

#include <pagedkv/policy/allocator/host_allocator.hpp>

#include <array>
#include <atomic>
#include <cstdint>
#include <string_view>
#include <utility>

namespace pagedkv::hip {

/// The use of an allocation.
enum class memory_purpose : std::uint8_t {
  blocks,      // block storage on the device
  swap_space,  // blocks in pinned host memory
  workspace,   // rows, tables and slot mappings on the device
};

inline constexpr auto num_memory_purposes = std::size_t{3};

[[nodiscard]] constexpr std::string_view describe(memory_purpose purpose) noexcept {
  constexpr auto names = std::array<std::string_view, num_memory_purposes>{"blocks", "swap space", "workspace"};
  return names[static_cast<std::size_t>(purpose)];
}

/// Bytes in use by purpose, and their peaks. Thread-safe.
class memory_ledger {
 public:
  struct count {
    std::int64_t bytes = 0;
    std::int64_t peak_bytes = 0;
  };

  void add(memory_purpose purpose, std::size_t bytes) noexcept {
    at(purpose).add(static_cast<std::int64_t>(bytes));
    total_.add(static_cast<std::int64_t>(bytes));
  }

  void remove(memory_purpose purpose, std::size_t bytes) noexcept {
    at(purpose).add(-static_cast<std::int64_t>(bytes));
    total_.add(-static_cast<std::int64_t>(bytes));
  }

  [[nodiscard]] count of(memory_purpose purpose) const noexcept {
    return counters_[static_cast<std::size_t>(purpose)].read();
  }

  /// Over all purposes; its peak is the peak of the sum, not the sum of the peaks.
  [[nodiscard]] count total() const noexcept { return total_.read(); }

 private:
  class counter {
   public:
    void add(std::int64_t bytes) noexcept {
      const auto now = bytes_.fetch_add(bytes, std::memory_order_relaxed) + bytes;
      auto peak = peak_bytes_.load(std::memory_order_relaxed);
      while (now > peak && !peak_bytes_.compare_exchange_weak(peak, now, std::memory_order_relaxed)) {
      }
    }

    [[nodiscard]] count read() const noexcept {
      return {bytes_.load(std::memory_order_relaxed), peak_bytes_.load(std::memory_order_relaxed)};
    }

   private:
    std::atomic<std::int64_t> bytes_ = 0;
    std::atomic<std::int64_t> peak_bytes_ = 0;
  };

  [[nodiscard]] counter& at(memory_purpose purpose) noexcept { return counters_[static_cast<std::size_t>(purpose)]; }

  std::array<counter, num_memory_purposes> counters_;
  counter total_;
};

/// `Allocator`, with every allocation counted in a ledger, which must outlive it.
template <allocator Allocator>
class accounted_allocator {
 public:
  static constexpr bool on_host = pagedkv::on_host<Allocator>;

  accounted_allocator(Allocator upstream, memory_ledger& ledger, memory_purpose purpose) noexcept
      : upstream_(std::move(upstream)), ledger_(&ledger), purpose_(purpose) {}

  [[nodiscard]] std::byte* allocate(std::size_t bytes, std::size_t alignment) noexcept {
    auto* const pointer = upstream_.allocate(bytes, alignment);
    if (pointer != nullptr) {
      ledger_->add(purpose_, bytes);
    }
    return pointer;
  }

  void deallocate(std::byte* pointer, std::size_t bytes) noexcept {
    upstream_.deallocate(pointer, bytes);
    ledger_->remove(purpose_, bytes);
  }

 private:
  Allocator upstream_;
  memory_ledger* ledger_;
  memory_purpose purpose_;
};

static_assert(allocator<accounted_allocator<host_allocator>>);

}  // namespace pagedkv::hip
