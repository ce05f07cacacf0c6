#pragma once

#include <pagedkv/core/ids.hpp>

#include <concepts>
#include <cstdint>
#include <type_traits>

namespace pagedkv {

enum class event_kind : std::uint8_t {
  stored,     // a full block entered the prefix index
  evicted,    // a block left it to make room, or because the prefix cache was reset
  copied,     // a block was copied on write
  preempted,  // a request gave its blocks to another
};

/// What happened, for a router that follows which prefixes are cached where, or for a tier that keeps what is evicted.
struct cache_event {
  event_kind kind{};
  block_id block = no_block;      // stored, evicted; copied: the copy
  block_id origin = no_block;     // stored: the block it continues; copied: the block it was copied from
  std::uint64_t hash = 0;         // stored, evicted: chained, of the contents; seeded by `cache_config.hash_seed`
  std::uint64_t parent_hash = 0;  // stored: that of the block it continues
  std::uint64_t request = 0;      // preempted: its `request_id`
  std::uint64_t number = 0;       // given by the stream, from 1 on
};

/// Where a cache reports events. Many threads may call `emit`, which never waits for any of them, nor for a consumer.
///
/// | requirement     | meaning                                                            |
/// |-----------------|--------------------------------------------------------------------|
/// | `e.emit(event)` | takes note of it, or drops it; its number is still to be given     |
/// | `E::enabled`    | whether anything is noted; otherwise callers need not ask          |
template <class E>
concept events = std::default_initializable<E> && requires(E stream, const cache_event& event) {
  { stream.emit(event) } noexcept;
  { E::enabled } -> std::convertible_to<bool>;
};

/// No events, at no cost.
struct no_events {
  static constexpr bool enabled = false;

  void emit(const cache_event&) noexcept {}
};

static_assert(events<no_events> && std::is_empty_v<no_events>);

}  // namespace pagedkv
