#pragma once

#include <algorithm>
#include <span>
#include <type_traits>

namespace pagedkv {

/// Copies elements to the beginning of a run that has room for them and does not overlap. Unlike `std::ranges::copy`,
/// which copies the elements of a constant span one by one in libstdc++ 12.
template <class T>
  requires std::is_trivially_copyable_v<T>
void copy_run(std::span<const std::type_identity_t<T>> from, std::span<T> to) noexcept {
  std::copy_n(from.data(), from.size(), to.data());
}

}  // namespace pagedkv
