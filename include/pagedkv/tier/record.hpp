#pragma once

#include <xxhash.h>
#include <pagedkv/core/ids.hpp>
#include <pagedkv/core/token_run.hpp>
#include <pagedkv/tier/record_format.hpp>
#include <pagedkv/tier/record_key.hpp>
#include <pagedkv/tier/sealed_header.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace pagedkv {

/// The contents that a record claims to hold: those of one block, after given ancestors.
struct record_identity {
  record_key key;     // of the chain up to the block's end
  record_key parent;  // of the chain before the block, or the root's
  pagedkv::salt salt{};
  std::int64_t position = 0;  // tokens before the block
  block_contents contents{std::span<const token>{}};
  std::int64_t index = 0;  // which of the records of the chain's end: of which group, and of which part of a state
};

/// The key of a record in tiers. A chain's records have different ones.
[[nodiscard]] inline record_key key_in_tier(const record_identity& identity) noexcept {
  const auto words = std::to_array({identity.key.low, identity.key.high, static_cast<std::uint64_t>(identity.index)});
  return identity.index == 0 ? identity.key : detail::to_record_key(XXH3_128bits(words.data(), sizeof(words)));
}

enum class record_fault : std::uint8_t {
  none,
  damaged,         // torn, truncated, flipped, of another version, or never a record
  other_format,    // of another model, element or layout
  other_contents,  // whole, and not the one that was asked for
};

namespace detail {

struct record_numbers {
  static constexpr auto kind = 'r';
  static constexpr auto num_parts = std::size_t{3};  // the format's text, keys, tokens

  std::uint64_t rest_checksum = 0;  // of all bytes behind the header
  record_key key;
  record_key parent;
  std::uint64_t salt = 0;
  std::int64_t position = 0;
  std::int64_t index = 0;
};
using record_header = sealed_header<record_numbers>;

[[nodiscard]] inline std::uint64_t rest_checksum(const record_format& format,
                                                 std::span<const std::byte> record) noexcept {
  const auto rest = record.subspan(format.header_bytes());
  return XXH3_64bits(rest.data(), rest.size());
}

}  // namespace detail

/// Writes the header of a record whose payload is in place, and fills what follows the payload with zeros. False if the
/// keys do not fit into the header: such a block is not recorded. Linear in the record.
[[nodiscard]] inline bool seal_record(const record_format& format, const record_identity& identity,
                                      std::span<std::byte> record) noexcept {
  if (record.size() != format.record_bytes()) {
    return false;
  }
  std::ranges::fill(record.subspan(format.header_bytes() + format.payload_bytes()), std::byte{});
  const auto numbers =
      detail::record_numbers{detail::rest_checksum(format, record),     identity.key,      identity.parent,
                             static_cast<std::uint64_t>(identity.salt), identity.position, identity.index};
  return detail::record_header::seal(numbers,
                                     {std::as_bytes(std::span{format.text}), std::as_bytes(identity.contents.keys),
                                      std::as_bytes(identity.contents.tokens)},
                                     record.first(format.header_bytes()));
}

struct record_reading {
  record_fault fault = record_fault::damaged;
  record_identity identity;  // if there is no fault
};

namespace detail {

[[nodiscard]] inline record_reading read_record_header(const record_format& format,
                                                       const std::optional<record_header>& header) noexcept {
  if (!header) {
    return {};
  }
  const auto& [text, keys, tokens] = header->parts;
  const auto contents = block_contents{values_in<token>(tokens), values_in<prefix_key>(keys)};
  if (!std::ranges::equal(text, std::as_bytes(std::span{format.text})) || header->first.size != format.header_bytes() ||
      !format.may_hold(contents.tokens.size())) {
    return {record_fault::other_format, {}};
  }
  const auto& numbers = header->first.numbers;
  return {record_fault::none,
          {numbers.key, numbers.parent, static_cast<salt>(numbers.salt), numbers.position, contents, numbers.index}};
}

}  // namespace detail

/// The identity that a record claims. `bytes`: of the header at least, aligned to 8; the identity's contents lie in
/// them. Does not look at the payload.
[[nodiscard]] inline record_reading read_record_header(const record_format& format,
                                                       std::span<const std::byte> bytes) noexcept {
  return detail::read_record_header(format, detail::record_header::open(bytes));
}

/// Whether a record is whole and holds these contents: compared exactly, its checksums included. Linear in the record.
[[nodiscard]] inline record_fault verify_record(const record_format& format, const record_identity& wanted,
                                                std::span<const std::byte> record) noexcept {
  if (record.size() != format.record_bytes()) {
    return record_fault::damaged;
  }
  const auto header = detail::record_header::open(record);
  const auto [fault, found] = detail::read_record_header(format, header);
  if (fault != record_fault::none) {
    return fault;
  }
  if (found.key != wanted.key || found.parent != wanted.parent || found.salt != wanted.salt ||
      found.position != wanted.position || found.index != wanted.index ||
      !std::ranges::equal(found.contents.tokens, wanted.contents.tokens) ||
      !std::ranges::equal(found.contents.keys, wanted.contents.keys)) {
    return record_fault::other_contents;
  }
  return detail::rest_checksum(format, record) == header->first.numbers.rest_checksum ? record_fault::none
                                                                                      : record_fault::damaged;
}

}  // namespace pagedkv
