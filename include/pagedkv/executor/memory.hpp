#pragma once

#include <sys/mman.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>
#include <shared_mutex>

namespace pagedkv::executor {

/// The memory that kernels may touch. Unmapped or foreign memory surrounds every allocation. Fresh memory is filled
/// with 0xFF, which is NaN as floating point; but large allocations and mapped memory are zeros, because they take
/// physical pages only where they are touched. Thread-safe.
class memory_map {
 public:
  static constexpr auto large = std::size_t{1} << 20;     // larger allocations get pages of their own
  static constexpr auto room = std::size_t{4096};         // bytes on either side of an allocation
  static constexpr auto capacity = std::size_t{1} << 40;  // of the emulated device; only touched pages take memory

  /// Null when the emulated device is full.
  [[nodiscard]] void* allocate(std::size_t bytes) noexcept {
    const auto lock = std::unique_lock(mutex_);
    if (bytes == 0 || bytes > capacity - used_) {
      return nullptr;
    }
    auto* const start = bytes < large ? allocate_small(bytes) : allocate_large(bytes);
    if (start != nullptr) {
      ranges_.emplace(start, bytes);
      used_ += bytes;
    }
    return start;
  }

  /// False for a pointer that was not allocated here, or already released.
  [[nodiscard]] bool release(void* pointer) noexcept {
    const auto lock = std::unique_lock(mutex_);
    auto* const start = static_cast<std::byte*>(pointer);
    const auto found = ranges_.find(start);
    if (found == ranges_.end() || reservation_of(start) != reservations_.end()) {
      return false;
    }
    const auto bytes = found->second;
    ranges_.erase(found);
    used_ -= bytes;
    generation_.fetch_add(1, std::memory_order_release);
    if (bytes < large) {
      std::free(start - room);
    } else {
      ::munmap(start - room, mapped_bytes(bytes));
    }
    return true;
  }

  /// Addresses without memory, and room after them that no memory takes. Null when there are none.
  [[nodiscard]] void* reserve(std::size_t bytes) noexcept {
    if (bytes == 0) {
      return nullptr;
    }
    const auto lock = std::unique_lock(mutex_);
    void* const start = ::mmap(nullptr, bytes + room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED) {
      return nullptr;
    }
    reservations_.emplace(static_cast<std::byte*>(start), bytes);
    return start;
  }

  /// False unless this is a whole reservation in which nothing is mapped.
  [[nodiscard]] bool release_reservation(void* pointer, std::size_t bytes) noexcept {
    const auto lock = std::unique_lock(mutex_);
    const auto found = reservations_.find(static_cast<std::byte*>(pointer));
    if (found == reservations_.end() || found->second != bytes || maps_within(found->first, bytes)) {
      return false;
    }
    ::munmap(pointer, bytes + room);
    reservations_.erase(found);
    return true;
  }

  enum class mapping { done, refused, device_full };

  /// One piece of memory behind reserved addresses that have none. Kernels may touch it after `allow`.
  [[nodiscard]] mapping map(void* pointer, std::size_t bytes) noexcept {
    const auto lock = std::unique_lock(mutex_);
    auto* const start = static_cast<std::byte*>(pointer);
    if (!reserved(start, bytes) || maps_within(start, bytes)) {
      return mapping::refused;
    }
    if (bytes > capacity - used_) {
      return mapping::device_full;
    }
    pieces_.emplace(start, bytes);
    used_ += bytes;
    return mapping::done;
  }

  /// False unless these are whole pieces without a gap.
  [[nodiscard]] bool allow(void* pointer, std::size_t bytes) noexcept {
    const auto lock = std::unique_lock(mutex_);
    auto* const start = static_cast<std::byte*>(pointer);
    if (!whole_pieces(start, bytes) || ::mprotect(start, bytes, PROT_READ | PROT_WRITE) != 0) {
      return false;
    }
    forget_range(start, bytes);
    auto first = static_cast<const std::byte*>(start);
    auto last = first + bytes;
    if (const auto after = ranges_.find(last); after != ranges_.end()) {
      last += after->second;
      ranges_.erase(after);
    }
    if (auto before = ranges_.lower_bound(first); before != ranges_.begin()) {
      --before;
      if (before->first + before->second == first) {
        first = before->first;
      }
    }
    ranges_[first] = static_cast<std::size_t>(last - first);
    return true;
  }

  /// Takes the memory of whole pieces away. False if it is anything else.
  [[nodiscard]] bool unmap(void* pointer, std::size_t bytes) noexcept {
    const auto lock = std::unique_lock(mutex_);
    auto* const start = static_cast<std::byte*>(pointer);
    if (!whole_pieces(start, bytes)) {
      return false;
    }
    pieces_.erase(pieces_.lower_bound(start), pieces_.lower_bound(start + bytes));
    forget_range(start, bytes);
    used_ -= bytes;
    generation_.fetch_add(1, std::memory_order_release);
    ::mmap(start, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    return true;
  }

  /// Whether all of [pointer, pointer + bytes) lies in one allocation, or in mapped memory without a gap.
  [[nodiscard]] bool contains(const void* pointer, std::size_t bytes) const noexcept {
    const auto* const start = static_cast<const std::byte*>(pointer);
    auto& recent = recently_hit();
    const auto generation = generation_.load(std::memory_order_acquire);
    if (recent.generation != generation) {
      recent = {};
      recent.generation = generation;
    }
    for (const auto& each : recent.ranges) {
      if (each.covers(start, bytes)) {
        return true;
      }
    }
    const auto found = find(start);
    if (!found.covers(start, bytes)) {
      return false;
    }
    recent.ranges[recent.next++ % recent.ranges.size()] = found;
    return true;
  }

  [[nodiscard]] std::size_t used() const noexcept {
    const auto lock = std::shared_lock(mutex_);
    return used_;
  }

 private:
  struct range {
    const std::byte* start = nullptr;
    std::size_t bytes = 0;

    [[nodiscard]] bool covers(const std::byte* pointer, std::size_t size) const noexcept {
      const auto offset = reinterpret_cast<std::uintptr_t>(pointer) - reinterpret_cast<std::uintptr_t>(start);
      return offset < bytes && size <= bytes - offset;
    }
  };

  // Lanes look up the same few allocations millions of times; only the first look-up takes the lock and walks the tree.
  struct recent_ranges {
    std::uint64_t generation = 0;
    std::array<range, 8> ranges{};
    std::size_t next = 0;
  };

  [[nodiscard]] static recent_ranges& recently_hit() noexcept {
    static thread_local auto recent = recent_ranges{};
    return recent;
  }

  [[nodiscard]] static std::size_t mapped_bytes(std::size_t bytes) noexcept {
    return (bytes + room - 1) / room * room + 2 * room;
  }

  [[nodiscard]] static std::byte* allocate_small(std::size_t bytes) noexcept {
    auto* const whole = static_cast<std::byte*>(std::aligned_alloc(room, mapped_bytes(bytes)));
    if (whole == nullptr) {
      return nullptr;
    }
    std::memset(whole + room, 0xFF, bytes);
    return whole + room;
  }

  [[nodiscard]] static std::byte* allocate_large(std::size_t bytes) noexcept {
    const auto mapped = mapped_bytes(bytes);
    auto* const whole =
        ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (whole == MAP_FAILED) {
      return nullptr;
    }
    auto* const start = static_cast<std::byte*>(whole) + room;
    ::mprotect(whole, room, PROT_NONE);
    ::mprotect(start + (mapped - 2 * room), room, PROT_NONE);
    return start;
  }

  [[nodiscard]] std::map<const std::byte*, std::size_t>::const_iterator reservation_of(
      const std::byte* pointer) const noexcept {
    auto found = reservations_.upper_bound(pointer);
    if (found == reservations_.begin() || !range{std::prev(found)->first, std::prev(found)->second}.covers(pointer, 1)) {
      return reservations_.end();
    }
    return --found;
  }

  [[nodiscard]] bool reserved(const std::byte* pointer, std::size_t bytes) const noexcept {
    const auto found = reservation_of(pointer);
    return found != reservations_.end() && range{found->first, found->second}.covers(pointer, bytes);
  }

  [[nodiscard]] bool maps_within(const std::byte* pointer, std::size_t bytes) const noexcept {
    const auto after = pieces_.lower_bound(pointer + bytes);
    return after != pieces_.begin() && std::prev(after)->first + std::prev(after)->second > pointer;
  }

  [[nodiscard]] bool whole_pieces(const std::byte* pointer, std::size_t bytes) const noexcept {
    auto next = pointer;
    for (auto piece = pieces_.lower_bound(pointer);
         piece != pieces_.end() && piece->first == next && next < pointer + bytes; ++piece) {
      next += piece->second;
    }
    return bytes != 0 && next == pointer + bytes;
  }

  /// Makes mapped memory unknown to `contains`, where it is known.
  void forget_range(const std::byte* pointer, std::size_t bytes) noexcept {
    const auto* const end = pointer + bytes;
    auto known = ranges_.lower_bound(pointer);
    if (known != ranges_.begin()) {
      --known;  // it may reach into the memory
    }
    while (known != ranges_.end() && known->first < end) {
      const auto [first, size] = *known;
      if (first + size <= pointer) {
        ++known;
        continue;
      }
      known = ranges_.erase(known);
      if (first < pointer) {
        ranges_.emplace(first, static_cast<std::size_t>(pointer - first));
      }
      if (first + size > end) {
        ranges_.emplace(end, static_cast<std::size_t>(first + size - end));
      }
    }
  }

  [[nodiscard]] range find(const std::byte* pointer) const noexcept {
    const auto lock = std::shared_lock(mutex_);
    auto after = ranges_.upper_bound(pointer);
    if (after == ranges_.begin()) {
      return {};
    }
    --after;
    return {after->first, after->second};
  }

  mutable std::shared_mutex mutex_;
  std::map<const std::byte*, std::size_t> ranges_;
  std::map<const std::byte*, std::size_t> reservations_;
  std::map<const std::byte*, std::size_t> pieces_;  // mapped memory; parts that may be touched are also in `ranges_`
  std::size_t used_ = 0;
  std::atomic<std::uint64_t> generation_ = 1;
};

/// One map of device and pinned host memory: kernels may touch both.
[[nodiscard]] inline memory_map& memory() {
  static auto map = memory_map();
  return map;
}

}  // namespace pagedkv::executor
