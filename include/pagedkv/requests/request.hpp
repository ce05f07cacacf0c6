#pragma once

#include <pagedkv/core/error.hpp>
#include <pagedkv/core/ids.hpp>
#include <pagedkv/sequence/sequence.hpp>

#include <cstdint>
#include <optional>

namespace pagedkv {

/// Names one request for as long as its record is kept; stale afterwards.
enum class request_id : std::uint64_t {};

enum class request_state : std::uint8_t {
  running,    // holds a sequence
  preempted,  // holds none until it is resumed
  finished,
  cancelled,
  failed,
};

/// Options of `submit`. A request's priority is that of its sequence.
struct request_options {
  sequence_options sequence;
  bool may_preempt = false;  // when the pool is full, lower-ranking running requests give way to it
};

struct request_info {
  request_state state = request_state::running;
  sequence_id sequence{};  // while running
  request_options options;
  std::uint64_t arrival = 0;  // place in the order of submission
  std::int64_t num_preemptions = 0;
  timestamp submitted{};
  timestamp ended{};  // of finished, cancelled and failed requests
  std::optional<error> failure;
};

/// A request outranks those of lower priority, and of the same priority those that arrived later.
struct request_rank {
  std::uint8_t priority = 0;
  std::uint64_t arrival = 0;

  [[nodiscard]] bool outranks(const request_rank& other) const noexcept {
    return priority != other.priority ? priority > other.priority : arrival < other.arrival;
  }
};

[[nodiscard]] inline request_rank rank_of(const request_info& request) noexcept {
  return {request.options.sequence.priority, request.arrival};
}

/// Result of `submit` and `resume`. K/V of the first `num_cached_tokens` is in the cache.
struct submission {
  request_id id{};
  sequence_id sequence{};
  std::int64_t num_cached_tokens = 0;
};

/// Requests by what has become of them.
struct tracker_statistics {
  std::int64_t submitted = 0;
  std::int64_t refused = 0;
  std::int64_t running = 0;    // now
  std::int64_t preempted = 0;  // now
  std::int64_t finished = 0;
  std::int64_t cancelled = 0;
  std::int64_t failed = 0;
  std::int64_t preemptions = 0;   // ever
  std::int64_t kept_records = 0;  // of ended requests
};

/// How many requests a tracker follows, and how long it keeps the records of ended ones. It holds memory for
/// `max_open + max_ended` records at most.
struct tracker_limits {
  std::int32_t max_open = 0;                             // running and preempted; 0: twice the cache's `max_sequences`
  std::int32_t max_ended = 1024;                         // records; the oldest go first
  std::int64_t max_age = std::int64_t{600'000'000'000};  // nanoseconds of the cache's time since the end
};

}  // namespace pagedkv
