#pragma once

#include <pagedkv/cache/outcomes.hpp>
#include <pagedkv/core/ids.hpp>
#include <pagedkv/core/result.hpp>
#include <pagedkv/core/token_run.hpp>
#include <pagedkv/policy/events/concept.hpp>
#include <pagedkv/policy/locking/concept.hpp>
#include <pagedkv/sequence/sequence.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace pagedkv {

/// A cache that a request tracker can work on, such as `kv_cache`. Anything that hands out blocks to sequences can
/// model it.
///
/// | requirement                                  | meaning                                                         |
/// |----------------------------------------------|-----------------------------------------------------------------|
/// | `C::stream_type`                             | on which bytes are copied; a default one exists                 |
/// | `C::locking_type`                            | models `locking`; the tracker is for as many threads            |
/// | `C::events_type`, `c.events()`               | models `events`; gets starts, preemptions and ends of requests  |
/// | `c.config().max_sequences`                   | sequences alive at once                                         |
/// | `c.time()`                                   | for records; never goes back                                    |
/// | `c.create_sequence(tokens, options, stream)` | all or nothing                                                  |
/// | `c.append(id, tokens, stream)`               | all or nothing                                                  |
/// | `c.fork(id, stream)`                         | a second sequence on the same blocks                            |
/// | `c.release(id, hint)`                        | ends a sequence; fails only with `unknown_sequence` and, unless |
/// |                                              | `locking_type::waits_for_sequence`, `sequence_busy`             |
/// | `c.fewest_to_release(ids, n, tokens, salt)`  | positions in `ids`, ascending, of the sequences to release for  |
/// |                                              | `n` blocks more, beside those that `tokens` would share; none   |
/// |                                              | when all are not enough                                         |
///
/// A cache may have `c.withdraw(id)`, too: it hides what a sequence that is about to end has published for a launch
/// that will not happen. `in_use`, and the sequence goes on, where another one needs that launch. With
/// `c.describe(id)`, the tracker can adopt sequences. Where `fewest_to_release` takes the id of the sequence that is
/// appended to as a fifth argument, it counts what that need not copy, too, when the others have gone.
///
/// Creation and appending answer `capacity_exhausted` when blocks are missing now: `error::value` blocks are needed,
/// `error::limit` are there, and `error::step`, if any, brings the rest.
template <class C>
concept cache_for_requests =
    locking<typename C::locking_type> && events<typename C::events_type> &&
    requires(C cache, sequence_id id, std::span<const sequence_id> ids, const token_run& tokens,
             const sequence_options& options, const release_hint& hint, std::int64_t num_blocks, salt salt,
             typename C::stream_type stream) {
      requires std::default_initializable<typename C::stream_type>;
      { cache.config().max_sequences } -> std::convertible_to<std::int32_t>;
      { cache.events() } noexcept -> std::same_as<typename C::events_type&>;
      { cache.time() } noexcept -> std::same_as<timestamp>;
      { cache.create_sequence(tokens, options, stream) } noexcept -> std::same_as<result<admission>>;
      { cache.append(id, tokens, stream) } noexcept -> std::same_as<result<void>>;
      { cache.fork(id, stream) } noexcept -> std::same_as<result<sequence_id>>;
      { cache.release(id, hint) } noexcept -> std::same_as<result<void>>;
      {
        cache.fewest_to_release(ids, num_blocks, tokens, salt)
      } noexcept -> std::same_as<result<std::vector<std::size_t>>>;
    };

/// A cache that tells the facts of its sequences, such as `kv_cache`.
template <class C>
concept cache_that_describes = requires(const C cache, sequence_id id) {
  { cache.describe(id) } noexcept -> std::same_as<result<sequence_info>>;
};

/// A cache that lets look-ups find blocks ahead of the launch that writes them, such as `kv_cache`.
template <class C>
concept cache_that_withdraws = requires(C cache, sequence_id id) {
  { cache.withdraw(id) } noexcept -> std::same_as<result<std::int64_t>>;
};

}  // namespace pagedkv
