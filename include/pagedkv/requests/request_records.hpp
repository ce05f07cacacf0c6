#pragma once

#include <pagedkv/cache/record_map.hpp>
#include <pagedkv/policy/locking/parts/guards.hpp>
#include <pagedkv/policy/locking/single_thread.hpp>
#include <pagedkv/requests/request.hpp>
#include <pagedkv/requests/ring.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

namespace pagedkv {

/// A running request that may give way.
struct preemption_candidate {
  request_id id{};
  request_rank rank;
  sequence_id sequence{};
};

/// The records of a tracker's requests, behind one mutex. No member calls anything outside while it holds the mutex,
/// and none but `running_below` takes memory then.
template <class Mutex>
class request_records {
 public:
  using place = typename record_map<request_info, single_thread>::place;

  /// `max_open`: see `tracker_limits`; already with its default filled in.
  explicit request_records(const tracker_limits& limits)
      : limits_(limits), records_(capacity(limits)), ended_(static_cast<std::size_t>(limits.max_ended)) {}

  /// A record for a request that is about to start, with its arrival. `open` or `abandon` comes next. Errors:
  /// `limit_reached` with `max_open` requests that run, are preempted or about to start.
  [[nodiscard]] result<place*> reserve() noexcept {
    const auto guard = exclusive_guard{mutex_};
    const auto num_open = statistics_.running + statistics_.preempted + num_reserved_;
    if (num_open >= limits_.max_open) {
      ++statistics_.refused;
      return error{error_code::limit_reached, "number of running and preempted requests", num_open, limits_.max_open};
    }
    auto reserved = records_.reserve("number of requests");
    if (reserved) {
      ++num_reserved_;
      (*reserved)->record.arrival = ++last_arrival_;
    } else {
      ++statistics_.refused;
    }
    return reserved;
  }
  void abandon(place& reserved) noexcept {
    const auto guard = exclusive_guard{mutex_};
    --num_reserved_;
    ++statistics_.refused;
    records_.abandon(reserved);
  }
  [[nodiscard]] request_id open(place& reserved, const request_info& request) noexcept {
    const auto guard = exclusive_guard{mutex_};
    --num_reserved_;
    reserved.record = request;
    ++statistics_.submitted;
    ++statistics_.running;
    records_.open(reserved);
    return static_cast<request_id>(records_.id_of(reserved));
  }

  [[nodiscard]] result<request_info> describe(request_id id) noexcept {
    const auto guard = exclusive_guard{mutex_};
    const auto* request = find(id);
    if (request == nullptr) {
      return unknown(id);
    }
    return *request;
  }

  /// A copy of the record if the request is in this state. Errors: see `error_of`.
  [[nodiscard]] result<request_info> describe_in(request_id id, request_state state) noexcept {
    auto info = request_info{};
    if (auto there = change(id, state, [&](const request_info& request) { info = request; }); !there) {
      return there.error();
    }
    return info;
  }

  /// Running to preempted: the sequence is the caller's to release.
  [[nodiscard]] result<sequence_id> preempt(request_id id) noexcept {
    auto held = sequence_id{};
    const auto preempted = change(id, request_state::running, [&](request_info& request) {
      held = request.sequence;
      move(request, request_state::preempted);
      ++request.num_preemptions;
      ++statistics_.preemptions;
    });
    if (!preempted) {
      return preempted.error();
    }
    return held;
  }

  /// Preempted to running.
  [[nodiscard]] result<void> resume(request_id id, sequence_id sequence) noexcept {
    return change(id, request_state::preempted, [&](request_info& request) {
      move(request, request_state::running);
      request.sequence = sequence;
    });
  }

  /// Running or preempted to an end. The sequence, if the request held one, is the caller's to release.
  [[nodiscard]] result<std::optional<sequence_id>> end(request_id id, request_state how, timestamp now,
                                                       const std::optional<error>& failure) noexcept {
    const auto guard = exclusive_guard{mutex_};
    auto* request = find(id);
    if (request == nullptr) {
      return unknown(id);
    }
    auto held = std::optional<sequence_id>{};
    if (request->state == request_state::running) {
      held = request->sequence;
    } else if (request->state != request_state::preempted) {
      return error_of(id, request->state);
    }
    move(*request, how);
    request->ended = now;
    request->failure = failure;
    keep(id);
    purge_before(now);
    return held;
  }

  void purge(timestamp now) noexcept {
    const auto guard = exclusive_guard{mutex_};
    purge_before(now);
  }

  [[nodiscard]] tracker_statistics statistics() noexcept {
    const auto guard = exclusive_guard{mutex_};
    auto taken = statistics_;
    taken.kept_records = static_cast<std::int64_t>(ended_.size());
    return taken;
  }

  /// Running requests that this rank outranks, lowest first. Linear in the records. May throw `std::bad_alloc`.
  [[nodiscard]] std::vector<preemption_candidate> running_below(const request_rank& rank) {
    auto below = std::vector<preemption_candidate>{};
    {
      const auto guard = exclusive_guard{mutex_};
      for_each_running([&](request_id id, const request_info& request) {
        if (rank.outranks(rank_of(request))) {
          below.push_back({id, rank_of(request), request.sequence});
        }
      });
    }
    std::ranges::sort(below, [](const preemption_candidate& a, const preemption_candidate& b) {
      return b.rank.outranks(a.rank);
    });
    return below;
  }

  /// Calls `visit(id, request)` for every running request. No other thread is at work, or the caller holds the mutex.
  template <class Visit>
  void for_each_running(Visit&& visit) {
    records_.for_each([&](const place& open) {
      if (open.record.state == request_state::running) {
        visit(static_cast<request_id>(records_.id_of(open)), open.record);
      }
    });
  }

 private:
  [[nodiscard]] static std::int32_t capacity(const tracker_limits& limits) noexcept {
    const auto records = std::int64_t{limits.max_open} + limits.max_ended;
    return static_cast<std::int32_t>(std::min<std::int64_t>(records, std::numeric_limits<std::int32_t>::max()));
  }

  [[nodiscard]] static error unknown(request_id id) noexcept {
    return {error_code::unknown_request, "request id", static_cast<std::int64_t>(id)};
  }
  /// Why an operation refuses a request in this state.
  [[nodiscard]] static error error_of(request_id id, request_state state) noexcept {
    const auto value = static_cast<std::int64_t>(id);
    switch (state) {
      case request_state::running: return {error_code::not_preempted, "id of a running request", value};
      case request_state::preempted: return {error_code::preempted, "request id", value};
      default: return {error_code::already_ended, "request id", value};
    }
  }

  [[nodiscard]] request_info* find(request_id id) noexcept {
    auto* found = records_.find(static_cast<std::uint64_t>(id));
    return found != nullptr && records_.is_open(*found, static_cast<std::uint64_t>(id)) ? &found->record : nullptr;
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
    auto* ended = records_.find(static_cast<std::uint64_t>(id));
    records_.close(*ended);
    records_.abandon(*ended);
  }

  tracker_limits limits_;
  [[no_unique_address]] Mutex mutex_;
  record_map<request_info, single_thread> records_;  // under the mutex, as everything below
  ring<request_id> ended_;  // in the order of their end
  tracker_statistics statistics_;
  std::int64_t num_reserved_ = 0;
  std::uint64_t last_arrival_ = 0;
};

}  // namespace pagedkv
