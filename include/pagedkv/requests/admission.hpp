#pragma once

#include <pagedkv/core/error.hpp>
#include <pagedkv/core/ids.hpp>
#include <pagedkv/core/token_run.hpp>
#include <pagedkv/policy/preemption/concept.hpp>
#include <pagedkv/requests/preemption.hpp>
#include <pagedkv/requests/request.hpp>
#include <pagedkv/requests/sequence_releases.hpp>

#include <cstddef>
#include <iterator>
#include <vector>

namespace pagedkv {

/// A request that needs blocks, and the purpose.
template <class Stream>
struct room_wanted {
  request_id id{};  // none while it is being submitted
  const request_info& request;
  token_run prompt;  // of the sequence that is to be created; empty for an append
  Stream on{};
};

/// The part of a request's prompt that its sequence may share, with one token behind it.
[[nodiscard]] inline token_run shareable(const token_run& prompt, const sequence_options& options) noexcept {
  auto part = prompt;
  if (options.max_cached_tokens < std::ssize(prompt.tokens)) {
    part.tokens = prompt.tokens.first(static_cast<std::size_t>(options.max_cached_tokens) + 1);
  }
  return part;
}

/// Repeats an operation that takes blocks of the cache, and whose first attempt was `done`, until it succeeds or there
/// is no way to make room: free and evictable blocks first, then sequences whose release was deferred, then preemption,
/// if the request may preempt. Adds preempted requests to `preempted`.
///
/// If a step's retirement will make room, no other request is preempted.
template <class Result, class Cache, class Preemption, class Mutex, class Operation>
[[nodiscard]] Result with_room(Result done, const room_wanted<typename Cache::stream>& wanted,
                               std::vector<request_id>& preempted, sequence_releases<Cache, Mutex>& releases,
                               request_preemption<Cache, Preemption, Mutex>& preemption,
                               Operation&& operation) noexcept {
  const auto is_full = [&] { return !done && done.error().code == error_code::capacity_exhausted; };
  if (is_full() && releases.release_deferred()) {
    done = operation();
  }
  if constexpr (Preemption::enabled) {
    const auto& options = wanted.request.options;
    while (is_full() && options.may_preempt && done.error().step == step_id{}) {
      const auto has_room =
          preemption.make_room(candidate_of(wanted.id, wanted.request), done.error().value - done.error().limit,
                               shareable(wanted.prompt, options.sequence), options.sequence.salt, wanted.on, preempted);
      if (!has_room) {
        return has_room.error();
      }
      if (!*has_room) {
        break;
      }
      done = operation();
    }
  }
  return done;
}

}  // namespace pagedkv
