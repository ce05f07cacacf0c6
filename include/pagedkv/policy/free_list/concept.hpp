#pragma once

#include <concepts>
#include <string_view>

namespace pagedkv {

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
concept free_list_policy = requires {
  { P::prefers_runs } -> std::convertible_to<bool>;
  { P::name } -> std::convertible_to<std::string_view>;
} && (!P::prefers_runs || requires {
  { P::most_ahead } -> std::convertible_to<int>;
  { P::least_age } -> std::convertible_to<int>;
});

struct free_list_axis {
  template <class Policy>
  static constexpr bool takes = free_list_policy<Policy>;

  template <class Defaults, class...>
  using default_policy = typename Defaults::free_list_type;

  template <bool Is>
  struct at_most_one {
    static_assert(Is, "two free list policies are given, and a cache has one: leave the other out");
  };
};

}  // namespace pagedkv
