#pragma once

#include <xxhash.h>
#include <pagedkv/detail/deadline.hpp>
#include <pagedkv/policy/tiers/concept.hpp>
#include <pagedkv/tier/record.hpp>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace pagedkv {

/// A value on its way to a store of keys and values, or back.
struct remote_value {
  std::string_view key;
  std::span<std::byte> bytes;  // to read: exactly as many as were written
};

/// A client of a store that other processes share. One thread at a time calls `set_many`, `get_many` and `erase_many`;
/// each sends a batch as one pipeline and returns when every value has an outcome, at the deadline at the latest. A
/// value without an answer by then has failed. A store that is gone costs no wait: its values fail at once, and the
/// client connects anew on its own.
///
/// | requirement                                | meaning                                                             |
/// |--------------------------------------------|---------------------------------------------------------------------|
/// | `T::name`                                  | for tables                                                          |
/// | `t.set_many(batch, outcomes, deadline)`    | stores values; `done` when the store has acknowledged                |
/// | `t.get_many(batch, outcomes, deadline)`    | fetches values; `missing` when the store has none with this key     |
/// | `t.erase_many(batch, outcomes, deadline)`  | removes values; `done` also when the store has none with this key   |
///
/// A minimal model:
///
///     struct own_client {
///       static constexpr std::string_view name = "own_client";
///       using time_point = std::chrono::steady_clock::time_point;
///       void set_many(std::span<const remote_value> batch, std::span<transfer_outcome> outcomes, time_point) noexcept;
///       void get_many(std::span<const remote_value> batch, std::span<transfer_outcome> outcomes, time_point) noexcept;
///       void erase_many(std::span<const remote_value>, std::span<transfer_outcome>, time_point) noexcept;
///     };
template <class T>
concept remote_client =
    std::movable<T> && requires(T t, std::span<const remote_value> batch, std::span<transfer_outcome> outcomes,
                                std::chrono::steady_clock::time_point deadline) {
      { T::name } -> std::convertible_to<std::string_view>;
      { t.set_many(batch, outcomes, deadline) } noexcept -> std::same_as<void>;
      { t.get_many(batch, outcomes, deadline) } noexcept -> std::same_as<void>;
      { t.erase_many(batch, outcomes, deadline) } noexcept -> std::same_as<void>;
    };

/// Options of a `remote_tier`.
struct remote_tier_config {
  std::string prefix = "pagedkv:";              // of the keys in the store
  std::size_t max_value_bytes = 64 << 20;       // larger records are stored in several values
  std::chrono::milliseconds timeout{1'000};     // of a batch
};

/// A tier without places over a store that several processes share. Keys in the store: the prefix, the record's key and
/// a fingerprint of the format in hexadecimal digits, and the number of the part if there are several.
///
/// The store makes room by itself and may lose values at any time. `write`, `read` and `erase` return within the
/// timeout.
/// No allocation after construction except the client's. Use it from one thread at a time.
template <remote_client Client>
class remote_tier {
 public:
  static constexpr std::string_view name = "remote_tier";

  /// The template argument.
  using client_type = Client;

  /// Throws `std::bad_alloc`.
  remote_tier(Client client, const record_format& format, const remote_tier_config& config = {})
      : client_(std::move(client)),
        fingerprint_(XXH3_64bits(format.text.data(), format.text.size())),
        record_bytes_(format.record_bytes()),
        config_(config),
        keys_(window * key_bytes()),
        values_(window),
        owners_(window),
        found_(window) {
    config_.max_value_bytes = std::max(config.max_value_bytes, std::size_t{1});
  }

  /// Stores the records of a batch, with an outcome for each, within the timeout.
  void write(std::span<const record_transfer> batch, std::span<transfer_outcome> outcomes) noexcept {
    transfer(batch, outcomes, [this](auto... arguments) { client_.set_many(arguments...); });
  }

  /// Reads them, as `write` stores them, with an outcome for each of the batch.
  void read(std::span<const record_transfer> batch, std::span<transfer_outcome> outcomes) noexcept {
    transfer(batch, outcomes, [this](auto... arguments) { client_.get_many(arguments...); });
  }

  /// Erases them, with an outcome for each of the batch.
  void erase(std::span<const record_transfer> batch, std::span<transfer_outcome> outcomes) noexcept {
    transfer(batch, outcomes, [this](auto... arguments) { client_.erase_many(arguments...); });
  }

  /// The client, for its counts and its failure.
  [[nodiscard]] const Client& client() const noexcept { return client_; }

  /// The store's key of the record with this key, or of one part of it. Throws `std::bad_alloc`.
  [[nodiscard]] std::string key_in_store(const record_key& key, std::size_t part = 0) const {
    auto text = std::string(key_bytes(), ' ');
    text.resize(write_key(key, part, text.data()).size());
    return text;
  }

 private:
  static constexpr auto window = std::size_t{1'024};  // values that the client gets at a time
  static constexpr auto digits = std::size_t{16};     // of 64 bits

  [[nodiscard]] std::size_t key_bytes() const noexcept { return config_.prefix.size() + 4 * (digits + 1); }

  template <class Call>
  void transfer(std::span<const record_transfer> batch, std::span<transfer_outcome> outcomes,
                const Call& call) noexcept {
    const auto deadline = detail::deadline_in(config_.timeout);
    std::ranges::fill(outcomes.first(batch.size()), transfer_outcome::done);
    auto count = std::size_t{0};
    const auto flush = [&] {
      call(std::span<const remote_value>{values_}.first(count), std::span{found_}.first(count), deadline);
      for (auto i = std::size_t{0}; i < count; ++i) {
        auto& outcome = outcomes[owners_[i]];
        outcome = std::max(outcome, found_[i]);  // in the order of the enumeration: done, missing, failed
      }
      count = 0;
    };
    for (auto i = std::size_t{0}; i < batch.size(); ++i) {
      auto rest = batch[i].bytes;
      for (auto begin = std::size_t{0}, part = std::size_t{0}; begin < record_bytes_; ++part) {
        const auto size = std::min(rest.size(), config_.max_value_bytes);
        values_[count] = {write_key(batch[i].key, part, keys_.data() + count * key_bytes()), rest.first(size)};
        owners_[count] = i;
        rest = rest.subspan(size);
        begin += config_.max_value_bytes;
        if (++count == window) {
          flush();
        }
      }
    }
    flush();
  }

  [[nodiscard]] std::string_view write_key(const record_key& key, std::size_t part, char* to) const noexcept {
    auto* const end = to + key_bytes();
    auto* at = std::ranges::copy(config_.prefix, to).out;
    at = write_digits(key.high, at);
    at = write_digits(key.low, at);
    *at++ = ':';
    at = write_digits(fingerprint_, at);
    if (part > 0) {
      *at++ = ':';
      at = std::to_chars(at, end, part, 16).ptr;
    }
    return {to, at};
  }

  [[nodiscard]] static char* write_digits(std::uint64_t number, char* at) noexcept {
    for (auto shift = 60; shift >= 0; shift -= 4) {
      *at++ = "0123456789abcdef"[(number >> shift) & 15];
    }
    return at;
  }

  Client client_;
  std::uint64_t fingerprint_;  // keeps records of different formats apart; each record has the format's text as well
  std::size_t record_bytes_;
  remote_tier_config config_;
  std::vector<char> keys_;
  std::vector<remote_value> values_;
  std::vector<std::size_t> owners_;  // the transfer that a value is part of
  std::vector<transfer_outcome> found_;
};

}  // namespace pagedkv
