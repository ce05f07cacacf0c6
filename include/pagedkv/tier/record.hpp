#pragma once

#include <xxhash.h>
#include <pagedkv/core/ids.hpp>
#include <pagedkv/core/token_run.hpp>
#include <pagedkv/tier/record_format.hpp>
#include <pagedkv/tier/record_key.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <type_traits>

namespace pagedkv {

/// The contents that a record claims to hold: those of one block, after given ancestors.
struct record_identity {
  record_key key;
  record_key parent;  // of the block before, or the root's
  pagedkv::salt salt{};
  std::int64_t position = 0;  // tokens before the block
  block_contents contents{std::span<const token>{}};
};

enum class record_fault : std::uint8_t {
  none,
  damaged,         // torn, truncated, flipped, or never a record
  other_format,    // of another model, element, layout or version
  other_contents,  // whole, and not the one that was asked for
};

namespace detail {

// In the record's first bytes, little endian; text, keys and tokens follow. The checksum of the header is last.
struct record_header {
  static constexpr auto right_magic = std::array<char, 8>{'p', 'a', 'g', 'e', 'd', 'k', 'v', '\n'};

  std::array<char, 8> magic{};
  std::uint64_t header_bytes = 0;
  std::uint64_t payload_bytes = 0;
  std::uint64_t payload_checksum = 0;
  record_key key;
  record_key parent;
  std::uint64_t salt = 0;
  std::int64_t position = 0;
  std::uint64_t num_keys = 0;
  std::uint64_t num_tokens = 0;
  std::uint64_t text_bytes = 0;
  std::uint64_t header_checksum = 0;  // with this member 0
};

static_assert(std::has_unique_object_representations_v<record_header> && sizeof(record_header) == 112);
static_assert(std::has_unique_object_representations_v<prefix_key>);
static_assert(std::endian::native == std::endian::little, "records are written as the host has numbers");

[[nodiscard]] inline std::uint64_t header_checksum(record_header header, std::span<const std::byte> bytes) noexcept {
  header.header_checksum = 0;
  const auto rest = XXH3_64bits(bytes.data() + sizeof(header), header.header_bytes - sizeof(header));
  return XXH3_64bits_withSeed(&header, sizeof(header), rest);
}

/// Keys first, because they are aligned most; text last.
struct header_parts {
  std::size_t keys;
  std::size_t tokens;
  std::size_t text;
  std::size_t end;
};

[[nodiscard]] inline header_parts parts_of(std::size_t num_keys, std::size_t num_tokens,
                                           std::size_t text_bytes) noexcept {
  const auto keys = sizeof(record_header);
  const auto tokens = keys + num_keys * sizeof(prefix_key);
  const auto text = tokens + num_tokens * sizeof(token);
  return {keys, tokens, text, text + text_bytes};
}

}  // namespace detail

/// Writes the header of a record whose payload is in place, and fills what follows the payload with zeros. False if the
/// keys do not fit into the header: such a block is not recorded. Linear in the record.
[[nodiscard]] inline bool seal_record(const record_format& format, const record_identity& identity,
                                      std::span<std::byte> record) noexcept {
  const auto parts =
      detail::parts_of(identity.contents.keys.size(), identity.contents.tokens.size(), format.text.size());
  const auto size = format.header_bytes();
  if (record.size() != format.record_bytes() || parts.end > size) {
    return false;
  }
  const auto put = [&](std::size_t at, const auto& values) {
    if (!values.empty()) {
      std::memcpy(record.data() + at, values.data(), values.size() * sizeof(values[0]));
    }
  };
  put(parts.keys, identity.contents.keys);
  put(parts.tokens, identity.contents.tokens);
  put(parts.text, format.text);
  std::ranges::fill(record.subspan(parts.end, size - parts.end), std::byte{});
  std::ranges::fill(record.subspan(size + format.payload_bytes()), std::byte{});
  auto header = detail::record_header{detail::record_header::right_magic,
                                      size,
                                      format.payload_bytes(),
                                      XXH3_64bits(record.data() + size, format.payload_bytes()),
                                      identity.key,
                                      identity.parent,
                                      static_cast<std::uint64_t>(identity.salt),
                                      identity.position,
                                      identity.contents.keys.size(),
                                      identity.contents.tokens.size(),
                                      format.text.size(),
                                      0};
  header.header_checksum = detail::header_checksum(header, record);
  std::memcpy(record.data(), &header, sizeof(header));
  return true;
}

struct record_reading {
  record_fault fault = record_fault::damaged;
  record_identity identity;  // if there is no fault
};

/// The identity that a record claims. `bytes`: of the header at least, aligned to 8; the identity's contents lie in
/// them. Does not look at the payload.
[[nodiscard]] inline record_reading read_record_header(const record_format& format,
                                                       std::span<const std::byte> bytes) noexcept {
  auto header = detail::record_header{};
  if (bytes.size() < sizeof(header)) {
    return {};
  }
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (header.magic != detail::record_header::right_magic || header.header_bytes > bytes.size() ||
      header.header_bytes < sizeof(header) || detail::header_checksum(header, bytes) != header.header_checksum) {
    return {};
  }
  const auto fits = [&](std::uint64_t number, std::size_t size) { return number <= header.header_bytes / size; };
  if (!fits(header.num_keys, sizeof(prefix_key)) || !fits(header.num_tokens, sizeof(token)) ||
      !fits(header.text_bytes, 1)) {
    return {};
  }
  const auto parts = detail::parts_of(header.num_keys, header.num_tokens, header.text_bytes);
  if (parts.end > header.header_bytes) {
    return {};
  }
  const auto same_text = header.text_bytes == format.text.size() &&
                         std::memcmp(bytes.data() + parts.text, format.text.data(), format.text.size()) == 0;
  if (!same_text || header.header_bytes != format.header_bytes() || header.payload_bytes != format.payload_bytes() ||
      header.num_tokens != static_cast<std::uint64_t>(format.block_size)) {
    return {record_fault::other_format, {}};
  }
  const auto tokens = std::span{reinterpret_cast<const token*>(bytes.data() + parts.tokens),
                                static_cast<std::size_t>(header.num_tokens)};
  const auto keys = std::span{reinterpret_cast<const prefix_key*>(bytes.data() + parts.keys),
                              static_cast<std::size_t>(header.num_keys)};
  return {record_fault::none,
          {header.key, header.parent, static_cast<salt>(header.salt), header.position, block_contents{tokens, keys}}};
}

/// Whether a record is whole and holds these contents: compared exactly, its checksums included. Linear in the record.
[[nodiscard]] inline record_fault verify_record(const record_format& format, const record_identity& wanted,
                                                std::span<const std::byte> record) noexcept {
  if (record.size() != format.record_bytes()) {
    return record_fault::damaged;
  }
  const auto [fault, found] = read_record_header(format, record);
  if (fault != record_fault::none) {
    return fault;
  }
  if (found.key != wanted.key || found.parent != wanted.parent || found.salt != wanted.salt ||
      found.position != wanted.position || !std::ranges::equal(found.contents.tokens, wanted.contents.tokens) ||
      !std::ranges::equal(found.contents.keys, wanted.contents.keys)) {
    return record_fault::other_contents;
  }
  auto header = detail::record_header{};
  std::memcpy(&header, record.data(), sizeof(header));
  const auto checksum = XXH3_64bits(record.data() + format.header_bytes(), format.payload_bytes());
  return checksum == header.payload_checksum ? record_fault::none : record_fault::damaged;
}

}  // namespace pagedkv
