#pragma once

#include <pagedkv/core/ids.hpp>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <stdexcept>
#include <string>

namespace pagedkv {

/// Kinds of errors. `docs/requests.md` says when to try again.
enum class error_code : std::uint8_t {
  invalid_argument,    // a value outside what the operation accepts
  size_overflow,       // a product of sizes does not fit its type
  out_of_memory,       // an allocator had nothing left
  capacity_exhausted,  // not enough blocks now, even after eviction
  never_fits,          // more blocks than the pool has
  unknown_sequence,    // never existed, or already released
  sequence_busy,       // another thread is inside an operation on it
  unknown_pin,         // never made, or already ended
  unknown_step,        // never begun, or already retired
  unknown_request,     // never submitted, or purged
  already_ended,       // the request finished, was cancelled or failed before
  preempted,           // the request holds no sequence until it is resumed
  not_preempted,       // the request runs: there is nothing to resume
  in_use,              // refused while blocks or steps are in use
  limit_reached,       // a bounded table or counter is full
  backend_failure,     // the device runtime refused a call
};

/// The kind of an error and the value that caused it. Cheap to make and to copy: only `message()` composes text.
struct error {
  /// The limit of an error that violates none.
  static constexpr auto no_limit = std::numeric_limits<std::int64_t>::min();

  error_code code{};              // its kind
  const char* subject = "";       // static storage: what the value is, e.g. "cache_config.block_size"
  std::int64_t value = 0;         // the offending value, in the unit of the subject
  std::int64_t limit = no_limit;  // in that unit: the nearest allowed value, or what the subject calls the limit
  const char* detail = "";        // lasts as long as the program: a runtime's or the system's own words, the path of a
                                  // file; empty elsewhere
  step_id step{};                 // `capacity_exhausted`: there is room when this step and those before have retired

  /// One sentence for people: the subject, its value, and the limit. Throws `std::bad_alloc`.
  [[nodiscard]] std::string message() const;
};

/// Thrown by constructors, and by `value()` of a result that holds an error.
class exception : public std::runtime_error {
 public:
  explicit exception(const error& e) : std::runtime_error(e.message()), error_(e) {}

  /// The error that was thrown.
  [[nodiscard]] const error& reason() const noexcept { return error_; }

 private:
  error error_;
};

/// The code in words, in static storage.
[[nodiscard]] constexpr const char* describe(error_code code) noexcept {
  switch (code) {
    case error_code::invalid_argument: return "invalid argument";
    case error_code::size_overflow: return "size overflow";
    case error_code::out_of_memory: return "out of memory";
    case error_code::capacity_exhausted: return "capacity exhausted";
    case error_code::never_fits: return "never fits";
    case error_code::unknown_sequence: return "unknown sequence";
    case error_code::sequence_busy: return "sequence busy";
    case error_code::unknown_pin: return "unknown pin";
    case error_code::unknown_step: return "unknown step";
    case error_code::unknown_request: return "unknown request";
    case error_code::already_ended: return "already ended";
    case error_code::preempted: return "preempted";
    case error_code::not_preempted: return "not preempted";
    case error_code::in_use: return "in use";
    case error_code::limit_reached: return "limit reached";
    case error_code::backend_failure: return "backend failure";
  }
  return "unknown error";
}

inline std::string error::message() const {
  auto text = std::string(describe(code));
  const bool is_answer = code == error_code::backend_failure && *detail != '\0';
  text.append(": ").append(subject).append(is_answer ? " answered " : " is ").append(std::to_string(value));
  if (limit != no_limit) {
    text.append(", limit ").append(std::to_string(limit));
  }
  if (step != step_id{}) {
    text.append(", until step ").append(std::to_string(static_cast<std::uint64_t>(step))).append(" retires");
  }
  if (*detail != '\0') {
    text.append(" (").append(detail).append(")");
  }
  return text;
}

namespace detail {

/// The refusal of an index that is not in [0, end).
[[nodiscard]] constexpr error bad_index(const char* subject, std::int64_t value, std::int64_t end) noexcept {
  return {error_code::invalid_argument, subject, value, value < 0 ? 0 : end - 1};
}

/// Throws `exception`; a program that is compiled without exceptions prints the message and ends.
[[noreturn]] inline void fail(const error& reason) {
#if defined(__cpp_exceptions)
  throw exception(reason);
#else
  std::fprintf(stderr, "pagedkv: %s\n", reason.message().c_str());
  std::abort();
#endif
}

}  // namespace detail

}  // namespace pagedkv
