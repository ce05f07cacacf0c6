#pragma once

#include <pagedkv/core/result.hpp>

#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

namespace pagedkv {

/// A part of a file on its way to memory or back, named by a number below the engine's depth.
struct file_request {
  std::size_t slot = 0;
  int descriptor = -1;
  std::int64_t offset = 0;
  std::span<std::byte> bytes;
  bool is_write = false;
};

struct file_completion {
  std::size_t slot = 0;
  std::int64_t outcome = 0;  // bytes, or a negative number of `errno`
};

using file_deadline = std::chrono::steady_clock::time_point;

/// Executes requests on files, many at once. One thread at a time uses an engine.
///
/// | requirement          | meaning                                                                             |
/// |----------------------|-------------------------------------------------------------------------------------|
/// | `T::create(depth)`   | an engine for at most so many requests at once, or the reason why there is none     |
/// | `t.name()`           | for tables                                                                          |
/// | `t.start(request)`   | begins it; its bytes are in use until it has completed                              |
/// | `t.next(deadline)`   | waits for a completion; none after the deadline, or when nothing has been started   |
/// | `t.cancel(slot)`     | may let the request of this slot complete earlier, with an error                    |
/// | destructor           | called only when every request has completed                                        |
template <class T>
concept file_engine = requires(T t, std::int32_t depth, const file_request& request, file_deadline deadline,
                               std::size_t slot) {
  { T::create(depth) } noexcept -> std::same_as<result<std::unique_ptr<T>>>;
  { t.name() } noexcept -> std::convertible_to<std::string_view>;
  { t.start(request) } noexcept -> std::same_as<void>;
  { t.next(deadline) } noexcept -> std::same_as<std::optional<file_completion>>;
  { t.cancel(slot) } noexcept -> std::same_as<void>;
};

}  // namespace pagedkv
