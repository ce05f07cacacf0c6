#pragma once

#include <msgpuck.h>
#include <xxhash.h>
#include <pagedkv/core/result.hpp>
#include <pagedkv/wire/batch.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>

namespace pagedkv {

namespace detail {

/// Reads MessagePack whose structure was checked. A value of another type than asked for is skipped and noted.
class wire_reader {
 public:
  explicit wire_reader(std::string_view payload) noexcept : at_(payload.data()) {}

  [[nodiscard]] bool failed() const noexcept { return failed_; }
  [[nodiscard]] mp_type type() const noexcept { return mp_typeof(*at_); }
  void skip() noexcept { mp_next(&at_); }
  void fail() noexcept {
    failed_ = true;
    skip();
  }

  [[nodiscard]] bool take_nil() noexcept {
    const bool is_nil = type() == MP_NIL;
    if (is_nil) {
      mp_decode_nil(&at_);
    }
    return is_nil;
  }

  /// The number of elements.
  [[nodiscard]] std::uint32_t array() noexcept {
    if (type() == MP_ARRAY) {
      return mp_decode_array(&at_);
    }
    fail();
    return 0;
  }

  [[nodiscard]] std::int64_t number() noexcept {
    switch (type()) {
      case MP_UINT: return static_cast<std::int64_t>(mp_decode_uint(&at_));
      case MP_INT: return mp_decode_int(&at_);
      default: fail(); return 0;
    }
  }

  [[nodiscard]] double real() noexcept {
    switch (type()) {
      case MP_DOUBLE: return mp_decode_double(&at_);
      case MP_FLOAT: return static_cast<double>(mp_decode_float(&at_));
      default: return static_cast<double>(number());
    }
  }

  [[nodiscard]] std::string_view text() noexcept {
    if (type() != MP_STR) {
      fail();
      return {};
    }
    auto length = std::uint32_t{0};
    const auto* const data = mp_decode_str(&at_, &length);
    return {data, length};
  }

  /// A number of 64 bits as it is; longer hashes, which come as bytes, by their XXH3.
  [[nodiscard]] std::uint64_t hash() noexcept {
    if (type() != MP_BIN && type() != MP_STR) {
      return static_cast<std::uint64_t>(number());
    }
    auto length = std::uint32_t{0};
    const auto* const data = mp_decode_strbin(&at_, &length);
    return XXH3_64bits(data, length);
  }

  /// Of the parts of an array, arrays in it included; texts that are `but` do not count. 0 for none.
  [[nodiscard]] std::uint64_t hash_of_parts(std::string_view but) noexcept {
    auto hash = std::uint64_t{0};
    auto left = take_nil() ? std::uint64_t{0} : std::uint64_t{array()};
    for (; left > 0 && !failed_; --left) {
      if (type() == MP_ARRAY) {
        left += array();
        continue;
      }
      const auto* const begin = at_;
      if (type() == MP_STR && text() == but) {
        continue;
      }
      at_ = begin;
      skip();
      hash = XXH3_64bits_withSeed(begin, static_cast<std::size_t>(at_ - begin), hash);
    }
    return hash;
  }

  [[nodiscard]] std::uint32_t map() noexcept { return mp_decode_map(&at_); }

 private:
  const char* at_;
  bool failed_ = false;
};

inline void read_field(wire_reader& reader, std::string_view name, wire_event& event) {
  if (name == "block_hashes") {
    for (auto left = reader.array(); left > 0; --left) {
      event.hashes.push_back(reader.hash());
    }
  } else if (name == "token_ids") {
    for (auto left = reader.array(); left > 0; --left) {
      event.tokens.push_back(static_cast<token>(reader.number()));
    }
  } else if (reader.take_nil()) {
    return;
  } else if (name == "parent_block_hash") {
    event.parent = reader.hash();
  } else if (name == "block_size") {
    event.block_size = reader.number();
  } else if (name == "medium") {
    event.medium = reader.text();
  } else if (name == "lora_id") {
    event.adapter_id = reader.number();
  } else if (name == "lora_name") {
    event.adapter = reader.text();
  } else if (name == "extra_keys") {
    for (auto left = reader.array(); left > 0; --left) {
      event.extras.push_back(reader.hash_of_parts(event.adapter));
    }
  } else if (name == "group_idx") {
    event.group = reader.number();
  } else {
    reader.skip();
  }
}

[[nodiscard]] inline std::optional<wire_kind> kind_of(std::string_view name) noexcept {
  if (name == "BlockStored") {
    return wire_kind::stored;
  }
  if (name == "BlockRemoved") {
    return wire_kind::removed;
  }
  return name == "AllBlocksCleared" ? std::optional{wire_kind::cleared} : std::nullopt;
}

/// The name of a field by its position in an array, behind the event's kind.
[[nodiscard]] inline std::string_view name_of(wire_kind kind, std::uint32_t position) noexcept {
  constexpr std::string_view stored[] = {"block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id",
                                         "medium",       "lora_name",         "extra_keys", "group_idx"};
  constexpr std::string_view removed[] = {"block_hashes", "medium", "group_idx"};
  switch (kind) {
    case wire_kind::stored: return position < std::size(stored) ? stored[position] : std::string_view{};
    case wire_kind::removed: return position < std::size(removed) ? removed[position] : std::string_view{};
    case wire_kind::cleared: break;
  }
  return {};
}

inline std::optional<wire_event> read_array(wire_reader& reader) {
  const auto size = reader.array();
  if (size == 0) {
    return std::nullopt;
  }
  const auto kind = kind_of(reader.text());
  auto event = wire_event{};
  event.kind = kind.value_or(wire_kind::cleared);
  for (std::uint32_t i = 0; i + 1 < size; ++i) {
    read_field(reader, kind ? name_of(*kind, i) : std::string_view{}, event);
  }
  return kind ? std::optional{std::move(event)} : std::nullopt;
}

/// The type may come behind other fields.
inline std::optional<wire_event> read_map(wire_reader& reader) {
  auto kind = std::optional<wire_kind>{};
  auto event = wire_event{};
  for (auto left = reader.map(); left > 0; --left) {
    if (reader.type() != MP_STR) {
      reader.skip();
      reader.skip();
      continue;
    }
    const auto name = reader.text();
    if (name == "type") {
      kind = kind_of(reader.text());
    } else {
      read_field(reader, name, event);
    }
  }
  event.kind = kind.value_or(wire_kind::cleared);
  return kind ? std::optional{std::move(event)} : std::nullopt;
}

/// Whether a stored event has the tokens of its blocks, or none: vLLM names offloaded blocks by their hashes alone.
[[nodiscard]] inline bool is_whole(const wire_event& event) noexcept {
  return event.kind != wire_kind::stored || event.tokens.empty() ||
         (event.block_size > 0 && !event.hashes.empty() &&
          event.tokens.size() / event.hashes.size() == static_cast<std::size_t>(event.block_size) &&
          event.tokens.size() % event.hashes.size() == 0);
}

}  // namespace detail

/// Reads a batch of vLLM's KV events in either encoding. Fields and kinds that it does not know are skipped. Errors:
/// `invalid_argument` for bytes that are not such a batch. May throw `std::bad_alloc`.
[[nodiscard]] inline result<wire_batch> read_batch(std::string_view payload) {
  const auto broken =
      error{error_code::invalid_argument, "batch of KV events", static_cast<std::int64_t>(payload.size())};
  const auto* end = payload.data();
  if (payload.empty() || mp_check(&end, payload.data() + payload.size()) != 0 ||
      end != payload.data() + payload.size()) {
    return broken;
  }
  auto reader = detail::wire_reader{payload};
  const auto size = reader.array();
  if (size < 2) {
    return broken;
  }
  auto batch = wire_batch{};
  batch.timestamp = reader.real();
  for (auto left = reader.array(); left > 0; --left) {
    auto event = reader.type() == MP_MAP ? detail::read_map(reader) : detail::read_array(reader);
    if (!event) {
      ++batch.num_unknown;
    } else if (!detail::is_whole(*event)) {
      return broken;
    } else {
      batch.events.push_back(std::move(*event));
    }
  }
  if (size > 2 && !reader.take_nil()) {
    batch.rank = reader.number();
  }
  return reader.failed() ? result<wire_batch>{broken} : result<wire_batch>{std::move(batch)};
}

}  // namespace pagedkv
