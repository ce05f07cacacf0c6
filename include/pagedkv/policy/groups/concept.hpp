#pragma once

#include <concepts>
#include <string_view>

namespace pagedkv {

/// Whether a cache's layers differ in kind, so that several groups of layers share its blocks.
///
/// | requirement             | meaning                                                                                |
/// |-------------------------|----------------------------------------------------------------------------------------|
/// | `P::layers_differ`      | whether `cache_config::groups` lists the layers; if not, they are one group of full    |
/// |                         | attention, which `cache_config` describes itself                                       |
/// | `P::name`               | for tables and options, e.g. "layer_groups"                                            |
///
/// A minimal model:
///
///     struct own_groups {
///       static constexpr bool layers_differ = true;
///       static constexpr std::string_view name = "own_groups";
///     };
template <class P>
concept groups_policy = requires {
  { P::layers_differ } -> std::convertible_to<bool>;
  { P::name } -> std::convertible_to<std::string_view>;
};

struct groups_axis {
  template <class Policy>
  static constexpr bool takes = groups_policy<Policy>;

  template <class Defaults, class...>
  using default_policy = typename Defaults::groups_type;

  template <bool Is>
  struct at_most_one {
    static_assert(Is, "two policies for groups are given, and a cache has one: leave the other out");
  };
};

}  // namespace pagedkv
