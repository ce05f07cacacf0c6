#pragma once

#include <pagedkv/policy/groups/concept.hpp>

#include <string_view>

namespace pagedkv {

/// All layers are of full attention and share one block table per sequence. Other kinds of layers cost it nothing.
struct one_group {
  static constexpr bool layers_differ = false;
  static constexpr std::string_view name = "one_group";
};

static_assert(groups_policy<one_group>);

}  // namespace pagedkv
