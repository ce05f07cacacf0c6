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

/// Reads MessagePack and nothing past its end. A value of another type than asked for is skipped and noted. Where bytes
/// are missing, or an array or map has more elements than there are bytes left, nothing more is read.
class wire_reader {
 public:
  explicit wire_reader(std::string_view payload) noexcept : at_(payload.data()), end_(at_ + payload.size()) {}

  /// Whether a value was of another type since the last call.
  [[nodiscard]] bool take_failure() noexcept { return std::exchange(failed_, false); }
  /// Whether all has been read.
  [[nodiscard]] bool is_done() const noexcept { return !is_cut_ && at_ == end_; }
  [[nodiscard]] mp_type type() const noexcept { return at_ != end_ ? mp_typeof(*at_) : MP_EXT; }

  void skip() noexcept {
    for (auto left = std::uint64_t{1}; left > 0 && !is_cut_; --left) {
      switch (type()) {
        case MP_ARRAY: left += array(); break;
        case MP_MAP: left += std::uint64_t{2} * map(); break;
        default: static_cast<void>(has(mp_check(&at_, end_)));
      }
    }
  }
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
      return has(mp_check_array(at_, end_)) ? count(mp_decode_array(&at_), 1) : 0;
    }
    fail();
    return 0;
  }

  /// The number of pairs.
  [[nodiscard]] std::uint32_t map() noexcept {
    return has(mp_check_map(at_, end_)) ? count(mp_decode_map(&at_), 2) : 0;
  }

  [[nodiscard]] std::int64_t number() noexcept {
    switch (type()) {
      case MP_UINT: return has(mp_check_uint(at_, end_)) ? static_cast<std::int64_t>(mp_decode_uint(&at_)) : 0;
      case MP_INT: return has(mp_check_int(at_, end_)) ? mp_decode_int(&at_) : 0;
      default: fail(); return 0;
    }
  }

  [[nodiscard]] token one_token() noexcept {
    const auto value = number();
    failed_ = failed_ || !std::in_range<token>(value);
    return static_cast<token>(value);
  }

  [[nodiscard]] double real() noexcept {
    switch (type()) {
      case MP_DOUBLE: return has(mp_check_double(at_, end_)) ? mp_decode_double(&at_) : 0;
      case MP_FLOAT: return has(mp_check_float(at_, end_)) ? static_cast<double>(mp_decode_float(&at_)) : 0;
      default: return static_cast<double>(number());
    }
  }

  [[nodiscard]] std::string_view text() noexcept {
    if (type() == MP_STR) {
      return bytes();
    }
    fail();
    return {};
  }

  /// A number of 64 bits as it is; longer hashes, which come as bytes, by their XXH3.
  [[nodiscard]] std::uint64_t hash() noexcept {
    if (type() != MP_BIN && type() != MP_STR) {
      return static_cast<std::uint64_t>(number());
    }
    const auto digest = bytes();
    return XXH3_64bits(digest.data(), digest.size());
  }

  /// A hash of the parts of an array, arrays in it included; texts that are `but` do not count. 0 for none.
  [[nodiscard]] std::uint64_t hash_of_parts(std::string_view but) noexcept {
    auto hash = std::uint64_t{0};
    auto left = take_nil() ? std::uint64_t{0} : std::uint64_t{array()};
    for (; left > 0 && !is_cut_; --left) {
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

 private:
  void cut() noexcept {
    at_ = end_;
    is_cut_ = true;
  }

  /// Whether no bytes of the next value, or of its head, are missing.
  [[nodiscard]] bool has(std::ptrdiff_t num_missing) noexcept {
    if (num_missing > 0) {
      cut();
    }
    return num_missing <= 0;
  }

  /// 0 for more elements than the bytes left can hold.
  [[nodiscard]] std::uint32_t count(std::uint32_t number, std::ptrdiff_t least_bytes) noexcept {
    if (number <= (end_ - at_) / least_bytes) {
      return number;
    }
    cut();
    return 0;
  }

  /// The bytes of a text or of a string of bytes.
  [[nodiscard]] std::string_view bytes() noexcept {
    const auto* next = at_;
    if (!has(mp_check(&next, end_))) {
      return {};
    }
    auto length = std::uint32_t{0};
    const auto* const data = mp_decode_strbin(&at_, &length);
    return {data, length};
  }

  const char* at_;
  const char* end_;
  bool failed_ = false;
  bool is_cut_ = false;
};

inline void read_field(wire_reader& reader, std::string_view name, wire_event& event) {
  if (reader.take_nil()) {
    return;
  }
  if (name == "block_hashes") {
    for (auto left = reader.array(); left > 0; --left) {
      event.hashes.push_back(reader.hash());
    }
  } else if (name == "token_ids") {
    for (auto left = reader.array(); left > 0; --left) {
      event.tokens.push_back(reader.one_token());
    }
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

/// Reads a batch of vLLM's KV events in either encoding. Fields that it does not know are skipped. An event of another
/// kind, or with other values than vLLM writes, is left out and counted; but not a removal, because its blocks would
/// stay where they are removed from. Errors: `invalid_argument` for bytes that are not such a batch. May throw
/// `std::bad_alloc`.
[[nodiscard]] inline result<wire_batch> read_batch(std::string_view payload) {
  const auto broken = error{error_code::invalid_argument, "bytes of a batch of KV events, which cannot be read,",
                            static_cast<std::int64_t>(payload.size())};
  auto reader = detail::wire_reader{payload};
  const auto size = reader.array();
  if (size < 2) {
    return broken;
  }
  auto batch = wire_batch{};
  batch.timestamp = reader.real();
  auto left = reader.array();
  if (reader.take_failure()) {
    return broken;
  }
  for (; left > 0; --left) {
    auto event = reader.type() == MP_MAP ? detail::read_map(reader) : detail::read_array(reader);
    if (const bool is_odd = reader.take_failure(); event && !is_odd && detail::is_whole(*event)) {
      batch.events.push_back(std::move(*event));
    } else if (!event || event->kind == wire_kind::stored) {
      ++batch.num_unknown;
    } else {
      return broken;
    }
  }
  if (size > 2 && !reader.take_nil()) {
    batch.rank = reader.number();
  }
  for (auto i = 3U; i < size; ++i) {
    reader.skip();
  }
  return reader.take_failure() || !reader.is_done() ? result<wire_batch>{broken} : result<wire_batch>{std::move(batch)};
}

}  // namespace pagedkv
