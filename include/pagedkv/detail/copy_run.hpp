#pragma once

#include <algorithm>
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
