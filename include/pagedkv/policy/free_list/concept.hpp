#pragma once

#include <pagedkv/policy/axis.hpp>

#include <concepts>
#include <string_view>

namespace pagedkv {

namespace detail {

template <class P>
concept has_prefers_runs = requires {
  { P::prefers_runs } -> std::convertible_to<bool>;
};
template <class P>
concept prefers_no_runs = has_prefers_runs<P> && requires { requires !P::prefers_runs; };
template <class P>
concept has_most_ahead = prefers_no_runs<P> || requires {
  { P::most_ahead } -> std::convertible_to<int>;
};
template <class P>
concept has_least_age = prefers_no_runs<P> || requires {
  { P::least_age } -> std::convertible_to<int>;
};

}  // namespace detail

/// Which of the free blocks an allocation takes.
///
/// | requirement             | meaning                                                                                |
/// |-------------------------|----------------------------------------------------------------------------------------|
/// | `P::prefers_runs`       | whether an allocation of several blocks prefers neighbouring ids; if not, the free     |
/// |                         | list of the locking policy chooses                                                     |
/// | `P::most_ahead`         | if so: thousandths of the pool that an allocation may evict beyond what it needs       |
/// | `P::least_age`          | if so: how old, in percent of the age at which the eviction policy evicts, a block is  |
/// |                         | that may be evicted before its turn                                                    |
/// | `P::name`               | for tables and options, e.g. "contiguous_runs"                                         |
///
/// A minimal model:
///
///     struct own_free_list {
///       static constexpr bool prefers_runs = true;
///       static constexpr int most_ahead = 10;
///       static constexpr int least_age = 100;
///       static constexpr std::string_view name = "own_free_list";
///     };
template <class P>
concept free_list_policy =
    detail::has_prefers_runs<P> && detail::has_most_ahead<P> && detail::has_least_age<P> && detail::has_name<P>;

struct free_list_axis {
  template <class Policy>
  static constexpr bool takes = free_list_policy<Policy>;

  template <class Defaults, class...>
  using default_policy = typename Defaults::free_list_type;

  template <bool Is>
  struct at_most_one {
    static_assert(Is, "two free list policies are given, and a cache has one: leave the other out");
  };

  template <class Policy>
  static constexpr bool resembles =
      requires { Policy::prefers_runs; } || requires { Policy::most_ahead; } || requires { Policy::least_age; };

  template <class Policy>
  struct lacks {
    static constexpr auto unmet = detail::first_unmet(
        {detail::has_prefers_runs<Policy>, detail::has_most_ahead<Policy>, detail::has_least_age<Policy>,
         detail::has_name<Policy>});
    static_assert(unmet != 0,
                  "this type is nearly a free list policy: `prefers_runs` is missing or has another type; write "
                  "`static constexpr bool prefers_runs`");
    static_assert(unmet != 1,
                  "this type is nearly a free list policy: `most_ahead` is missing or has another type; write "
                  "`static constexpr int most_ahead`, which goes with `prefers_runs`");
    static_assert(unmet != 2,
                  "this type is nearly a free list policy: `least_age` is missing or has another type; write `static "
                  "constexpr int least_age`, which goes with `prefers_runs`");
    static_assert(unmet != 3,
                  "this type is nearly a free list policy: `name` is missing or has another type; write `static "
                  "constexpr std::string_view name`");
  };
};

}  // namespace pagedkv
