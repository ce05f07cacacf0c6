#pragma once

#include <pagedkv/cache/events.hpp>
#include <pagedkv/cache/record_map.hpp>
#include <pagedkv/core/checked.hpp>
#include <pagedkv/lifecycle/ended_queue.hpp>
#include <pagedkv/lifecycle/request.hpp>
#include <pagedkv/policy/locking/guards.hpp>
#include <pagedkv/policy/locking/single_thread.hpp>

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
/// all of them would not be enough, none does.
///
/// Thread safety: that of the cache. Lock order: the tracker's mutex is never held while the cache is called. `Cache`
/// outlives the tracker.
template <class Cache>
class request_tracker {
 public:
  using cache_type = Cache;

  explicit request_tracker(Cache& cache, tracker_limits limits = {})
      : cache_(cache), limits_(valid(limits)), records_(capacity(cache, limits)), ended_(limits.max_ended) {}

  request_tracker(const request_tracker&) = delete;
  request_tracker& operator=(const request_tracker&) = delete;

  /// Cancels what is still running.
  ~request_tracker() {
    records_.for_each([&](const auto& place) {
      if (place.record.state == request_state::running) {
        release(place.record.sequence, false);
      }
    });
  }

  /// Starts a request. Errors: those of `create_sequence`; `capacity_exhausted` only after free blocks, evictable
  /// blocks and (if allowed) preemption.
  [[nodiscard]] result<submission> submit(std::span<const token> tokens, const request_options& options = {}) noexcept {
    const auto place = reserve_record();  // before anybody gives way
    if (!place) {
      return place.error();
    }
    const auto arrival = (*place)->record.arrival;
    auto admitted =
        with_preemption(request_rank{options.sequence.priority, arrival}, options.may_preempt, tokens,
                        options.sequence.salt, [&] { return cache_.create_sequence(tokens, options.sequence); });
    if (!admitted) {
      const auto guard = exclusive_guard{mutex_};
      ++statistics_.refused;
      records_.abandon(**place);
      return admitted.error();
    }
    auto request = request_info{};
    request.sequence = admitted->id;
    request.options = options;
    request.arrival = arrival;
    request.submitted = cache_.time();
    return submission{enter(**place, request), admitted->id, admitted->num_cached_tokens};
  }

  /// Restarts a preempted request on all its tokens so far.
  [[nodiscard]] result<submission> resume(request_id id, std::span<const token> tokens) noexcept {
    const auto waiting = info_in(id, request_state::preempted);
    if (!waiting) {
      return waiting.error();
    }
    auto admitted =
        with_preemption(rank_of(*waiting), waiting->options.may_preempt, tokens, waiting->options.sequence.salt,
                        [&] { return cache_.create_sequence(tokens, waiting->options.sequence); });
    if (!admitted) {
      return admitted.error();
    }
    const auto resumed = change(id, request_state::preempted, [&](request_info& request) {
      move(request, request_state::running);
      request.sequence = admitted->id;
    });
    if (!resumed) {
      release(admitted->id, false);
      return resumed.error();
    }
    return submission{id, admitted->id, admitted->num_cached_tokens};
  }

  /// Appends tokens to a running request, preempting as `submit` does.
  [[nodiscard]] result<void> append(request_id id, std::span<const token> tokens) noexcept {
    const auto running = info_in(id, request_state::running);
    if (!running) {
      return running.error();
    }
    auto appended = with_preemption(rank_of(*running), running->options.may_preempt, {}, salt::none,
                                    [&] { return cache_.append(running->sequence, tokens); });
    if (!appended && appended.error().code == error_code::unknown_sequence) {
      // Another thread has ended or preempted the request meanwhile: say which.
      const auto now = info_in(id, request_state::running);
      return now ? appended : now.error();
    }
    return appended;
  }

  /// The end of a running or preempted request. `session_ended` is passed on to the eviction policy. Errors:
  /// `already_ended`, `unknown_request`.
  [[nodiscard]] result<void> finish(request_id id, bool session_ended = false) noexcept {
    return end(id, request_state::finished, session_ended, {});
  }
  [[nodiscard]] result<void> cancel(request_id id) noexcept { return end(id, request_state::cancelled, false, {}); }
  [[nodiscard]] result<void> fail(request_id id, const error& reason) noexcept {
    return end(id, request_state::failed, false, reason);
  }

  /// Takes a running request's blocks; `resume` starts it again.
  [[nodiscard]] result<void> preempt(request_id id) noexcept {
    auto sequence = sequence_id{};
    auto preempted = change(id, request_state::running, [&](request_info& request) {
      sequence = request.sequence;
      give_way(request);
    });
    if (preempted) {
      if constexpr (Cache::events_type::enabled) {
        cache_.events().emit({.kind = event_kind::preempted, .request = static_cast<std::uint64_t>(id)});
      }
      release(sequence, false);
    }
    return preempted;
  }

  [[nodiscard]] result<request_info> describe(request_id id) noexcept {
    const auto guard = exclusive_guard{mutex_};
    const auto* request = find(id);
    if (request == nullptr) {
      return unknown(id);
    }
    return *request;
  }

  /// Forgets records of ended requests that are too old by the cache's time. Also done whenever a request ends.
  void purge() noexcept {
    const auto now = cache_.time();
    const auto guard = exclusive_guard{mutex_};
    purge_before(now);
  }

  [[nodiscard]] tracker_statistics statistics() noexcept {
    const auto guard = exclusive_guard{mutex_};
    auto taken = statistics_;
    taken.kept_records = static_cast<std::int64_t>(ended_.size());
    return taken;
  }

 private:
  using locking_type = typename Cache::locking_type;
  using record_place = typename record_map<request_info, single_thread>::place;
  static constexpr bool one_thread =
      !locking_type::family::concurrent && std::is_same_v<typename locking_type::cache_mutex, no_mutex>;
  using mutex_type = std::conditional_t<one_thread, no_mutex, std::mutex>;

  [[nodiscard]] static tracker_limits valid(tracker_limits limits) {
    if (limits.max_ended < 0 || limits.max_age < 0) {
      throw exception(error{error_code::invalid_argument, "tracker_limits.max_ended or .max_age",
                            std::min<std::int64_t>(limits.max_ended, limits.max_age)});
    }
    return limits;
  }
  /// Running requests hold a sequence each; preempted ones may be as many again.
  [[nodiscard]] static std::int32_t capacity(const Cache& cache, tracker_limits limits) {
    auto size = checked_size{};
    const auto records = size.add(2 * std::int64_t{cache.config().max_sequences}, limits.max_ended);
    return static_cast<std::int32_t>(std::min<std::int64_t>(records, std::numeric_limits<std::int32_t>::max()));
  }

  [[nodiscard]] static error unknown(request_id id) noexcept {
    return {error_code::unknown_request, "request id", static_cast<std::int64_t>(id)};
  }

  [[nodiscard]] request_info* find(request_id id) noexcept {
    auto* place = records_.find(static_cast<std::uint64_t>(id));
    return place != nullptr && records_.is_open(*place, static_cast<std::uint64_t>(id)) ? &place->record : nullptr;
  }

  [[nodiscard]] result<record_place*> reserve_record() noexcept {
    const auto guard = exclusive_guard{mutex_};
    auto reserved = records_.reserve("number of requests");
    if (reserved) {
      (*reserved)->record.arrival = ++last_arrival_;
    } else {
      ++statistics_.refused;
    }
    return reserved;
  }
  [[nodiscard]] request_id enter(record_place& reserved, const request_info& request) noexcept {
    const auto guard = exclusive_guard{mutex_};
    reserved.record = request;
    ++statistics_.submitted;
    ++statistics_.running;
    records_.open(reserved);
    return static_cast<request_id>(records_.id_of(reserved));
  }

  /// Calls `apply(request)` if the request is in the given state.
  template <class Apply>
  [[nodiscard]] result<void> change(request_id id, request_state from, Apply&& apply) noexcept {
    const auto guard = exclusive_guard{mutex_};
    auto* request = find(id);
    if (request == nullptr) {
      return unknown(id);
    }
    if (request->state != from) {
      const bool over = request->state != request_state::running && request->state != request_state::preempted;
      return error{over ? error_code::already_ended : error_code::invalid_argument, "request id",
                   static_cast<std::int64_t>(id)};
    }
    apply(*request);
    return {};
  }

  [[nodiscard]] result<request_info> info_in(request_id id, request_state state) noexcept {
    auto info = request_info{};
    if (auto there = change(id, state, [&](const request_info& request) { info = request; }); !there) {
      return there.error();
    }
    return info;
  }

  [[nodiscard]] std::int64_t& tally(request_state state) noexcept {
    switch (state) {
      case request_state::running: return statistics_.running;
      case request_state::preempted: return statistics_.preempted;
      case request_state::finished: return statistics_.finished;
      case request_state::cancelled: return statistics_.cancelled;
      case request_state::failed: break;
    }
    return statistics_.failed;
  }
  void move(request_info& request, request_state to) noexcept {
    --tally(request.state);
    ++tally(to);
    request.state = to;
  }
  void give_way(request_info& request) noexcept {
    move(request, request_state::preempted);
    ++request.num_preemptions;
    ++statistics_.preemptions;
  }

  [[nodiscard]] result<void> end(request_id id, request_state how, bool session_ended,
                                 std::optional<error> failure) noexcept {
    const auto now = cache_.time();
    auto held = std::optional<sequence_id>{};
    {
      const auto guard = exclusive_guard{mutex_};
      auto* request = find(id);
      if (request == nullptr) {
        return unknown(id);
      }
      if (request->state == request_state::running) {
        held = request->sequence;
      } else if (request->state != request_state::preempted) {
        return error{error_code::already_ended, "request id", static_cast<std::int64_t>(id)};
      }
      move(*request, how);
      request->ended = now;
      request->failure = failure;
      keep(id);
      purge_before(now);
    }
    if (held) {
      release(*held, session_ended);
    }
    return {};
  }

  void keep(request_id id) noexcept {
    if (ended_.full()) {
      forget(ended_.pop());
    }
    if (limits_.max_ended == 0) {
      forget(id);
    } else {
      ended_.push(id);
    }
  }
  void purge_before(timestamp now) noexcept {
    while (!ended_.empty() &&
           static_cast<std::int64_t>(now) - static_cast<std::int64_t>(find(ended_.oldest())->ended) > limits_.max_age) {
      forget(ended_.pop());
    }
  }
  void forget(request_id id) noexcept {
    auto* place = records_.find(static_cast<std::uint64_t>(id));
    records_.close(*place);
    records_.abandon(*place);
  }

  /// Only the caller knows that the sequence is still there, so all that can stand in the way is an operation on it
  /// that is about to end.
  void release(sequence_id id, bool session_ended) noexcept {
    for (auto released = cache_.release(id, session_ended);
         !released && released.error().code == error_code::sequence_busy;
         released = cache_.release(id, session_ended)) {
      std::this_thread::yield();
    }
  }

  template <class Operation>
  [[nodiscard]] auto with_preemption(const request_rank& beneficiary, bool allowed, std::span<const token> tokens,
                                     salt tag, Operation&& operation) noexcept {
    auto done = operation();
    while (!done && allowed && done.error().code == error_code::capacity_exhausted &&
           make_room(beneficiary, done.error().value - done.error().limit, tokens, tag)) {
      done = operation();
    }
    return done;
  }

  /// Preempts the lowest-ranking requests that the beneficiary outranks, until their blocks are `num_missing`. False,
  /// and nothing is changed, when they would not be.
  [[nodiscard]] bool make_room(const request_rank& beneficiary, std::int64_t num_missing, std::span<const token> tokens,
                               salt tag) noexcept {
    try {
      const auto outranked = running_below(beneficiary);
      auto sequences = std::vector<sequence_id>{};
      for (const auto& [id, request] : outranked) {
        sequences.push_back(request.sequence);
      }
      const auto enough = [&](std::size_t count) {
        const auto gain = cache_.gain_of_releasing(std::span{sequences}.first(count), tokens, tag);
        return gain && *gain >= num_missing;
      };
      if (outranked.empty() || !enough(outranked.size())) {
        return false;
      }
      // The more give way, the more is gained: the fewest that are enough lie between these.
      auto too_few = std::size_t{0};
      auto count = outranked.size();
      while (count - too_few > 1) {
        const auto middle = too_few + (count - too_few) / 2;
        (enough(middle) ? count : too_few) = middle;
      }
      for (std::size_t i = 0; i < count; ++i) {
        static_cast<void>(preempt(outranked[i].id));  // fails only where another thread has ended it meanwhile
      }
      return true;
    } catch (const std::bad_alloc&) {
    }
    return false;
  }

  struct candidate {
    request_id id;
    request_info request;
  };

  /// Lowest rank first.
  [[nodiscard]] std::vector<candidate> running_below(const request_rank& beneficiary) {
    auto below = std::vector<candidate>{};
    {
      const auto guard = exclusive_guard{mutex_};
      records_.for_each([&](const auto& place) {
        if (place.record.state == request_state::running && beneficiary.outranks(rank_of(place.record))) {
          below.push_back({static_cast<request_id>(records_.id_of(place)), place.record});
        }
      });
    }
    std::ranges::sort(
        below, [](const candidate& a, const candidate& b) { return rank_of(b.request).outranks(rank_of(a.request)); });
    return below;
  }

  Cache& cache_;
  tracker_limits limits_;
  [[no_unique_address]] mutex_type mutex_;
  record_map<request_info, single_thread> records_;  // under the mutex, as everything below
  ended_queue ended_;
  tracker_statistics statistics_;
  std::uint64_t last_arrival_ = 0;
};

}  // namespace pagedkv
