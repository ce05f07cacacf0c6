#pragma once

#include <pagedkv/core/ids.hpp>

#include <cassert>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <new>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

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
  step_id step{};                 // `capacity_exhausted`: there is room when this step and those before have retired;
                                  // `limit_reached`: the open step that keeps others from beginning

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

#ifndef NDEBUG
/// Prints the error of a result whose value is used all the same, for the assertion behind it: false.
inline bool print_misused(const error& reason) {
  std::fprintf(stderr, "pagedkv: %s\n", reason.message().c_str());
  return false;
}
#endif

/// The value of a `result<void>`.
struct no_value {};

/// A value or an error. Not a `std::variant`, which takes several times as long to compile, for each type of value.
template <class Value, bool Trivial = std::is_trivially_copyable_v<Value>>
struct value_or_error {
  template <class From>
  constexpr value_or_error(std::in_place_t, From&& from) noexcept(std::is_nothrow_constructible_v<Value, From>)
      : value(std::forward<From>(from)), has_value(true) {}
  constexpr explicit value_or_error(const error& why) noexcept : reason(why), has_value(false) {}

  union {
    Value value;
    error reason;
  };
  bool has_value;
};

template <class Value>
struct value_or_error<Value, false> {
  template <class From>
  value_or_error(std::in_place_t, From&& from) noexcept(std::is_nothrow_constructible_v<Value, From>)
      : value(std::forward<From>(from)), has_value(true) {}
  explicit value_or_error(const error& why) noexcept : reason(why), has_value(false) {}
  value_or_error(value_or_error&& other) noexcept(std::is_nothrow_move_constructible_v<Value>)
      : has_value(other.has_value) {
    construct(std::move(other));
  }
  value_or_error(const value_or_error& other)
    requires std::is_copy_constructible_v<Value>
      : has_value(other.has_value) {
    construct(other);
  }
  value_or_error& operator=(value_or_error other) noexcept {
    destroy();
    has_value = other.has_value;
    construct(std::move(other));
    return *this;
  }
  ~value_or_error() { destroy(); }

  union {
    Value value;
    error reason;
  };
  bool has_value;

 private:
  template <class Other>
  void construct(Other&& other) noexcept(std::is_nothrow_constructible_v<Value, Other>) {
    if (has_value) {
      ::new (static_cast<void*>(&value)) Value(std::forward<Other>(other).value);
    } else {
      reason = other.reason;
    }
  }
  void destroy() noexcept {
    if (has_value) {
      value.~Value();
    }
  }
};

}  // namespace detail

/// A value, or the error that says why there is none. Every operation that can be refused returns one.
///
/// `return value;` and `return error{...};` both convert. `value()` of a result without one ends as `detail::fail`
/// does; `*`, `->` and `error()` assert that the result holds what they return.
template <class T>
class [[nodiscard]] result {
 public:
  using value_type = T;

  // Not defaulted: `return {};` would clear the bytes of an error first.
  constexpr result() noexcept
    requires std::is_void_v<T>
      : held_(std::in_place, detail::no_value{}) {}
  template <class Value>
    requires(!std::is_void_v<T>) && std::is_convertible_v<Value, T> &&
            (!std::is_same_v<std::remove_cvref_t<Value>, result>)
  constexpr result(Value&& value) noexcept(std::is_nothrow_constructible_v<T, Value>)
      : held_(std::in_place, std::forward<Value>(value)) {}
  constexpr result(const pagedkv::error& reason) noexcept : held_(reason) {}

  /// A result holds one of the two.
  [[nodiscard]] constexpr bool has_value() const noexcept { return held_.has_value; }
  [[nodiscard]] constexpr bool has_error() const noexcept { return !held_.has_value; }
  [[nodiscard]] constexpr explicit operator bool() const noexcept { return has_value(); }

  /// The error; misuse for a result that holds a value.
  [[nodiscard]] constexpr const pagedkv::error& error() const noexcept {
    assert(has_error() && "a result that holds a value has no error");
    return held_.reason;
  }

  /// The value. Throws `exception` with the error for a result that has none, or ends the program without exceptions.
  constexpr decltype(auto) value() & { return checked(*this); }
  constexpr decltype(auto) value() const& { return checked(*this); }
  constexpr T value() && {
    if constexpr (std::is_void_v<T>) {
      checked(*this);
    } else {
      return std::move(checked(*this));
    }
  }

  [[nodiscard]] constexpr auto& operator*() & noexcept
    requires(!std::is_void_v<T>)
  {
    return unchecked(*this);
  }
  [[nodiscard]] constexpr const auto& operator*() const& noexcept
    requires(!std::is_void_v<T>)
  {
    return unchecked(*this);
  }
  [[nodiscard]] constexpr auto&& operator*() && noexcept
    requires(!std::is_void_v<T>)
  {
    return std::move(unchecked(*this));
  }
  [[nodiscard]] constexpr auto* operator->() noexcept
    requires(!std::is_void_v<T>)
  {
    return &unchecked(*this);
  }
  [[nodiscard]] constexpr const auto* operator->() const noexcept
    requires(!std::is_void_v<T>)
  {
    return &unchecked(*this);
  }

 private:
  using stored = std::conditional_t<std::is_void_v<T>, detail::no_value, T>;

  template <class Self>
  [[nodiscard]] static constexpr auto& unchecked(Self& self) noexcept {
    assert((self.has_value() || detail::print_misused(self.held_.reason)) &&
           "a result that holds an error has no value");
    return (self.held_.value);
  }

  template <class Self>
  static constexpr decltype(auto) checked(Self& self) {
    if (!self.has_value()) [[unlikely]] {
      detail::fail(self.error());
    }
    if constexpr (!std::is_void_v<T>) {
      return unchecked(self);
    }
  }

  detail::value_or_error<stored> held_;
};

}  // namespace pagedkv
