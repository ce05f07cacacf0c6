#pragma once

#include <pagedkv/cache/record_map.hpp>
#include <pagedkv/core/result.hpp>
#include <pagedkv/policy/locking/parts/guards.hpp>
#include <pagedkv/policy/locking/single_thread.hpp>
#include <pagedkv/policy/preemption/concept.hpp>
#include <pagedkv/requests/request.hpp>

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace pagedkv {

/// A queue of fixed capacity.
template <class T>
class ring {
 public:
  explicit ring(std::size_t capacity) : entries_(capacity) {}

  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] bool empty() const noexcept { return size_ == 0; }
  [[nodiscard]] bool full() const noexcept { return size_ != 0 && size_ == entries_.size(); }
  [[nodiscard]] const T& oldest() const noexcept { return entries_[first_]; }

  /// Not on a full queue.
  void push(const T& entry) noexcept {
    entries_[(first_ + size_) % entries_.size()] = entry;
    ++size_;
  }

  /// Not on an empty queue.
  T pop() noexcept {
    --size_;
    return entries_[std::exchange(first_, (first_ + 1) % entries_.size())];
  }

 private:
  std::vector<T> entries_;
  std::size_t first_ = 0;
  std::size_t size_ = 0;
};

/// The records of a tracker's requests, behind one mutex. While a member holds the mutex, it calls no other component
/// but `note`, which reports the change, so that events come in the order of the changes; and only `reserve` and
/// `all_in` allocate.
template <class Mutex>
class request_records {
 public:
  using cell = typename record_map<request_info, single_thread>::cell;

  /// `valid`: with the default of `max_open` filled in.
  explicit request_records(const tracker_config& valid)
      : config_(valid),
        records_(valid.max_open + valid.max_ended),
        ended_(static_cast<std::size_t>(valid.max_ended)) {}

  /// A record for a request that is about to start, with its arrival. `open` or `abandon` comes next. Errors:
  /// `limit_reached` with `max_open` requests that run, wait, are preempted or about to start; `out_of_memory`.
  [[nodiscard]] result<cell*> reserve() noexcept {
    const auto guard = exclusive_guard{mutex_};
    const auto num_open = statistics_.waiting + statistics_.running + statistics_.preempted + num_reserved_;
    if (num_open >= config_.max_open) {
      ++statistics_.refused;
      return error{error_code::limit_reached,
                   "number of requests that have not ended, at most tracker_config.max_open,", num_open + 1,
                   config_.max_open};
    }
    auto reserved = records_.reserve("number of requests");
    if (reserved) {
      ++num_reserved_;
      (*reserved)->record().arrival = ++last_arrival_;
    } else {
      ++statistics_.refused;
    }
    return reserved;
  }
  void abandon(cell& reserved) noexcept {
    const auto guard = exclusive_guard{mutex_};
    --num_reserved_;
    ++statistics_.refused;
    records_.abandon(reserved);
  }
  /// The caller has filled the record in, by `start_request` and with its sequence, or as one that waits. Calls
  /// `note(id, sequence)`, as the next.
  template <class Note>
  [[nodiscard]] request_id open(cell& reserved, Note&& note) noexcept {
    const auto guard = exclusive_guard{mutex_};
    return open_reserved(reserved, note);
  }
  /// Opens a record with a sequence that the caller did not just make. Linear in the records. Errors: `in_use` if it is
  /// in another record; then `abandon` comes next.
  template <class Note>
  [[nodiscard]] result<request_id> open_unless_held(cell& reserved, Note&& note) noexcept {
    const auto guard = exclusive_guard{mutex_};
    const auto sequence = reserved.record().sequence;
    auto is_held = false;
    records_.for_each([&](const cell& other) { is_held |= other.record().sequence == sequence; });
    if (is_held) {
      return error{error_code::in_use, "id of a sequence that a request holds", static_cast<std::int64_t>(sequence)};
    }
    return open_reserved(reserved, note);
  }

  [[nodiscard]] result<request_info> describe(request_id id) const noexcept {
    const auto guard = exclusive_guard{mutex_};
    const auto* request = find(id);
    if (request == nullptr) {
      return unknown(id);
    }
    auto info = *request;
    if (info.state != request_state::running) {
      info.sequence = {};  // which the record keeps while its release may be under way
    }
    return info;
  }

  /// The sequence of a running request. Errors: see `error_of`.
  [[nodiscard]] result<sequence_id> sequence_of(request_id id) noexcept {
    auto sequence = sequence_id{};
    const auto there = change(id, request_state::running, [&](const request_info& r) { sequence = r.sequence; });
    if (!there) {
      return there.error();
    }
    return sequence;
  }

  /// Whether each entry of a batch is of the sequence of its request. A request that does not run has none: then, no
  /// running one may have the sequence. Linear in the entries, and in the records for each request that does not run.
  /// Errors: `invalid_argument`.
  template <class Entry>
  [[nodiscard]] result<void> check_owners(std::span<const request_id> requests,
                                          std::span<const Entry> entries) const noexcept {
    const auto guard = exclusive_guard{mutex_};
    for (std::size_t i = 0; i < entries.size(); ++i) {
      const auto* request = find(requests[i]);
      const bool runs = request != nullptr && request->state == request_state::running;
      if (runs ? request->sequence != entries[i].id : is_held(entries[i].id)) [[unlikely]] {
        return error{error_code::invalid_argument, "id of a sequence in an entry whose request does not have it,",
                     static_cast<std::int64_t>(entries[i].id),
                     runs ? static_cast<std::int64_t>(request->sequence) : error::no_limit};
      }
    }
    return {};
  }

  /// A copy of the record if the request is in this state. Errors: see `error_of`.
  [[nodiscard]] result<request_info> describe_in(request_id id, request_state state) noexcept {
    auto info = request_info{};
    if (auto there = change(id, state, [&](const request_info& request) { info = request; }); !there) {
      return there.error();
    }
    return info;
  }

  /// Changes running to preempted: the caller releases the candidate's sequence. `withdrawn`: the sequence that the
  /// caller has withdrawn, if any. `saving`: the request can be resumed only after `end_saving`. Calls `note(sequence)`
  /// unless it fails. Errors: see `error_of`; `sequence_busy` if other threads have preempted and resumed the request,
  /// so that it has another sequence by now.
  template <class Note>
  [[nodiscard]] result<preemption_candidate> preempt(request_id id, sequence_id withdrawn, bool saving,
                                                     Note&& note) noexcept {
    auto taken = preemption_candidate{};
    auto is_same = true;
    const auto preempted = change(id, request_state::running, [&](request_info& request) {
      is_same = withdrawn == sequence_id{} || withdrawn == request.sequence;
      if (!is_same) {
        return;
      }
      taken = candidate_of(id, request);
      move(request, request_state::preempted);
      if (!saving) {
        request.sequence = {};
      }
      ++request.num_preemptions;
      ++statistics_.preemptions;
      note(taken.sequence);
    });
    if (!is_same) {
      return resumed_elsewhere(id);
    }
    if (!preempted) {
      return preempted.error();
    }
    return taken;
  }
  /// False when the request has ended meanwhile.
  [[nodiscard]] bool end_saving(request_id id) noexcept {
    return change(id, request_state::preempted, [&](request_info& request) { request.sequence = {}; }).has_value();
  }

  /// A copy of the record of a request that can be resumed. Errors: see `error_of`; `sequence_busy` while another
  /// thread saves its K/V.
  [[nodiscard]] result<request_info> describe_resumable(request_id id) noexcept {
    auto info = request_info{};
    if (auto there = change_resumable(id, [&](const request_info& request) { info = request; }); !there) {
      return there.error();
    }
    return info;
  }

  /// Preempted or waiting to running, with a prompt of this length. `seen`: a copy from `describe_resumable`. Errors:
  /// those of `describe_resumable`; `sequence_busy` also if the request has been resumed and preempted since the copy.
  /// Calls `note(id, sequence)` unless it fails.
  template <class Note>
  [[nodiscard]] result<void> resume(request_id id, const request_info& seen, sequence_id sequence,
                                    std::int64_t num_prompt_tokens, Note&& note) noexcept {
    auto is_same = true;
    const auto resumed = change_resumable(id, [&](request_info& request) {
      is_same = request.state == seen.state && request.num_preemptions == seen.num_preemptions;
      if (!is_same) {
        return;
      }
      statistics_.submitted += request.state == request_state::waiting;
      move(request, request_state::running);
      request.sequence = sequence;
      request.options.sequence.num_prompt_tokens = num_prompt_tokens;
      note(id, sequence);
    });
    if (!is_same) {
      return resumed_elsewhere(id);
    }
    return resumed;
  }

  /// Ends a request that has not ended. The caller releases the request's sequence, if there is one. Calls `note()`
  /// unless it fails.
  template <class Note>
  [[nodiscard]] result<std::optional<sequence_id>> end(request_id id, request_state how, timestamp now,
                                                       const std::optional<error>& failure, Note&& note) noexcept {
    const auto guard = exclusive_guard{mutex_};
    auto* request = find(id);
    if (request == nullptr) {
      return unknown(id);
    }
    auto held = std::optional<sequence_id>{};
    if (request->state == request_state::running) {
      held = request->sequence;
    } else if (!is_resumable(*request)) {
      return error_of(id, request->state);
    }
    move(*request, how);
    request->ended = now;
    request->failure = failure;
    note();
    keep(id);
    purge_before(now);
    return held;
  }

  void purge(timestamp now) noexcept {
    const auto guard = exclusive_guard{mutex_};
    purge_before(now);
  }

  [[nodiscard]] tracker_statistics statistics() const noexcept {
    const auto guard = exclusive_guard{mutex_};
    auto taken = statistics_;
    taken.kept_records = static_cast<std::int64_t>(ended_.size());
    return taken;
  }

  /// All requests in these states. Linear in the records. May throw `std::bad_alloc`.
  [[nodiscard]] std::vector<preemption_candidate> all_in(std::initializer_list<request_state> states) const {
    auto found = std::vector<preemption_candidate>{};
    const auto guard = exclusive_guard{mutex_};
    found.reserve(static_cast<std::size_t>(statistics_.waiting + statistics_.running + statistics_.preempted));
    for (const auto state : states) {
      for_each_in(state, [&](request_id id, const request_info& request) {
        found.push_back(candidate_of(id, request));
      });
    }
    return found;
  }

  /// Calls `visit(id, request)` for every request in a state. No other thread is at work, or the caller holds the
  /// mutex.
  template <class Visit>
  void for_each_in(request_state state, Visit&& visit) const {
    records_.for_each([&](const cell& open) {
      if (open.record().state == state) {
        visit(static_cast<request_id>(records_.id_of(open)), open.record());
      }
    });
  }

 private:
  [[nodiscard]] static error unknown(request_id id) noexcept {
    return {error_code::unknown_request, "request id", static_cast<std::int64_t>(id)};
  }
  [[nodiscard]] static error resumed_elsewhere(request_id id) noexcept {
    return {error_code::sequence_busy, "id of a request that another thread has resumed",
            static_cast<std::int64_t>(id)};
  }
  [[nodiscard]] static bool is_resumable(const request_info& request) noexcept {
    return request.state == request_state::preempted || request.state == request_state::waiting;
  }
  /// Whether a preempted request still has a sequence, whose K/V is being saved.
  [[nodiscard]] static bool is_saving(const request_info& preempted) noexcept {
    return preempted.sequence != sequence_id{};
  }
  [[nodiscard]] static error saving(request_id id) noexcept {
    return {error_code::sequence_busy, "id of a request whose K/V is being saved", static_cast<std::int64_t>(id)};
  }
  /// The reason why an operation refuses a request in this state.
  [[nodiscard]] static error error_of(request_id id, request_state state) noexcept {
    const auto value = static_cast<std::int64_t>(id);
    switch (state) {
      case request_state::running: return {error_code::not_preempted, "id of a running request", value};
      case request_state::waiting:
      case request_state::preempted: return {error_code::preempted, "id of a request to resume first", value};
      default: return {error_code::already_ended, "request id", value};
    }
  }

  [[nodiscard]] bool is_held(sequence_id sequence) const noexcept {
    auto found = false;
    for_each_in(request_state::running,
                [&](request_id, const request_info& request) { found |= request.sequence == sequence; });
    return found;
  }

  template <class Note>
  [[nodiscard]] request_id open_reserved(cell& reserved, Note& note) noexcept {
    --num_reserved_;
    statistics_.submitted += reserved.record().state == request_state::running;
    ++tally(reserved.record().state);
    records_.open(reserved);
    const auto id = static_cast<request_id>(records_.id_of(reserved));
    note(id, reserved.record().sequence);
    return id;
  }

  [[nodiscard]] request_info* find(request_id id) const noexcept {
    auto* found = records_.find(static_cast<std::uint64_t>(id));
    return found != nullptr && records_.is_open(*found, static_cast<std::uint64_t>(id)) ? &found->record() : nullptr;
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
      return error_of(id, request->state);
    }
    apply(*request);
    return {};
  }

  /// Calls `apply` on the record of a request that can be resumed.
  template <class Apply>
  [[nodiscard]] result<void> change_resumable(request_id id, Apply&& apply) noexcept {
    const auto guard = exclusive_guard{mutex_};
    auto* request = find(id);
    if (request == nullptr) {
      return unknown(id);
    }
    if (!is_resumable(*request)) {
      return error_of(id, request->state);
    }
    if (is_saving(*request)) {
      return saving(id);
    }
    apply(*request);
    return {};
  }

  [[nodiscard]] std::int64_t& tally(request_state state) noexcept {
    switch (state) {
      case request_state::waiting: return statistics_.waiting;
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

  void keep(request_id id) noexcept {
    if (ended_.full()) {
      forget(ended_.pop());
    }
    if (config_.max_ended == 0) {
      forget(id);
    } else {
      ended_.push(id);
    }
  }
  void purge_before(timestamp now) noexcept {
    while (!ended_.empty() &&
           static_cast<std::int64_t>(now) - static_cast<std::int64_t>(find(ended_.oldest())->ended) > config_.max_age) {
      forget(ended_.pop());
    }
  }
  void forget(request_id id) noexcept {
    auto* ended = records_.find(static_cast<std::uint64_t>(id));
    records_.close(*ended);
    records_.abandon(*ended);
  }

  tracker_config config_;
  [[no_unique_address]] mutable Mutex mutex_;
  record_map<request_info, single_thread> records_;  // under the mutex, as everything below
  ring<request_id> ended_;  // in the order of their end
  tracker_statistics statistics_;
  std::int64_t num_reserved_ = 0;
  std::uint64_t last_arrival_ = 0;
};

}  // namespace pagedkv
