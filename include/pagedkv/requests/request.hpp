#pragma once

#include <pagedkv/cache/outcomes.hpp>
#include <pagedkv/core/ids.hpp>
#include <pagedkv/core/result.hpp>
#include <pagedkv/policy/preemption/concept.hpp>
#include <pagedkv/sequence/sequence.hpp>

#include <array>
#include <cstdint>
#include <limits>
#include <optional>

namespace pagedkv {

/// The states of a request; three are ends.
enum class request_state : std::uint8_t {
  running,    // holds a sequence
  preempted,  // holds none until it is resumed
  finished,   // an end, by `finish`
  cancelled,  // an end, by `cancel`
  failed,     // an end, by `fail`, which tells the reason
  waiting,    // by `enqueue`: has held none yet
};

/// Options of `submit`. A request's priority is that of its sequence. `describe` tells the length of the prompt in
/// `sequence.num_prompt_tokens`.
struct request_options {
  sequence_options sequence = {};
  bool may_preempt = false;  // when the pool is full, running requests that rank below it are preempted
};

/// The record of a request, until it is purged.
struct request_info {
  request_state state = request_state::running;  // now
  sequence_id sequence{};  // while running; otherwise none
  request_options options;
  std::uint64_t arrival = 0;  // position in the order of submission, kept across preemptions
  std::int64_t num_preemptions = 0;
  timestamp submitted{};
  timestamp ended{};  // of finished, cancelled and failed requests
  std::optional<error> failure;
};

/// Makes a record one of a request that is about to run, without a sequence yet. Its arrival stays.
inline void start_request(request_info& request, const request_options& options, timestamp now) noexcept {
  request.state = request_state::running;
  request.sequence = {};
  request.options = options;
  request.num_preemptions = 0;
  request.submitted = now;
  request.ended = {};
  request.failure.reset();
}

/// The facts of a request for a preemption policy.
[[nodiscard]] inline preemption_candidate candidate_of(request_id id, const request_info& request) noexcept {
  return {id,
          request.sequence,
          request.options.sequence.priority,
          request.arrival,
          request.num_preemptions,
          request.submitted};
}

/// Result of `submit` and `resume`. K/V of the first `num_cached_tokens` is in the cache.
struct submission {
  request_id id{};
  sequence_id sequence{};
  std::int64_t num_cached_tokens = 0;
  std::int64_t num_tokens = 0;  // of the sequence: the cached ones and the first chunk
  std::int64_t num_blocks = 0;
  std::int64_t num_new_blocks = 0;  // the last ones of the table; the others are prefix hits
  std::int64_t num_loading_tokens = 0;  // behind the cached ones, with their K/V on its way from a tier
};

/// The result for a request whose sequence was created.
[[nodiscard]] inline submission submission_of(request_id id, const admission& admitted) noexcept {
  return {id,
          admitted.id,
          admitted.num_cached_tokens,
          admitted.num_tokens,
          admitted.num_blocks,
          admitted.num_new_blocks,
          admitted.num_loading_tokens};
}

/// Result of `fork`. K/V of all its tokens is in the cache.
struct request_fork {
  request_id id{};
  sequence_id sequence{};
};

/// Requests by what has become of them.
struct tracker_statistics {
  std::int64_t submitted = 0;  // forks and adopted sequences included
  std::int64_t refused = 0;    // likewise
  std::int64_t waiting = 0;    // now; counted as submitted when they start
  std::int64_t running = 0;    // now
  std::int64_t preempted = 0;  // now
  std::int64_t finished = 0;
  std::int64_t cancelled = 0;
  std::int64_t failed = 0;
  std::int64_t preemptions = 0;   // ever
  std::int64_t kept_records = 0;  // of ended requests
};

/// The number of requests that a tracker follows, and how long it keeps the records of ended ones. It allocates at most
/// `max_open + max_ended` records. A plain value: `validate` checks it.
struct tracker_config {
  std::int32_t max_open = 0;                             // requests not ended; 0: twice the cache's `max_sequences`
  std::int32_t max_ended = 1024;                         // records; the oldest go first
  std::int64_t max_age = std::int64_t{600'000'000'000};  // nanoseconds of the cache's time since the end
};

/// Errors: `invalid_argument` names the first field that is negative; `size_overflow` when an int32 does not count all
/// records.
[[nodiscard]] inline result<void> validate(const tracker_config& config) noexcept {
  struct field {
    const char* subject;
    std::int64_t value;
  };
  const auto fields = std::array{
      field{"tracker_config.max_open", config.max_open},
      field{"tracker_config.max_ended", config.max_ended},
      field{"tracker_config.max_age", config.max_age},
  };
  for (const auto& [subject, value] : fields) {
    if (value < 0) {
      return error{error_code::invalid_argument, subject, value, 0};
    }
  }
  constexpr auto limit = std::int64_t{std::numeric_limits<std::int32_t>::max()};
  const auto num_records = std::int64_t{config.max_open} + config.max_ended;
  if (num_records > limit) {
    return error{error_code::size_overflow, "tracker_config.max_open + max_ended", num_records, limit};
  }
  return {};
}

}  // namespace pagedkv
