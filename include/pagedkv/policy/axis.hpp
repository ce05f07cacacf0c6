#pragma once

#include <type_traits>

namespace pagedkv {

/// An axis is one thing about a class that a policy decides. A class with axes takes policies in any order, and only
/// those that differ from its defaults: each given type is recognised by the concept that it models. The axis of each
/// concept stands below it, in `policy/<axis>/concept.hpp`; a class lists its axes (see `cache_axes`) and reads its
/// policies from a `policy_set`.
///
/// | requirement of an axis `A`                       | meaning                                                       |
/// |--------------------------------------------------|---------------------------------------------------------------|
/// | `A::template takes<P>`                           | whether `P` models the concept of the axis                    |
/// | `A::template default_policy<Defaults, Given...>` | the policy where none is given, a member type of `Defaults`   |
/// | `A::template at_most_one<is>`                    | a type whose definition asserts `is`, with a sentence that    |
/// |                                                  | names the axis: instantiated with whether two were given      |
///
/// `axes` lists them in the order in which they appear in the name of the class.
template <class... Axes>
struct axes {};

template <class... Policies>
struct policy_list {};

template <class... Policies, class... More>
consteval policy_list<Policies..., More...> operator+(policy_list<Policies...>, policy_list<More...>) noexcept {
  return {};
}

namespace detail {

template <class Policy>
concept plain = std::is_same_v<Policy, std::remove_cvref_t<Policy>>;

template <class Policy>
concept defined = plain<Policy> && requires { sizeof(Policy); };

template <class Policy, class Axis>
concept policy_of = defined<Policy> && Axis::template takes<Policy>;

/// The first of the given policies for an axis.
template <class Axis, class... Given>
struct first_given {};
template <class Axis, class First, class... Rest>
struct first_given<Axis, First, Rest...> : first_given<Axis, Rest...> {};
template <class Axis, policy_of<Axis> First, class... Rest>
struct first_given<Axis, First, Rest...> {
  using type = First;
};

template <class Axis, class Defaults, class... Given>
struct policy_on {
  using type = typename Axis::template default_policy<Defaults, Given...>;
};
template <class Axis, class Defaults, class... Given>
  requires requires { typename first_given<Axis, Given...>::type; }
struct policy_on<Axis, Defaults, Given...> : first_given<Axis, Given...> {};

}  // namespace detail

/// The policies of a class whose axes are `Axes`: those that are given, in any order, and for all other axes those that
/// `Defaults` names.
template <class Axes, class Defaults, class... Given>
struct policy_set;

template <class... Axes, class Defaults, class... Given>
struct policy_set<axes<Axes...>, Defaults, Given...> {
  template <class Axis>
  using on = typename detail::policy_on<Axis, Defaults, Given...>::type;

 private:
  template <class Axis>
  using default_on = typename Axis::template default_policy<Defaults, Given...>;

  template <class Axis>
  using change_on =
      std::conditional_t<std::is_same_v<on<Axis>, default_on<Axis>>, policy_list<>, policy_list<on<Axis>>>;

 public:
  /// The given policies that differ from the defaults, in the order of the axes.
  using changes = decltype((policy_list<>{} + ... + change_on<Axes>{}));
};

namespace detail {

template <class Policy, class... Axes>
struct role_check {
  static_assert(plain<Policy>, "a policy is a type of its own: leave out const, volatile and &");
  static_assert(defined<Policy> || !plain<Policy>,
                "this policy is declared but not defined here: include its header, below pagedkv/policy/<axis>/, pagedkv/events/ or pagedkv/device/");
};
template <defined Policy, class... Axes>
struct role_check<Policy, Axes...> {
  static constexpr auto num_axes = (0 + ... + policy_of<Policy, Axes>);
  static_assert(num_axes > 0,
                "this type models the concept of no axis: write static_assert(pagedkv::eviction_policy<P>), or the "
                "concept of the axis that is meant, below its definition, and the compiler names what it lacks");
  static_assert(num_axes < 2,
                "this type models the concepts of two axes, so its role is not clear: write one type for each axis");
};

template <class Axis, class... Given>
inline constexpr bool at_most_one = (0 + ... + policy_of<Given, Axis>) < 2;

}  // namespace detail

/// A `policy_set` for what a user writes: fails to compile, with a sentence, unless each given policy is for one axis,
/// and no two are for the same.
template <class Axes, class Defaults, class... Given>
struct checked_policy_set;

template <class... Axes, class Defaults, class... Given>
struct checked_policy_set<axes<Axes...>, Defaults, Given...> : policy_set<axes<Axes...>, Defaults, Given...> {
  static_assert((0 + ... + sizeof(detail::role_check<Given, Axes...>)) >= 0);
  static_assert((0 + ... + sizeof(typename Axes::template at_most_one<detail::at_most_one<Axes, Given...>>)) > 0);
};

}  // namespace pagedkv
