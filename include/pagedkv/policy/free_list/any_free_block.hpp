#pragma once

#include <pagedkv/policy/free_list/concept.hpp>

#include <string_view>

namespace pagedkv {

/// Takes any free block: the one that costs least under the locking policy.
struct any_free_block {
  static constexpr bool prefers_runs = false;
  static constexpr std::string_view name = "any_free_block";
};

static_assert(free_list_policy<any_free_block>);

}  // namespace pagedkv
