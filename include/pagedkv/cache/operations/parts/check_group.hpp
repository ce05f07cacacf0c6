#pragma once

#include <pagedkv/core/error.hpp>
#include <pagedkv/core/result.hpp>

#include <cstddef>
#include <cstdint>

namespace pagedkv::detail {

[[nodiscard]] inline error no_such_group(std::size_t group, std::size_t num_groups) noexcept {
  return bad_index("index of a group", static_cast<std::int64_t>(group), static_cast<std::int64_t>(num_groups));
}

/// Errors: `invalid_argument` for a group that there is not.
template <class State>
[[nodiscard]] result<void> check_group(const State&, std::size_t group) noexcept {
  return group == 0 ? result<void>{} : result<void>{no_such_group(group, 1)};
}

}  // namespace pagedkv::detail
