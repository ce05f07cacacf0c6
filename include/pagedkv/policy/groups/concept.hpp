#pragma once

#include <pagedkv/policy/axis.hpp>

#include <concepts>
#include <string_view>

namespace pagedkv {

namespace detail {

template <class P>
concept has_layers_differ = requires {
  { P::layers_differ } -> std::convertible_to<bool>;
};

}  // namespace detail

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
concept groups_policy = detail::has_layers_differ<P> && detail::has_name<P>;

struct groups_axis {
  template <class Policy>
  static constexpr bool takes = groups_policy<Policy>;

  template <class Defaults, class...>
  using default_policy = typename Defaults::groups_type;

  template <bool Is>
  struct at_most_one {
    static_assert(Is, "two policies for groups are given, and a cache has one: leave the other out");
  };

  template <class Policy>
  static constexpr bool resembles = requires { Policy::layers_differ; };

  template <class Policy>
  struct lacks {
    static constexpr auto unmet =
        detail::first_unmet({detail::has_layers_differ<Policy>, detail::has_name<Policy>});
    static_assert(unmet != 0,
                  "this type is nearly a policy for groups: `layers_differ` has another type; write `static constexpr "
                  "bool layers_differ`");
    static_assert(unmet != 1,
                  "this type is nearly a policy for groups: `name` is missing or has another type; write `static "
                  "constexpr std::string_view name`");
  };
};

}  // namespace pagedkv
