#pragma once

#include <pagedkv/policy/axis.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace pagedkv {

/// Names the contents of a chain of blocks up to the end of one of them, in every process, in 128 bits: see
/// `chained_key`.
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

namespace detail {

template <class T>
concept writes_records = requires(T t, std::span<const record_transfer> batch, std::span<transfer_outcome> outcomes) {
  { t.write(batch, outcomes) } noexcept -> std::same_as<void>;
};
template <class T>
concept reads_records = requires(T t, std::span<const record_transfer> batch, std::span<transfer_outcome> outcomes) {
  { t.read(batch, outcomes) } noexcept -> std::same_as<void>;
};
template <class T>
concept erases_records = requires(T t, std::span<const record_transfer> batch, std::span<transfer_outcome> outcomes) {
  { t.erase(batch, outcomes) } noexcept -> std::same_as<void>;
};
template <class T>
concept counts_places = requires(const T& t) {
  { t.num_places() } noexcept -> std::same_as<std::int64_t>;
};
template <class T>
concept has_no_places = !requires(T t) { t.num_places(); };

template <class T>
concept has_num_records = requires(const T& t) {
  { t.num_records } -> std::convertible_to<std::int32_t>;
};

}  // namespace detail

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
/// `t.num_places()`, in the form of `tier_with_places`. A tier without places finds records by their keys and makes
/// room by itself.
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
concept tier = std::movable<T> && detail::writes_records<T> && detail::reads_records<T> && detail::erases_records<T> &&
               (detail::has_no_places<T> || detail::counts_places<T>) && detail::has_name<T>;

/// A tier whose records lie in numbered places, which its caller gives to them.
template <class T>
concept tier_with_places = tier<T> && detail::counts_places<T>;

/// Host memory as a tier, the first behind the device: so many records, in memory from its allocator, evicted by its
/// policy.
template <class T>
concept memory_tier = requires {
  typename T::allocator_type;
  typename T::eviction_type;
} && detail::has_num_records<T>;

/// A tier among the policies of a cache.
template <class T>
concept tier_policy = memory_tier<T> || (requires { sizeof(T); } && tier<T>);

/// The tiers of a cache: none, or host memory and slower ones in their order. With slower ones alone, host memory is
/// that of the defaults.
struct tiers_axis {
  template <class Policy>
  static constexpr bool takes = tier_policy<Policy>;

 private:
  template <class Policy>
  static constexpr bool resembles_memory =
      requires { typename Policy::eviction_type; } || requires { Policy::num_records; };

 public:
  template <class Policy>
  static constexpr bool resembles = resembles_memory<Policy> || requires { &Policy::write; } || requires {
    &Policy::read;
  } || requires(Policy policy, std::span<const record_transfer> batch, std::span<transfer_outcome> outcomes) {
    policy.write(batch, outcomes);
  } || requires(Policy policy, std::span<const record_transfer> batch, std::span<transfer_outcome> outcomes) {
    policy.read(batch, outcomes);
  };

  template <class Policy>
  struct lacks {
    static constexpr auto unmet =
        detail::first_unmet({std::movable<Policy>, detail::writes_records<Policy>, detail::reads_records<Policy>,
                             detail::erases_records<Policy>,
                             detail::has_no_places<Policy> || detail::counts_places<Policy>, detail::has_name<Policy>});
    static_assert(unmet != 0,
                  "this type is nearly a tier: it cannot be moved, and a cache keeps those that it is given; write a "
                  "move constructor and a move assignment");
    static_assert(unmet != 1,
                  "this type is nearly a tier: `write` is missing, may throw or has another form; write `void "
                  "write(std::span<const record_transfer> batch, std::span<transfer_outcome> outcomes) noexcept`");
    static_assert(unmet != 2,
                  "this type is nearly a tier: `read` is missing, may throw or has another form; write `void "
                  "read(std::span<const record_transfer> batch, std::span<transfer_outcome> outcomes) noexcept`");
    static_assert(unmet != 3,
                  "this type is nearly a tier: `erase` is missing, may throw or has another form; write `void "
                  "erase(std::span<const record_transfer> batch, std::span<transfer_outcome> outcomes) noexcept`");
    static_assert(unmet != 4,
                  "this type is nearly a tier: `num_places` may throw or has another form; write `std::int64_t "
                  "num_places() const noexcept`, or leave it out where records have no places");
    static_assert(unmet != 5,
                  "this type is nearly a tier: `name` is missing or has another type; write `static constexpr "
                  "std::string_view name`");
  };

  template <class Policy>
    requires resembles_memory<Policy>
  struct lacks<Policy> {
    static constexpr auto unmet = detail::first_unmet(
        {requires { typename Policy::allocator_type;
  }, requires { typename Policy::eviction_type; }, detail::has_num_records<Policy>});
static_assert(unmet != 0,
              "this type is nearly host memory as a tier: `allocator_type` is missing; name the allocator of its "
              "records, or write `host_tier<>`");
static_assert(unmet != 1,
              "this type is nearly host memory as a tier: `eviction_type` is missing; name the eviction policy of "
              "its records, or write `host_tier<>`");
static_assert(unmet != 2,
              "this type is nearly host memory as a tier: `num_records` is missing or has another type; write "
              "`std::int32_t num_records`, or `host_tier<>`");
};
};

}  // namespace pagedkv
