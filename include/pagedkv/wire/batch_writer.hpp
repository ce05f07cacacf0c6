#pragma once

#include <msgpuck.h>
#include <pagedkv/core/config.hpp>
#include <pagedkv/policy/events/concept.hpp>
#include <pagedkv/wire/batch.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace pagedkv {

/// Writes a cache's events as one batch of vLLM's KV events in MessagePack. Consecutive blocks of one chain become one
/// event, as do blocks that are evicted one after another. Allocates only while its buffers grow.
class batch_writer {
 public:
  /// Which adapter sequences with a salt use, if any; of the model itself by default.
  using adapters = std::function<std::optional<wire_adapter>(salt)>;

  explicit batch_writer(wire_encoding encoding, std::string medium = "GPU",
                        std::optional<std::int64_t> rank = std::nullopt, adapters adapter_of = nullptr)
      : encoding_(encoding), medium_(std::move(medium)), rank_(rank), adapter_of_(std::move(adapter_of)) {
    clear();
  }

  /// Adds an event of `prefix_event_kinds`; others are left out. May throw `std::bad_alloc`, and then adds nothing.
  void add(const cache_event& event) {
    switch (event.kind) {
      case event_kind::stored: add_stored(event); break;
      case event_kind::evicted:
        if (pending_ != wire_kind::removed || group_ != event.group) {
          finish_event();
          pending_ = wire_kind::removed;
          group_ = event.group;
        }
        hashes_.push_back(event.hash);
        break;
      case event_kind::reset:
        finish_event();
        write_cleared();
        break;
      default: break;
    }
  }

  /// Events so far, with those that will be merged counted as one.
  [[nodiscard]] std::size_t num_events() const noexcept { return num_events_ + (hashes_.empty() ? 0 : 1); }
  [[nodiscard]] bool empty() const noexcept { return num_events() == 0; }

  /// The batch, until the next call of `clear`. `timestamp`: seconds since 1970. May throw `std::bad_alloc`.
  [[nodiscard]] std::string_view finish(double timestamp) {
    finish_event();
    auto* at = bytes_.data();
    at = mp_encode_array(at, 3);
    mp_encode_double(at, timestamp);
    bytes_[events_head] = static_cast<char>(array_of_32_bits);
    for (std::size_t i = 0; i < 4; ++i) {
      bytes_[events_head + 1 + i] = static_cast<char>(num_events_ >> (24 - 8 * i));
    }
    const auto room = reserve(max_number);
    end_ = used(rank_ ? write_number(room, *rank_) : mp_encode_nil(room));
    return {bytes_.data(), end_};
  }

  /// Begins the next batch.
  void clear() {
    bytes_.resize(std::max(bytes_.size(), std::size_t{4096}));
    end_ = head_bytes;
    num_events_ = 0;
    forget_pending();
  }

 private:
  // The array of three, the timestamp, and the head of the events, whose number is known at the end.
  static constexpr auto events_head = std::size_t{1 + 9};
  static constexpr auto head_bytes = events_head + 5;
  static constexpr auto array_of_32_bits = 0xdd;
  static constexpr auto max_number = std::size_t{9};
  static constexpr auto max_names = std::size_t{256};  // all names of fields in a map, and the heads of their values

  void add_stored(const cache_event& event) {
    const bool continues = pending_ == wire_kind::stored && !hashes_.empty() && event.origin != no_block &&
                           event.parent_hash == hashes_.back() && block_size_ == event.tokens.size();
    make_room(hashes_, 1);
    make_room(tokens_, event.tokens.size());
    make_room(keys_, event.keys.size());
    make_room(num_keys_, 1);
    if (!continues) {
      finish_event();
      pending_ = wire_kind::stored;
      parent_ = event.origin == no_block ? std::nullopt : std::optional{event.parent_hash};
      block_size_ = event.tokens.size();
      salt_ = event.salt;
      group_ = event.group;
      layers_ = event.layers;
    }
    hashes_.push_back(event.hash);
    tokens_.insert(tokens_.end(), event.tokens.begin(), event.tokens.end());
    keys_.insert(keys_.end(), event.keys.begin(), event.keys.end());
    num_keys_.push_back(event.keys.size());
  }

  /// Reserves room for so many more elements, so that adding them does not throw.
  template <class T>
  static void make_room(std::vector<T>& elements, std::size_t num_more) {
    if (elements.capacity() - elements.size() < num_more) {
      elements.reserve(std::max(2 * elements.capacity(), elements.size() + num_more));
    }
  }

  void finish_event() {
    if (hashes_.empty()) {
      return;
    }
    if (pending_ == wire_kind::stored) {
      write_stored();
    } else {
      write_removed();
    }
    forget_pending();
  }

  void forget_pending() noexcept {
    hashes_.clear();
    tokens_.clear();
    keys_.clear();
    num_keys_.clear();
  }

  void write_stored() {
    const auto adapter = adapter_of_ && salt_ != salt::none ? adapter_of_(salt_) : std::nullopt;
    const auto name_bytes = adapter ? max_number + adapter->name.size() : 0;
    auto* at = reserve(max_names + medium_.size() + name_bytes * (hashes_.size() + 1) +
                       max_number * (2 * hashes_.size() + tokens_.size() + 3 * keys_.size() + 8));
    const auto size = has_group() ? 11U : 9U;
    at = encoding_ == wire_encoding::maps ? mp_encode_map(at, size) : mp_encode_array(at, size);
    at = name(at, "type", "BlockStored");
    at = write_hashes(field(at, "block_hashes"));
    at = field(at, "parent_block_hash");
    at = parent_ ? mp_encode_uint(at, *parent_) : mp_encode_nil(at);
    at = mp_encode_array(field(at, "token_ids"), static_cast<std::uint32_t>(tokens_.size()));
    for (const auto each : tokens_) {
      at = write_number(at, each);
    }
    at = mp_encode_uint(field(at, "block_size"), block_size_);
    at = field(at, "lora_id");
    at = adapter ? write_number(at, adapter->id) : mp_encode_nil(at);
    at = text(field(at, "medium"), medium_);
    at = field(at, "lora_name");
    at = adapter ? text(at, adapter->name) : mp_encode_nil(at);
    at = write_keys(field(at, "extra_keys"), adapter);
    if (has_group()) {
      at = write_number(field(at, "group_idx"), group_);
      at = text(field(at, "kv_cache_spec_kind"), kind_of_layers());
    }
    end_ = used(at);
    ++num_events_;
  }

  void write_removed() {
    auto* at = reserve(max_names + medium_.size() + max_number * (hashes_.size() + 2));
    const auto size = has_group() ? 4U : 3U;
    at = encoding_ == wire_encoding::maps ? mp_encode_map(at, size) : mp_encode_array(at, size);
    at = write_hashes(field(name(at, "type", "BlockRemoved"), "block_hashes"));
    at = text(field(at, "medium"), medium_);
    end_ = used(has_group() ? write_number(field(at, "group_idx"), group_) : at);
    ++num_events_;
  }

  void write_cleared() {
    auto* at = reserve(max_names);
    at = encoding_ == wire_encoding::maps ? mp_encode_map(at, 1) : mp_encode_array(at, 1);
    end_ = used(name(at, "type", "AllBlocksCleared"));
    ++num_events_;
  }

  /// Whether the pending event is of a cache with groups.
  [[nodiscard]] bool has_group() const noexcept { return group_ >= 0; }
  [[nodiscard]] std::string_view kind_of_layers() const noexcept {
    return layers_ == group_kind::latent ? "mla_attention" : "full_attention";
  }

  /// Writes for each block nil, or an array: the name of its adapter, or else at the start of a sequence its salt, if
  /// it has one; then the position and both words of each prefix key.
  char* write_keys(char* at, const std::optional<wire_adapter>& adapter) const {
    at = mp_encode_array(at, static_cast<std::uint32_t>(num_keys_.size()));
    auto key = keys_.begin();
    for (std::size_t block = 0; block < num_keys_.size(); ++block) {
      const bool has_salt = !adapter && block == 0 && !parent_ && salt_ != salt::none;
      const auto size = 3 * num_keys_[block] + (adapter || has_salt ? 1 : 0);
      at = size == 0 ? mp_encode_nil(at) : mp_encode_array(at, static_cast<std::uint32_t>(size));
      if (adapter) {
        at = text(at, adapter->name);
      } else if (has_salt) {
        at = mp_encode_uint(at, static_cast<std::uint64_t>(salt_));
      }
      for (std::size_t i = 0; i < num_keys_[block]; ++i, ++key) {
        at = write_number(at, key->position);
        at = mp_encode_uint(at, key->value[0]);
        at = mp_encode_uint(at, key->value[1]);
      }
    }
    return at;
  }

  char* write_hashes(char* at) const {
    at = mp_encode_array(at, static_cast<std::uint32_t>(hashes_.size()));
    for (const auto hash : hashes_) {
      at = mp_encode_uint(at, hash);
    }
    return at;
  }

  /// The event's kind: a field of a map, or the first element of an array.
  char* name(char* at, std::string_view key, std::string_view value) const { return text(field(at, key), value); }

  /// Only maps name their fields.
  char* field(char* at, std::string_view key) const { return encoding_ == wire_encoding::maps ? text(at, key) : at; }

  static char* text(char* at, std::string_view value) {
    return mp_encode_str(at, value.data(), static_cast<std::uint32_t>(value.size()));
  }

  static char* write_number(char* at, std::int64_t value) {
    return value < 0 ? mp_encode_int(at, value) : mp_encode_uint(at, static_cast<std::uint64_t>(value));
  }

  /// Where to write so many more bytes.
  [[nodiscard]] char* reserve(std::size_t num_bytes) {
    if (bytes_.size() - end_ < num_bytes) {
      bytes_.resize(std::max(2 * bytes_.size(), end_ + num_bytes));
    }
    return bytes_.data() + end_;
  }
  [[nodiscard]] std::size_t used(const char* end) const noexcept {
    return static_cast<std::size_t>(end - bytes_.data());
  }

  wire_encoding encoding_;
  std::string medium_;
  std::optional<std::int64_t> rank_;
  adapters adapter_of_;
  std::vector<char> bytes_;
  std::size_t end_ = 0;
  std::size_t num_events_ = 0;  // written

  // The event that later ones may still join.
  wire_kind pending_ = wire_kind::cleared;
  std::optional<std::uint64_t> parent_;
  std::size_t block_size_ = 0;
  salt salt_ = salt::none;
  std::int32_t group_ = -1;
  group_kind layers_ = group_kind::full;
  std::vector<std::uint64_t> hashes_;
  std::vector<token> tokens_;
  std::vector<prefix_key> keys_;
  std::vector<std::size_t> num_keys_;  // of each block
};

}  // namespace pagedkv
