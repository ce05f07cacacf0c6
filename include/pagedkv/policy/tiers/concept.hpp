#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace pagedkv {

/// Names the contents of a chain of blocks up to the end of one of them, in every process: see `chained_key`.
struct record_key {
  std::uint64_t low = 0;
  std::uint64_t high = 0;

  friend bool operator==(const record_key&, const record_key&) = default;
};

/// One record on its way to a tier or back.
struct record_transfer {
  record_key key;              // of its contents: see `record_identity`
  std::int64_t place = 0;      // in a tier with places: the caller's choice, from 0; others ignore it
  std::span<std::byte> bytes;  // the whole record, header first; at `record_alignment`; none to erase
};

/// How a transfer ended.
enum class transfer_outcome : std::uint8_t {
  done,     // read or written as a whole, as far as the tier can tell
  missing,  // read: the tier has no such record, or not this one under its key
  failed,   // anything else, a timeout included; a write may have left a torn record
};

/// A place for K/V behind the device, in records: see `record_format`. The caller's transfer thread calls `write`,
/// `read` and `erase`, one at a time; each executes a batch as deep as the tier can and returns when every transfer has
/// an outcome, within a time that the tier bounds. A tier need not notice damage: the reader verifies every record.
///
/// | requirement                  | meaning                                                                  |
/// |------------------------------|--------------------------------------------------------------------------|
/// | `T::name`                    | for tables                                                               |
/// | `t.write(batch, outcomes)`   | stores records; an outcome each, of `done` only when it is durable enough |
/// |                              | to be read back by this process                                          |
/// | `t.read(batch, outcomes)`    | fetches records into `bytes`                                             |
/// | `t.erase(batch, outcomes)`   | removes records, or damages them beyond recognition, now and for every   |
/// |                              | process later; `done` also where there was none                          |
///
/// A tier whose records lie in numbered places, of which the caller decides the use, says their number by
/// `t.num_places()`. A tier without places finds records by their keys and makes room by itself.
///
/// A minimal model:
///
///     struct own_tier {
///       static constexpr std::string_view name = "own_tier";
///       void write(std::span<const record_transfer> batch, std::span<transfer_outcome> outcomes) noexcept;
///       void read(std::span<const record_transfer> batch, std::span<transfer_outcome> outcomes) noexcept;
///       void erase(std::span<const record_transfer> batch, std::span<transfer_outcome> outcomes) noexcept;
///     };
template <class T>
concept tier =
    std::movable<T> && requires(T t, std::span<const record_transfer> batch, std::span<transfer_outcome> outcomes) {
      { T::name } -> std::convertible_to<std::string_view>;
      { t.write(batch, outcomes) } noexcept -> std::same_as<void>;
      { t.read(batch, outcomes) } noexcept -> std::same_as<void>;
      { t.erase(batch, outcomes) } noexcept -> std::same_as<void>;
    };

/// A tier whose records lie in numbered places, which its caller gives to them.
template <class T>
concept tier_with_places = tier<T> && requires(const T& t) {
  { t.num_places() } noexcept -> std::same_as<std::int64_t>;
};

/// Host memory as a tier, the first behind the device: so many records, in memory from its allocator, evicted by its
/// policy.
template <class T>
concept memory_tier = requires(const T& t) {
  typename T::allocator_type;
  typename T::eviction_type;
  { t.num_records } -> std::convertible_to<std::int32_t>;
};

/// A tier among the policies of a cache.
template <class T>
concept tier_policy = memory_tier<T> || (requires { sizeof(T); } && tier<T>);

/// The tiers of a cache: none, or host memory and slower ones in their order. With slower ones alone, host memory is that
/// of the defaults.
struct tiers_axis {
  template <class Policy>
  static constexpr bool takes = tier_policy<Policy>;
};

}  // namespace pagedkv
