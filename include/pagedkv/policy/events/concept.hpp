#pragma once

#include <pagedkv/core/config.hpp>
#include <pagedkv/core/ids.hpp>
#include <pagedkv/core/token_run.hpp>
#include <pagedkv/policy/axis.hpp>

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <type_traits>

namespace pagedkv {

/// Behind each kind are the fields of `cache_event` that it sets.
enum class event_kind : std::uint8_t {
  stored,        // a full block entered the prefix index: block, origin, hash, parent_hash, tokens, keys, salt
  evicted,       // a block left the prefix index: block, hash
  reset,         // every block left the prefix index: num_blocks
  admitted,      // a sequence was created from a prompt: sequence, num_tokens, num_blocks, salt
  hit,           // it shares a cached prefix: sequence, num_tokens, num_blocks, salt; hash of the last one, and block
                 // where layers do not differ
  forked,        // a sequence was created from another: sequence, source
  released,      // a sequence ended: sequence, num_tokens
  copied,        // a block was copied on write: block, origin
  refused,       // an operation needs more blocks than are available: num_blocks, num_available
  step_begun,    // step
  step_retired,  // step
  started,       // a request was submitted, forked or resumed: request, sequence
  preempted,     // a running request lost its blocks: request, sequence
  ended,         // a request finished, was cancelled or failed: request
};

/// A set of kinds.
struct event_kinds {
  std::uint32_t bits = 0;

  constexpr event_kinds(std::initializer_list<event_kind> kinds) noexcept {
    for (const auto kind : kinds) {
      bits |= bit(kind);
    }
  }
  /// Kinds from bits: nvcc writes a template argument so for the host's compiler.
  constexpr event_kinds(std::uint32_t all) noexcept : bits(all) {}  // NOLINT(google-explicit-constructor)

  /// Whether a kind is in the set.
  [[nodiscard]] constexpr bool contains(event_kind kind) const noexcept { return (bits & bit(kind)) != 0; }
  [[nodiscard]] friend constexpr event_kinds operator|(event_kinds a, event_kinds b) noexcept {
    a.bits |= b.bits;
    return a;
  }

 private:
  [[nodiscard]] static constexpr std::uint32_t bit(event_kind kind) noexcept {
    return std::uint32_t{1} << static_cast<unsigned>(kind);
  }
};

/// Enough to follow which prefixes are cached.
inline constexpr auto prefix_event_kinds = event_kinds{event_kind::stored, event_kind::evicted, event_kind::reset};

/// Every kind.
inline constexpr auto all_event_kinds = event_kinds{
    event_kind::stored,       event_kind::evicted,  event_kind::reset,     event_kind::admitted, event_kind::hit,
    event_kind::forked,       event_kind::released, event_kind::copied,    event_kind::refused,  event_kind::step_begun,
    event_kind::step_retired, event_kind::started,  event_kind::preempted, event_kind::ended};

/// One change, with the fields that its kind sets. docs/events.md defines the hash.
struct cache_event {
  event_kind kind{};
  block_id block = no_block;
  block_id origin = no_block;          // stored: the block that it continues, none for the first; copied: its source
  std::uint64_t number = 0;            // position in one stream, from 1; set by streams that keep events
  std::uint64_t hash = 0;              // of all contents up to the block's end, seeded by `cache_config::hash_seed`
  std::uint64_t parent_hash = 0;       // the same for the block that it continues; for the first, that of the salt
  std::span<const token> tokens{};     // [block_size]: of the block; valid during `emit`
  std::span<const prefix_key> keys{};  // [key]: of positions in the block; valid during `emit`
  pagedkv::salt salt{};
  sequence_id sequence{};
  sequence_id source{};
  request_id request{};
  step_id step{};
  std::int64_t num_tokens = 0;     // admitted: in the prompt; hit: cached; released: in the sequence
  std::int64_t num_blocks = 0;     // reset: gone; admitted: in the block table; hit: shared; refused: needed
  std::int64_t num_available = 0;  // blocks

  // stored, evicted, in a cache with groups: which of them, and its kind. There, blocks are numbers of runs of
  // `cache_config::block_size` tokens, which the group's own blocks hold several of.
  std::int32_t group = -1;               // its number; -1 in a cache without groups
  group_kind layers = group_kind::full;  // its kind
};

namespace detail {

template <class E>
concept has_kinds = requires {
  requires std::same_as<decltype(E::kinds), const event_kinds>;
  typename std::integral_constant<std::uint32_t, E::kinds.bits>;
};
template <class E>
concept has_emit = requires(E stream, const cache_event& event) {
  { stream.emit(event) } noexcept;
};

}  // namespace detail

/// Where a cache and its request tracker report what they do. The caller constructs the stream and passes it to the
/// cache, which keeps a copy; a stream with a consumer is therefore a handle, whose copies share what they refer to.
///
/// | requirement     | meaning                                                                                         |
/// |-----------------|-------------------------------------------------------------------------------------------------|
/// | `E::kinds`      | the `event_kinds` that it takes, constant: no code is compiled for the others                   |
/// | `e.emit(event)` | takes an event of those kinds or drops it. Called by any thread that the cache's locking policy |
/// |                 | admits, inside its locks or a tracker's: it calls neither the cache nor its tracker, and should |
/// |                 | not wait                                                                                        |
///
/// A minimal model:
///
///     struct own_events {
///       static constexpr auto kinds = event_kinds{event_kind::evicted};
///       void emit(const cache_event&) noexcept { ++*num_evicted; }
///       std::atomic<int>* num_evicted;
///     };
template <class E>
concept events = std::move_constructible<E> && detail::has_kinds<E> && detail::has_emit<E>;

/// Whether a stream takes events of this kind.
template <events Events, event_kind Kind>
inline constexpr bool reports = Events::kinds.contains(Kind);

namespace detail {

/// Emits an event of this kind, whose fields are those of `describe()`. Compiles nothing of it for a stream that does
/// not take the kind. A stream with a member `hears` is asked first, with the block `origin` of the event.
template <event_kind Kind, events Events, class Describe>
void report([[maybe_unused]] Events& stream, [[maybe_unused]] Describe&& describe,
            [[maybe_unused]] block_id origin = no_block) noexcept {
  if constexpr (requires { stream.hears(Kind, origin); }) {
    if (!stream.hears(Kind, origin)) {
      return;
    }
  }
  if constexpr (reports<Events, Kind>) {
    auto event = cache_event{describe()};
    event.kind = Kind;
    stream.emit(event);
  }
}

}  // namespace detail

struct events_axis {
  template <class Policy>
  static constexpr bool takes = events<Policy>;

  template <class Defaults, class...>
  using default_policy = typename Defaults::events_type;

  template <bool Is>
  struct at_most_one {
    static_assert(Is, "two events policies are given, and a cache has one: leave the other out");
  };

  template <class Policy>
  static constexpr bool resembles = requires { Policy::kinds; } || requires { &Policy::emit; };

  template <class Policy>
  struct lacks {
    static constexpr auto unmet = detail::first_unmet(
        {std::move_constructible<Policy>, detail::has_kinds<Policy>, detail::has_emit<Policy>});
    static_assert(unmet != 0,
                  "this type is nearly an events policy: it cannot be moved, and a cache keeps a copy; write a "
                  "handle of the object that takes the events");
    static_assert(unmet != 1,
                  "this type is nearly an events policy: `kinds` is missing, is not constant or has another type; "
                  "write `static constexpr auto kinds = pagedkv::prefix_event_kinds`, or other `event_kinds`");
    static_assert(unmet != 2,
                  "this type is nearly an events policy: `emit` is missing, may throw or has another form; write "
                  "`void emit(const cache_event& event) noexcept`");
  };
};

/// No events, at no cost.
struct no_events {
  static constexpr auto kinds = event_kinds{};

  void emit(const cache_event&) noexcept {}
};

static_assert(events<no_events> && std::is_empty_v<no_events>);

}  // namespace pagedkv
