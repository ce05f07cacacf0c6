#pragma once

#include <pagedkv/cache/outcomes.hpp>
#include <pagedkv/core/ids.hpp>
#include <pagedkv/core/result.hpp>
#include <pagedkv/core/token_run.hpp>
#include <pagedkv/detail/memory.hpp>
#include <pagedkv/policy/events/concept.hpp>
#include <pagedkv/policy/locking/parts/unsynchronized.hpp>
#include <pagedkv/policy/preemption/concept.hpp>
#include <pagedkv/requests/batch_repetition.hpp>
#include <pagedkv/requests/concept.hpp>
#include <pagedkv/requests/preemption.hpp>
#include <pagedkv/requests/records.hpp>
#include <pagedkv/requests/request.hpp>
#include <pagedkv/requests/sequence_releases.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <mutex>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

namespace pagedkv {

/// Result of an operation that may preempt requests: a value or an error, and with either the requests that it
/// preempted. Read as a `result`, but no `result`: a conversion would lose those requests, and nothing would resume
/// them.
template <class T>
class [[nodiscard]] tracker_result : private result<T> {  // compilers show this line: hold it as `auto`
 public:
  using typename result<T>::value_type;
  using result<T>::result;
  using result<T>::has_value;
  using result<T>::has_error;
  using result<T>::operator bool;
  using result<T>::error;
  using result<T>::value;
  using result<T>::operator*;
  using result<T>::operator->;
  tracker_result(result<T> outcome, std::vector<request_id> preempted) noexcept
      : result<T>(std::move(outcome)), preempted_(std::move(preempted)) {}

  /// The value or the error alone, for a caller that lets no request preempt others, or has read `preempted()`.
  /// Constant time. Errors: those of the operation.
  [[nodiscard]] const result<T>& outcome() const& noexcept { return *this; }
  [[nodiscard]] result<T> outcome() && noexcept { return std::move(*this); }

  /// Requests that gave way, in the order of preemption. Takes memory only when there are any.
  [[nodiscard]] const std::vector<request_id>& preempted() const& noexcept { return preempted_; }
  [[nodiscard]] std::vector<request_id> preempted() && noexcept { return std::move(preempted_); }

 private:
  std::vector<request_id> preempted_;
};

/// Follows requests from submission to their end, and releases each one's sequence exactly once, whichever of finish,
/// cancel, fail and preempt comes first.
///
/// Preemption: a preempted request loses its blocks until it is resumed. When the pool is full and a request may
/// preempt, running requests that rank below it are preempted: the lowest first, as few as possible, and only requests
/// whose blocks make room. If all of them do not suffice, none is preempted. If open steps use their blocks, the
/// operation is refused, and `error::step` is the step whose retirement provides the room; a repetition before that
/// preempts no other request. Each operation returns the requests that it preempted.
///
/// A request that has published blocks ahead of the newest step's launch takes them out of the prefix cache when it is
/// preempted in that step. If another sequence, a pin or the request that asks for room needs one of them, it keeps its
/// blocks until the next step.
///
/// Thread safety: that of the cache. Progress: a mutex guards the records, under every locking policy but those for one
/// thread. The tracker holds it while it finds and changes a record, and reports the change to the cache's stream of
/// events, which does not call the tracker; in `append_batch`, while it reads those of the entries; and in `adopt`, in
/// `resumable`, in a batch with an entry whose request does not run, and in an operation that preempts for a request,
/// while it reads all records; never while it calls the cache or the preemption policy. So a thread that is stopped
/// inside the cache stops no other; a thread that is stopped while it holds the mutex stops all users of this tracker,
/// also under `lock_free`. If the cache returns `sequence_busy` for a release, a later operation of the tracker repeats
/// it.
///
/// `Cache` outlives the tracker. Operations copy bytes, if necessary, on the given stream.
template <class Cache, class Preemption>
class request_tracker {
  using used_preemption = std::conditional_t<preemption_for<Preemption, Cache>, Preemption, detail::refused_preemption>;

  static_assert(cache_for_requests<Cache>,
                "request_tracker<Cache> needs a cache with the operations of pagedkv/requests/concept.hpp");
  static_assert(sizeof(detail::preemption_check<Preemption, Cache>) > 0);

 public:
  /// The template arguments, and the stream of the cache's backend.
  using cache_type = Cache;
  using preemption_type = Preemption;
  using stream_type = typename Cache::stream_type;

  /// Takes memory for the records of ended requests and, where the cache may answer `sequence_busy`, for one id per
  /// sequence. Throws `exception` on an invalid configuration.
  explicit request_tracker(Cache& cache, const tracker_config& config = {}, Preemption preemption = Preemption{})
      : cache_(cache),
        records_(checked(cache, config)),
        releases_(cache),
        preemption_(cache, records_, releases_, used_preemption(std::move(preemption))) {}

  request_tracker(const request_tracker&) = delete;
  request_tracker& operator=(const request_tracker&) = delete;

  /// Releases the sequences of running requests, without an event that they ended.
  ~request_tracker() {
    releases_.release_deferred();
    records_.for_each_in(request_state::running,
                         [&](request_id, const request_info& request) { releases_.release(request.sequence, {}); });
  }

  /// Starts a request. Linear in the prompt; with preemption, also O(n log n) in the running requests and in the blocks
  /// of those that rank below. Errors: those of `create_sequence`; `capacity_exhausted` only after free blocks,
  /// evictable blocks and (if allowed) preemption; `limit_reached` (`tracker_config::max_open`).
  [[nodiscard]] tracker_result<submission> submit(const token_run& prompt, const request_options& options = {},
                                                  stream_type stream = {}) noexcept {
    const auto cell = records_.reserve();  // before another is preempted
    if (!cell) {
      return cell.error();
    }
    auto& request = (*cell)->record();  // only this thread knows it until it is opened
    start_request(request, options, cache_.time());
    auto& end_of_prompt = request.options.sequence.num_prompt_tokens;  // also when it is resumed
    end_of_prompt = std::min(end_of_prompt, static_cast<std::int64_t>(prompt.tokens.size()));
    auto preempted = std::vector<request_id>{};
    const auto admitted = admit({{}, request, prompt, stream}, preempted);
    if (!admitted) {
      records_.abandon(**cell);
      return {admitted.error(), std::move(preempted)};
    }
    request.sequence = admitted->id;
    const auto id = records_.open(**cell, start_reporter());
    return {submission_of(id, *admitted), std::move(preempted)};
  }

  /// Takes a request that waits for blocks: `resumable` ranks it among the preempted ones, and `resume` starts it with
  /// its prompt. It arrives now. Constant time. Errors: `limit_reached` (`tracker_config::max_open`), `out_of_memory`.
  [[nodiscard]] result<request_id> enqueue(const request_options& options = {}) noexcept {
    const auto cell = records_.reserve();
    if (!cell) {
      return cell.error();
    }
    auto& request = (*cell)->record();
    start_request(request, options, cache_.time());
    request.state = request_state::waiting;
    return records_.open(**cell, [](request_id, sequence_id) {});
  }

  /// Starts a waiting request on its prompt, or a preempted one on all its tokens so far, which nothing compares with
  /// those that it had. Its prompt ends where it ended at first; the other tokens are its answer. Linear in the tokens,
  /// and as `submit` with preemption. Errors: those of the cache's `create_sequence`; `not_preempted`, `already_ended`,
  /// `unknown_request`; `sequence_busy` while another thread saves its K/V, or has resumed it meanwhile.
  [[nodiscard]] tracker_result<submission> resume(request_id id, const token_run& tokens,
                                                  stream_type stream = {}) noexcept {
    auto waiting = records_.describe_resumable(id);
    if (!waiting) {
      return waiting.error();
    }
    auto& end_of_prompt = waiting->options.sequence.num_prompt_tokens;
    end_of_prompt = std::min(end_of_prompt, static_cast<std::int64_t>(tokens.tokens.size()));
    auto preempted = std::vector<request_id>{};
    const auto admitted = admit({id, *waiting, tokens, stream}, preempted);
    if (!admitted) {
      return {admitted.error(), std::move(preempted)};
    }
    auto request = candidate_of(id, *waiting);
    request.sequence = admitted->id;
    auto made = submission_of(id, *admitted);
    if (waiting->state == request_state::preempted) {
      made.num_cached_tokens = preemption_.restore(request, admitted->num_cached_tokens, stream);
    }
    if (const auto resumed = records_.resume(id, *waiting, admitted->id, end_of_prompt, start_reporter()); !resumed) {
      releases_.release(admitted->id, {});
      return {resumed.error(), std::move(preempted)};
    }
    return {made, std::move(preempted)};
  }

  /// Appends tokens to a running request, preempting as `submit` does. Linear in the tokens, and as `submit` with
  /// preemption. Errors: those of the cache's `append`; `preempted`, `already_ended`, `unknown_request`.
  [[nodiscard]] tracker_result<void> append(request_id id, token next, stream_type stream = {}) noexcept {
    return append(id, std::span{&next, 1}, stream);
  }
  [[nodiscard]] tracker_result<void> append(request_id id, const token_run& run, stream_type stream = {}) noexcept {
    const auto sequence = records_.sequence_of(id);
    if (!sequence) {
      return sequence.error();
    }
    const auto attempt = [&] { return patiently([&] { return cache_.append(*sequence, run, stream); }); };
    const auto appended = attempt();
    if (appended) [[likely]] {
      return {};
    }
    const auto running = records_.describe_in(id, request_state::running);
    if (!running) {  // another thread has ended or preempted it meanwhile
      return running.error();
    }
    auto preempted = std::vector<request_id>{};
    const auto repeated = with_room(appended, {id, *running, {}, stream}, preempted, releases_, preemption_, attempt);
    if (!repeated) {
      return {explained(id, repeated.error()), std::move(preempted)};
    }
    return {repeated, std::move(preempted)};
  }

  /// The cache's `append_batch` for running requests: `entries[i]` is of the sequence of `requests[i]`. Entries for
  /// which blocks are missing are repeated with preemption, the highest rank first. Not so where a request has several
  /// entries. The entries of requests that gave way count as failed, with `preempted` as the reason. New blocks of
  /// repeated entries come last; ignore those of failed entries. Linear in the entries, as the cache's, and in all
  /// records for each entry whose request does not run; each entry that is repeated costs O(entries), and as `submit`
  /// with preemption. Errors of the call, which then changes nothing:
  /// those of the cache; `invalid_argument` unless there are as many requests as entries, and where an entry is of a
  /// sequence that its request does not have, unless that has ended or gave way and no other has the sequence.
  [[nodiscard]] tracker_result<batch_outcome> append_batch(std::span<const request_id> requests,
                                                           std::span<const batch_entry> entries,
                                                           const batch_buffers& out, stream_type stream = {}) noexcept
    requires cache_for_batches<Cache>
  {
    if (requests.size() != entries.size()) {
      return error{error_code::invalid_argument, "number of requests of a batch, which is not that of the entries,",
                   static_cast<std::int64_t>(requests.size()), static_cast<std::int64_t>(entries.size())};
    }
    if (const auto owned = records_.check_owners(requests, entries); !owned) [[unlikely]] {
      return owned.error();
    }
    auto done = cache_.append_batch(entries, out, stream);
    if (!done || done->num_failures == 0) [[likely]] {
      return {done, {}};
    }
    auto preempted = std::vector<request_id>{};
    const auto repeat = [&] {
      auto batch = batch_repetition<Cache>{cache_, entries, out, *done, stream};
      repeat_failed(batch, requests, preempted, stream);
      return true;
    };
    if (!detail::with_memory(repeat, false)) {  // which has repeated nothing
      for (auto& failure : out.failures.first(done->num_failures)) {
        if (failure.reason.code == error_code::capacity_exhausted) {
          failure.reason = error{error_code::out_of_memory, "number of entries to repeat",
                                 static_cast<std::int64_t>(done->num_failures)};
        }
      }
    }
    return {done, std::move(preempted)};
  }

  /// A second request on the blocks of a running one, with its options and an arrival of its own: one more sample, or
  /// one more beam. It ends and is preempted by itself. Takes no block of tokens: the first append to a block that both
  /// hold copies it. All tokens must be committed. Linear in its blocks. Errors: those of the cache's `fork`;
  /// `limit_reached` (`tracker_config::max_open`); `preempted`, `already_ended`, `unknown_request`.
  [[nodiscard]] result<request_fork> fork(request_id id, stream_type stream = {}) noexcept {
    const auto running = records_.describe_in(id, request_state::running);
    if (!running) {
      return running.error();
    }
    const auto cell = records_.reserve();
    if (!cell) {
      return cell.error();
    }
    const auto forked = patiently([&] { return cache_.fork(running->sequence, stream); });
    if (!forked) {
      records_.abandon(**cell);
      return explained(id, forked.error());
    }
    auto& request = (*cell)->record();
    start_request(request, running->options, cache_.time());
    request.sequence = *forked;
    const auto made = records_.open(**cell, start_reporter());
    return request_fork{made, *forked};
  }

  /// Makes a request of a sequence that exists already: one that was restored from a session, handed over, or created
  /// or forked without the tracker. The caller no longer releases it: each end of the request and each preemption does.
  /// Its tokens and what is computed of them stay, also where the prompt is still to be appended. It arrives now. The
  /// options count for its rank, and when it is resumed, but the salt and, unless they limit it, the prompt are the
  /// sequence's. Linear in the records. Errors: `in_use` if a request of this tracker has the sequence; `limit_reached`
  /// (`tracker_config::max_open`), `unknown_sequence`, `sequence_busy`, `out_of_memory`.
  [[nodiscard]] result<request_id> adopt(sequence_id sequence, const request_options& options = {}) noexcept
    requires cache_that_describes<Cache>
  {
    releases_.release_deferred();  // of a request that had it
    const auto cell = records_.reserve();
    if (!cell) {
      return cell.error();
    }
    const auto made = open_with(**cell, sequence, options);
    if (!made) {
      records_.abandon(**cell);
    }
    return made;
  }

  /// The end of a running, waiting or preempted request. The hint is passed on to the eviction policy. Linear in its
  /// blocks, and in the records that this makes too old. Errors: `already_ended`, `unknown_request`.
  [[nodiscard]] result<void> finish(request_id id, const release_hint& hint = {}) noexcept {
    return end(id, request_state::finished, hint, {});
  }
  [[nodiscard]] result<void> cancel(request_id id) noexcept { return end(id, request_state::cancelled, {}, {}); }
  [[nodiscard]] result<void> fail(request_id id, const error& reason) noexcept {
    return end(id, request_state::failed, {}, reason);
  }

  /// Takes a running request's blocks; `resume` starts it again. Hides what it has published ahead of the newest step's
  /// launch, see the cache's `withdraw`. Linear in its blocks; a policy that keeps K/V copies it in addition. Errors:
  /// `preempted`, `already_ended`, `unknown_request`; `in_use` and `sequence_busy` of `withdraw`; `sequence_busy` if
  /// other threads have preempted and resumed it meanwhile.
  [[nodiscard]] result<void> preempt(request_id id, stream_type stream = {}) noexcept {
    releases_.release_deferred();
    return preemption_.preempt(id, stream);
  }

  /// The waiting and preempted requests, those that rank highest first; of equals, the first to arrive. Resume them in
  /// this order, up to the first refusal: one that is resumed ahead of its rank is preempted again for those above it.
  /// Linear in the records, and O(n log n) in these requests. Errors: `out_of_memory`.
  [[nodiscard]] result<std::vector<request_id>> resumable() const noexcept { return preemption_.resumable(); }

  /// A copy of a request's record. Constant time. Errors: `unknown_request`.
  [[nodiscard]] result<request_info> describe(request_id id) const noexcept { return records_.describe(id); }

  /// Forgets records of ended requests that are too old by the cache's time. Also done whenever a request ends. Linear
  /// in the records that it forgets.
  void purge() noexcept {
    releases_.release_deferred();
    records_.purge(cache_.time());
  }

  /// Counts of requests, see `metrics_of<tracker_statistics>`. Exact unless other threads are at work. Constant time.
  [[nodiscard]] tracker_statistics statistics() const noexcept { return records_.statistics(); }

 private:
  /// A function that reports a start.
  [[nodiscard]] auto start_reporter() noexcept {
    return [this](request_id id, sequence_id sequence) {
      detail::report<event_kind::started>(cache_.events(),
                                          [&] { return cache_event{.sequence = sequence, .request = id}; });
    };
  }

  using locking_type = typename Cache::locking_type;
  static constexpr bool one_thread =
      !locking_type::family::concurrent && std::is_same_v<typename locking_type::cache_mutex, no_mutex>;
  using mutex_type = std::conditional_t<one_thread, no_mutex, std::mutex>;

  template <class Operation>
  [[nodiscard]] static auto patiently(Operation&& operation) noexcept {
    return detail::retry_while_busy<locking_type>(operation);
  }

  /// Opens a record for a sequence that exists. Errors: those of `adopt`; then `abandon` comes next.
  [[nodiscard]] result<request_id> open_with(typename request_records<mutex_type>::cell& reserved, sequence_id sequence,
                                             const request_options& options) noexcept {
    const auto info = patiently([&] { return std::as_const(cache_).describe(sequence); });
    if (!info) {
      return info.error();
    }
    auto& request = reserved.record();
    start_request(request, options, cache_.time());
    request.sequence = sequence;
    request.options.sequence.salt = info->options.salt;
    if (options.sequence.num_prompt_tokens == sequence_options::no_limit) {
      request.options.sequence.num_prompt_tokens = info->num_prompt_tokens;
    }
    return records_.open_unless_held(reserved, start_reporter());
  }

  /// Repeats the failed entries of a batch, those of the highest rank first, and withdraws those of requests that give
  /// way. May throw `std::bad_alloc` before it changes anything.
  void repeat_failed(batch_repetition<Cache>& batch, std::span<const request_id> requests,
                     std::vector<request_id>& preempted, stream_type stream) {
    auto failed = std::vector<std::pair<preemption_candidate, batch_failure*>>{};
    failed.reserve(batch.failures().size());
    for (auto& failure : batch.failures()) {
      const auto id = requests[failure.entry];
      const auto known = records_.describe(id);
      failed.emplace_back(known ? candidate_of(id, *known) : preemption_candidate{.id = id}, &failure);
    }
    std::ranges::sort(failed, [&](const auto& a, const auto& b) {
      return preemption_.ranks_above(a.first, b.first) ||
             (!preemption_.ranks_above(b.first, a.first) && a.second->entry < b.second->entry);
    });
    for (const auto& [candidate, failure] : failed) {
      if (std::ranges::count(requests, candidate.id) > 1) {
        continue;  // its tokens would come behind those of a later entry
      }
      const auto repeated = repeat(batch, candidate.id, *failure, preempted, stream);
      if (repeated) {
        failure->entry = batch.no_entry;
      } else {
        failure->reason = repeated.error();
      }
    }
    batch.drop_repeated();
    for (std::size_t i = 0; i < requests.size(); ++i) {
      if (std::ranges::find(preempted, requests[i]) != preempted.end()) {
        batch.withdraw(
            i, error{error_code::preempted, "id of a request to resume first", static_cast<std::int64_t>(requests[i])});
      }
    }
    batch.sort_failures();
  }

  /// Where room may be missing, or the sequence was busy.
  [[nodiscard]] result<void> repeat(batch_repetition<Cache>& batch, request_id id, const batch_failure& failure,
                                    std::vector<request_id>& preempted, stream_type stream) noexcept {
    const auto running = records_.describe_in(id, request_state::running);
    if (!running) {
      return running.error();
    }
    const auto why = failure.reason.code;
    if (why != error_code::capacity_exhausted && why != error_code::sequence_busy) {
      return failure.reason;
    }
    const auto attempt = [&] { return patiently([&] { return batch.repeat(failure.entry); }); };
    const auto repeated = with_room(attempt(), {id, *running, {}, stream}, preempted, releases_, preemption_, attempt);
    return repeated ? repeated : explained(id, repeated.error());
  }

  /// With the default of `max_open` filled in.
  [[nodiscard]] static tracker_config checked(const Cache& cache, tracker_config config) {
    validate(config).value();
    if (config.max_open == 0) {
      constexpr auto most = std::int64_t{std::numeric_limits<std::int32_t>::max()};
      const auto wanted = 2 * std::int64_t{cache.config().max_sequences};
      config.max_open = static_cast<std::int32_t>(std::min(wanted, most - config.max_ended));
    }
    return config;
  }

  [[nodiscard]] result<admission> admit(const room_wanted<stream_type>& wanted,
                                        std::vector<request_id>& preempted) noexcept {
    releases_.release_deferred();
    const auto attempt = [&] {
      return patiently(
          [&] { return cache_.create_sequence(wanted.prompt, wanted.request.options.sequence, wanted.stream); });
    };
    return with_room(attempt(), wanted, preempted, releases_, preemption_, attempt);
  }

  /// Why the cache refused an operation on a request that was running before: another thread may have ended or
  /// preempted it meanwhile.
  [[nodiscard]] error explained(request_id id, const error& refusal) noexcept {
    if (refusal.code == error_code::unknown_sequence) {
      if (const auto now = records_.describe_in(id, request_state::running); !now) {
        return now.error();
      }
    }
    return refusal;
  }

  [[nodiscard]] result<void> end(request_id id, request_state how, const release_hint& hint,
                                 const std::optional<error>& failure) noexcept {
    releases_.release_deferred();
    const auto held = records_.end(id, how, cache_.time(), failure, [&] {
      detail::report<event_kind::ended>(cache_.events(), [&] { return cache_event{.request = id}; });
    });
    if (!held) {
      return held.error();
    }
    if (*held) {
      releases_.release(**held, hint);
    }
    preemption_.discard(id);
    return {};
  }

  Cache& cache_;
  request_records<mutex_type> records_;
  sequence_releases<Cache, mutex_type> releases_;
  request_preemption<Cache, used_preemption, mutex_type> preemption_;
};

}  // namespace pagedkv
