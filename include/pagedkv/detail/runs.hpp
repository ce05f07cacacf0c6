#pragma once

#include <pagedkv/core/ids.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>

namespace pagedkv {

/// Copies elements to the beginning of a run that is large enough and does not overlap. In libstdc++ 12,
/// `std::ranges::copy` copies the elements of a constant span one by one.
template <class T>
  requires std::is_trivially_copyable_v<T>
void copy_run(std::span<const std::type_identity_t<T>> from, std::span<T> to) noexcept {
  std::copy_n(from.data(), from.size(), to.data());
}

}  // namespace pagedkv

namespace pagedkv::detail {

[[nodiscard]] [[gnu::always_inline]] inline bool equal_16(const token* a, const token* b) noexcept {
  using four_tokens [[gnu::vector_size(16)]] = std::uint64_t;
  const auto difference = [=](std::size_t first) {
    auto x = four_tokens{};
    auto y = four_tokens{};
    std::memcpy(&x, a + first, sizeof(x));
    std::memcpy(&y, b + first, sizeof(y));
    return x ^ y;
  };
  const auto different = (difference(0) | difference(4)) | (difference(8) | difference(12));
  return (different[0] | different[1]) == 0;
}

/// Whether two runs of equal length hold the same tokens. Inlined: a call of `memcmp` costs more than to compare the
/// tokens of a small block.
[[nodiscard]] [[gnu::always_inline]] inline bool equal_tokens(std::span<const token> a,
                                                              std::span<const token> b) noexcept {
  if (a.size() == 16) [[likely]] {
    return equal_16(a.data(), b.data());
  }
  auto i = std::size_t{0};
  for (; i + 16 <= a.size(); i += 16) {
    if (!equal_16(a.data() + i, b.data() + i)) {
      return false;
    }
  }
  for (; i < a.size(); ++i) {
    if (a[i] != b[i]) {
      return false;
    }
  }
  return true;
}

/// Copies a run of tokens to the beginning of another. Inlined for the same reason where the run is short; in steps of
/// 16 bytes, since source and destination seldom have the same alignment, and wider ones would cross cache lines.
[[gnu::always_inline]] inline void copy_tokens(std::span<const token> from, std::span<token> to) noexcept {
  if (from.size() >= 256) [[unlikely]] {
    std::memcpy(to.data(), from.data(), from.size_bytes());
    return;
  }
  auto i = std::size_t{0};
  for (; i + 16 <= from.size(); i += 16) {
    std::memcpy(to.data() + i, from.data() + i, 16 * sizeof(token));
  }
  for (; i < from.size(); ++i) {
    to[i] = from[i];
  }
}

}  // namespace pagedkv::detail
