#pragma once

#include <pagedkv/core/error.hpp>

#include <cassert>
#include <type_traits>
#include <utility>
#include <variant>

namespace pagedkv {

namespace detail {

/// The value of a `result<void>`.
struct no_value {};

}  // namespace detail

/// A value, or the error that says why there is none. Every operation that can be refused returns one.
///
/// `return value;` and `return error{...};` both convert. `value()` of a result without one ends as `detail::fail` does;
/// `*`, `->` and `error()` assert that the result holds what they return.
template <class T>
class [[nodiscard]] result {
 public:
  using value_type = T;

  // Not defaulted: `return {};` would clear the bytes of an error first.
  constexpr result() noexcept
    requires std::is_void_v<T>
  {}
  template <class Value>
    requires(!std::is_void_v<T>) && std::is_convertible_v<Value, T> &&
            (!std::is_same_v<std::remove_cvref_t<Value>, result>)
  constexpr result(Value&& value) noexcept(std::is_nothrow_constructible_v<T, Value>)
      : held_(std::in_place_index<0>, std::forward<Value>(value)) {}
  constexpr result(const pagedkv::error& reason) noexcept : held_(std::in_place_index<1>, reason) {}

  [[nodiscard]] constexpr bool has_value() const noexcept { return held_.index() == 0; }
  [[nodiscard]] constexpr bool has_error() const noexcept { return held_.index() != 0; }
  [[nodiscard]] constexpr explicit operator bool() const noexcept { return has_value(); }

  [[nodiscard]] constexpr const pagedkv::error& error() const noexcept {
    assert(has_error() && "a result that holds a value has no error");
    return *std::get_if<1>(&held_);
  }

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
    return *std::get_if<0>(&self.held_);
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

  std::variant<stored, pagedkv::error> held_;
};

}  // namespace pagedkv
