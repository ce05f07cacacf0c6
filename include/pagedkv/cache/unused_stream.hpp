#pragma once

#include <concepts>

namespace pagedkv {

/// The stream of an operation that copies in other kinds of cache and not in this one: all take the same arguments.
/// Unlike `Stream`, it always has a default.
template <class Stream>
class unused_stream {
 public:
  constexpr unused_stream() noexcept = default;

  template <std::convertible_to<Stream> Given>
  constexpr unused_stream(Given&&) noexcept {}  // NOLINT(google-explicit-constructor)
};

}  // namespace pagedkv
