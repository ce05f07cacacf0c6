#pragma once

#include <pagedkv/policy/tiers/concept.hpp>

#include <chrono>
#include <concepts>
#include <cstddef>
#include <span>
#include <string_view>

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

}  // namespace pagedkv
