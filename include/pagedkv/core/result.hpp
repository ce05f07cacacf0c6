#pragma once

#include <pagedkv/core/error.hpp>

#include <cassert>
#include <new>
#include <type_traits>
#include <utility>

namespace pagedkv {

namespace detail {

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
    assert(self.has_value() && "a result that holds an error has no value");
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
