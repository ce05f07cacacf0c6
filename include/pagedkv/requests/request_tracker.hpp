#pragma once

#include <pagedkv/cache/outcomes.hpp>
#include <pagedkv/policy/events/concept.hpp>
#include <pagedkv/requests/deferred_releases.hpp>
#include <pagedkv/requests/request.hpp>
#include <pagedkv/requests/request_records.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <mutex>
#include <new>
#include <optional>
#include <span>
#include <thread>
#include <type_traits>
#include <vector>

namespace pagedkv {

/// Follows requests from submission to their end, and releases each one's sequence exactly once, whichever of finish,
/// cancel, fail and preempt comes first.
///
/// Rank: a request outranks those of lower priority, and of the same priority those that arrived later. When the pool
/// is full and a request may preempt, running requests that it outranks give way, lowest first, as few as it takes; if
/// all of them would not be enough, none does. Where blocks of theirs are used by open steps, the request is refused
/// all the same, and `error::step` says with which step the room comes; asked again before, nobody else gives way.
///
/// Thread safety: that of the cache. Progress: a mutex guards the records, under every locking policy but those for one
/// thread. It is held while a record is found and changed, for `submit`, `resume` and `append` that preempt also while
/// all records are read, and never while the cache is called. So a thread that is stopped inside the cache stops no
/// other; one that is stopped while it holds the mutex stops all that use this tracker, also under `lock_free`. Where
/// the cache answers `sequence_busy` to a release, a later operation of the tracker releases that sequence.
///
/// `Cache` outlives the tracker.
template <class Cache>
class request_tracker {
 public:
  using cache_type = Cache;
  using stream = typename Cache::stream;

  /// Takes memory for the records of ended requests and, where the cache may answer `sequence_busy`, for one id per
  /// sequence. Throws `exception` on negative limits.
  explicit request_tracker(Cache& cache, const tracker_limits& limits = {})
      : cache_(cache),
        records_(with_defaults(cache, limits)),
        deferred_(waits_for_sequence ? 0 : static_cast<std::size_t>(cache.config().max_sequences)) {}

  request_tracker(const request_tracker&) = delete;
  request_tracker& operator=(const request_tracker&) = delete;

  /// Cancels what is still running.
  ~request_tracker() {
    release_deferred();
    records_.for_each_running([&](request_id, const request_info& request) { release(request.sequence, {}); });
  }

  /// Starts a request. Errors: those of `create_sequence`; `capacity_exhausted` only after free blocks, evictable
  /// blocks and (if allowed) preemption; `limit_reached` (`tracker_limits::max_open`).
  [[nodiscard]] result<submission> submit(std::span<const token> tokens, const request_options& options = {}) noexcept {
    const auto place = records_.reserve();  // before anybody gives way
    if (!place) {
      return place.error();
    }
    auto request = request_info{};
    request.options = options;
    request.arrival = (*place)->record.arrival;
    const auto admitted = admit(request, tokens);
    if (!admitted) {
      records_.abandon(**place);
      return admitted.error();
    }
    request.sequence = admitted->id;
    request.submitted = cache_.time();
    return submission{records_.open(**place, request), admitted->id, admitted->num_cached_tokens};
  }

  /// Restarts a preempted request on all its tokens so far. Errors: those of `submit`; `not_preempted`,
  /// `already_ended`, `unknown_request`.
  [[nodiscard]] result<submission> resume(request_id id, std::span<const token> tokens) noexcept {
    const auto waiting = records_.describe_in(id, request_state::preempted);
    if (!waiting) {
      return waiting.error();
    }
    const auto admitted = admit(*waiting, tokens);
    if (!admitted) {
      return admitted.error();
    }
    if (const auto resumed = records_.resume(id, admitted->id); !resumed) {
      release(admitted->id, {});
      return resumed.error();
    }
    return submission{id, admitted->id, admitted->num_cached_tokens};
  }

  /// Appends tokens to a running request, preempting as `submit` does. A copy on write runs on `on`. Errors: those of
  /// the cache's `append`; `preempted`, `already_ended`, `unknown_request`.
  [[nodiscard]] result<void> append(request_id id, std::span<const token> tokens, stream on = {}) noexcept {
    const auto running = records_.describe_in(id, request_state::running);
    if (!running) {
      return running.error();
    }
    auto appended = with_preemption(*running, {}, [&] { return cache_.append(running->sequence, tokens, on); });
    if (!appended && appended.error().code == error_code::unknown_sequence) {
      // Another thread has ended or preempted the request meanwhile: say which.
      const auto now = records_.describe_in(id, request_state::running);
      return now ? appended : now.error();
    }
    return appended;
  }

  /// The end of a running or preempted request. The hint is passed on to the eviction policy. Errors:
  /// `already_ended`, `unknown_request`.
  [[nodiscard]] result<void> finish(request_id id, const release_hint& hint = {}) noexcept {
    return end(id, request_state::finished, hint, {});
  }
  [[nodiscard]] result<void> cancel(request_id id) noexcept { return end(id, request_state::cancelled, {}, {}); }
  [[nodiscard]] result<void> fail(request_id id, const error& reason) noexcept {
    return end(id, request_state::failed, {}, reason);
  }

  /// Takes a running request's blocks; `resume` starts it again. Errors: `preempted`, `already_ended`,
  /// `unknown_request`.
  [[nodiscard]] result<void> preempt(request_id id) noexcept {
    release_deferred();
    return take_blocks(id);
  }

  [[nodiscard]] result<request_info> describe(request_id id) noexcept { return records_.describe(id); }

  /// Forgets records of ended requests that are too old by the cache's time. Also done whenever a request ends.
  void purge() noexcept {
    release_deferred();
    records_.purge(cache_.time());
  }

  [[nodiscard]] tracker_statistics statistics() noexcept { return records_.statistics(); }

 private:
  using locking_type = typename Cache::locking_type;
  static constexpr bool waits_for_sequence = locking_type::waits_for_sequence;
  static constexpr bool one_thread =
      !locking_type::family::concurrent && std::is_same_v<typename locking_type::cache_mutex, no_mutex>;
  using mutex_type = std::conditional_t<one_thread, no_mutex, std::mutex>;

  static constexpr auto max_attempts = 16;  // at an operation on a sequence that another thread is inside of

  [[nodiscard]] static tracker_limits with_defaults(const Cache& cache, tracker_limits limits) {
    if (const auto lowest = std::min<std::int64_t>({limits.max_open, limits.max_ended, limits.max_age}); lowest < 0) {
      throw exception(error{error_code::invalid_argument, "tracker_limits.max_open, .max_ended or .max_age", lowest});
    }
    if (limits.max_open == 0) {
      limits.max_open = static_cast<std::int32_t>(std::min<std::int64_t>(
          2 * std::int64_t{cache.config().max_sequences}, std::numeric_limits<std::int32_t>::max()));
    }
    return limits;
  }

  [[nodiscard]] result<admission> admit(const request_info& request, std::span<const token> tokens) noexcept {
    release_deferred();
    return with_preemption(request, tokens,
                           [&] { return cache_.create_sequence(tokens, request.options.sequence); });
  }

  [[nodiscard]] result<void> end(request_id id, request_state how, const release_hint& hint,
                                 const std::optional<error>& failure) noexcept {
    release_deferred();
    const auto held = records_.end(id, how, cache_.time(), failure);
    if (!held) {
      return held.error();
    }
    if (*held) {
      release(**held, hint);
    }
    return {};
  }

  [[nodiscard]] result<void> take_blocks(request_id id) noexcept {
    const auto held = records_.preempt(id);
    if (!held) {
      return held.error();
    }
    if constexpr (reports<typename Cache::events_type, event_kind::preempted>) {
      cache_.events().emit(
          {.kind = event_kind::preempted, .sequence = *held, .request = static_cast<std::uint64_t>(id)});
    }
    release(*held, {});
    return {};
  }

  /// Calls `operation()`, and again while another thread is inside the sequence, a bounded number of times: that thread
  /// may be stopped there.
  template <class Operation>
  [[nodiscard]] static auto patiently(Operation&& operation) noexcept {
    auto done = operation();
    for (auto attempts = 1; !waits_for_sequence && !done && done.error().code == error_code::sequence_busy &&
                            attempts < max_attempts;
         ++attempts) {
      std::this_thread::yield();
      done = operation();
    }
    return done;
  }

  /// Only the caller knows that the sequence is still there, so all that can stand in the way is an operation on it.
  void release(sequence_id id, const release_hint& hint) noexcept {
    const auto released = patiently([&] { return cache_.release(id, hint); });
    if (!waits_for_sequence && !released && released.error().code == error_code::sequence_busy) {
      deferred_.push({id, hint});
    }
  }
  void release_deferred() noexcept {
    if constexpr (!waits_for_sequence) {
      for (auto left = deferred_.size(); left > 0; --left) {
        if (const auto next = deferred_.pop()) {
          release(next->sequence, next->hint);
        }
      }
    }
  }

  template <class Operation>
  [[nodiscard]] auto with_preemption(const request_info& beneficiary, std::span<const token> tokens,
                                     Operation&& operation) noexcept {
    auto done = patiently(operation);
    while (!done && beneficiary.options.may_preempt && done.error().code == error_code::capacity_exhausted &&
           done.error().step == step_id{} &&  // else there is room already when that retires
           make_room(beneficiary, done.error().value - done.error().limit, tokens)) {
      done = patiently(operation);
    }
    return done;
  }

  /// Preempts the lowest-ranking requests that the beneficiary outranks, until their blocks are `num_missing`. False,
  /// and nothing is changed, when they would not be.
  [[nodiscard]] bool make_room(const request_info& beneficiary, std::int64_t num_missing,
                               std::span<const token> tokens) noexcept {
    try {
      const auto outranked = records_.running_below(rank_of(beneficiary));
      auto sequences = std::vector<sequence_id>{};
      for (const auto& candidate : outranked) {
        sequences.push_back(candidate.sequence);
      }
      const auto count =
          cache_.fewest_to_release(sequences, num_missing, tokens, beneficiary.options.sequence.salt);
      if (!count || *count == 0) {
        return false;
      }
      for (std::size_t i = 0; i < *count; ++i) {
        static_cast<void>(take_blocks(outranked[i].id));  // fails only where another thread has ended it meanwhile
      }
      return true;
    } catch (const std::bad_alloc&) {
    }
    return false;
  }

  Cache& cache_;
  request_records<mutex_type> records_;
  deferred_releases<mutex_type> deferred_;
};

}  // namespace pagedkv
