#pragma once

#include <xxhash.h>
#include <pagedkv/detail/runs.hpp>

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <type_traits>

namespace pagedkv::detail {

/// The one form of all that is written to be read back: headers of records, of a tier's files, of sessions and of
/// offers. In bytes: `fields`, parts in their order, each at a multiple of 8, and zeros up to `size`. The checksum is
/// of all of them, so a header with any byte changed, or cut anywhere, is none.
///
/// `Numbers` has no padding. Its `kind` is a letter, its `num_parts` the number of arrays that follow.
template <class Numbers>
class sealed_header {
 public:
  using parts_type = std::array<std::span<const std::byte>, Numbers::num_parts>;

  /// The first bytes, little endian.
  struct fields {
    std::array<char, 8> magic{'p', 'a', 'g', 'e', 'd', 'k', 'v', Numbers::kind};
    std::uint64_t version = 2;
    std::uint64_t checksum = 0;  // with this member 0
    std::uint64_t size = 0;
    std::array<std::uint64_t, Numbers::num_parts> part_bytes{};
    Numbers numbers{};
  };

  static_assert(std::is_trivially_copyable_v<fields> && std::has_unique_object_representations_v<fields>);
  static_assert(std::endian::native == std::endian::little, "headers are written as the host has numbers");

  fields first;
  parts_type parts;  // where the header lies

  /// The least size of a header with these parts.
  [[nodiscard]] static std::size_t least_size(const parts_type& parts) noexcept {
    auto end = sizeof(fields);
    for (const auto& part : parts) {
      end += rounded(part.size());
    }
    return end;
  }

  /// Makes all of `to` a header. False if the parts do not fit.
  [[nodiscard]] static bool seal(const Numbers& numbers, const parts_type& parts, std::span<std::byte> to) noexcept {
    if (least_size(parts) > to.size()) {
      return false;
    }
    auto first = fields{};
    first.size = to.size();
    first.numbers = numbers;
    std::memset(to.data(), 0, to.size());
    auto at = to.subspan(sizeof(fields));
    for (std::size_t i = 0; i < parts.size(); ++i) {
      first.part_bytes[i] = parts[i].size();
      copy_run(parts[i], at);
      at = at.subspan(rounded(parts[i].size()));
    }
    first.checksum = checksum_of(first, to);
    std::memcpy(to.data(), &first, sizeof(first));
    return true;
  }

  /// The first fields, not verified, of what may be a header. None for bytes of another kind or version.
  [[nodiscard]] static std::optional<fields> fields_in(std::span<const std::byte> bytes) noexcept {
    auto first = fields{};
    const auto right = first;
    if (bytes.size() < sizeof(first)) {
      return std::nullopt;
    }
    std::memcpy(&first, bytes.data(), sizeof(first));
    return first.magic == right.magic && first.version == right.version ? std::optional{first} : std::nullopt;
  }

  /// The header at the beginning of these bytes. None if it is damaged, or of another kind or version.
  [[nodiscard]] static std::optional<sealed_header> open(std::span<const std::byte> bytes) noexcept {
    const auto first = fields_in(bytes);
    if (!first || first->size < sizeof(fields) || first->size > bytes.size()) {
      return std::nullopt;
    }
    bytes = bytes.first(static_cast<std::size_t>(first->size));
    if (checksum_of(*first, bytes) != first->checksum) {
      return std::nullopt;
    }
    auto header = sealed_header{*first, {}};
    auto rest = bytes.subspan(sizeof(fields));
    for (std::size_t i = 0; i < header.parts.size(); ++i) {
      const auto size = static_cast<std::size_t>(first->part_bytes[i]);
      if (size > rest.size() || rounded(size) > rest.size()) {
        return std::nullopt;
      }
      header.parts[i] = rest.first(size);
      rest = rest.subspan(rounded(size));
    }
    return header;
  }

 private:
  [[nodiscard]] static constexpr std::size_t rounded(std::size_t size) noexcept { return (size + 7) / 8 * 8; }

  [[nodiscard]] static std::uint64_t checksum_of(fields first, std::span<const std::byte> bytes) noexcept {
    first.checksum = 0;
    const auto rest = bytes.subspan(sizeof(first));
    return XXH3_64bits_withSeed(&first, sizeof(first), XXH3_64bits(rest.data(), rest.size()));
  }
};

/// A part as the values that it was made of. `bytes`: where these may lie.
template <class Value>
[[nodiscard]] std::span<const Value> values_in(std::span<const std::byte> bytes) noexcept {
  return {reinterpret_cast<const Value*>(bytes.data()), bytes.size() / sizeof(Value)};
}

/// Copies a part. May throw `std::bad_alloc`.
template <class Values>
void copy_part(std::span<const std::byte> bytes, Values& values) {
  values.resize(bytes.size() / sizeof(values[0]));
  copy_run(bytes.first(values.size() * sizeof(values[0])), std::as_writable_bytes(std::span{values}));
}

}  // namespace pagedkv::detail
