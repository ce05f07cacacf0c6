#pragma once

#include <pagedkv/core/checked.hpp>
#include <pagedkv/core/error.hpp>
#include <pagedkv/policy/allocator/concept.hpp>
#include <pagedkv/policy/eviction/concept.hpp>
#include <pagedkv/tier/record.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

namespace pagedkv {

/// Host memory as a tier: so many records, in one run from the allocator, evicted in this order. Slower tiers read and
/// write through it, so it has a few records even where it is not meant to keep any. A device reaches it if the memory
/// is pinned: `host_tier<hip::pinned_allocator>`.
template <allocator Allocator, eviction_policy Eviction>
struct basic_host_tier {
  using allocator_type = Allocator;
  using eviction_type = Eviction;

  /// The name in tables and labels.
  static constexpr std::string_view name = "host";
  static_assert(on_host<Allocator> && provides_memory<Allocator>, "a host tier needs memory that the host reaches");

  std::int32_t num_records = 0;  // blocks that it has room for
  Allocator memory = {};         // where they lie
};

namespace detail {

/// The memory of a host tier.
template <allocator Allocator>
class host_records {
 public:
  /// Throws `exception` when the allocator is exhausted.
  host_records(Allocator memory, record_format format, std::int32_t num_records)
      : memory_(std::move(memory)), format_(std::move(format)), num_records_(num_records) {
    if (num_records < 1) {
      fail({error_code::invalid_argument, "host_tier.num_records", num_records, 1});
    }
    auto size = checked_size{};
    const auto bytes = size.multiply(static_cast<std::int64_t>(format_.record_bytes()), num_records);
    base_ = size.overflowed() ? nullptr : memory_.allocate(static_cast<std::size_t>(bytes), record_alignment);
    if (base_ == nullptr) {
      fail({error_code::out_of_memory, "number of host records", num_records});
    }
  }
  host_records(const host_records&) = delete;
  host_records& operator=(const host_records&) = delete;
  ~host_records() { memory_.deallocate(base_, bytes()); }

  [[nodiscard]] const record_format& format() const noexcept { return format_; }
  [[nodiscard]] std::size_t bytes() const noexcept {
    return format_.record_bytes() * static_cast<std::size_t>(num_records_);
  }
  [[nodiscard]] std::span<std::byte> record(std::int32_t place) const noexcept {
    return {base_ + format_.record_bytes() * static_cast<std::size_t>(place), format_.record_bytes()};
  }
  /// The blocks in the records.
  [[nodiscard]] block_storage_view blocks(const block_storage_view& device) const noexcept {
    return format_.payloads(device, base_, num_records_);
  }

 private:
  Allocator memory_;
  record_format format_;
  std::int32_t num_records_;
  std::byte* base_ = nullptr;
};

}  // namespace detail

}  // namespace pagedkv
