#pragma once

#include <concepts>
#include <initializer_list>
#include <string_view>
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
/// | `A::template resembles<P>`                       | whether `P` has a member that only this axis asks for         |
/// | `A::template lacks<P>`                           | a type whose definition fails, with a sentence that names     |
/// |                                                  | what `P` lacks: instantiated for one that models no axis      |
///
/// An axis that decides nothing in a class may be named beside its axes, for the sentences of types that resemble a
/// model of it: it has `takes`, `resembles` and `lacks` alone.
///
/// `axes` lists them in the order in which they appear in the name of the class.
template <class... Axes>
struct axes {};

/// Types in an order: the models of an axis, or the policies that a cache was given.
template <class... Policies>
struct policy_list {};

template <class... Policies, class... More>
consteval policy_list<Policies..., More...> operator+(policy_list<Policies...>, policy_list<More...>) noexcept {
  return {};
}

namespace detail {

/// A requirement of several axes: a name for tables and options.
template <class Policy>
concept has_name = requires {
  { Policy::name } -> std::convertible_to<std::string_view>;
};

/// The place of the first requirement that is not met; -1 if all are.
[[nodiscard]] constexpr int first_unmet(std::initializer_list<bool> requirements) noexcept {
  auto place = 0;
  for (const auto met : requirements) {
    if (!met) {
      return place;
    }
    ++place;
  }
  return -1;
}

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

/// Fails to compile for a policy of none of these axes, with the sentence of the first axis that it resembles.
template <class Policy, class... Axes>
struct role_of_none {
  static_assert(sizeof(Policy) == 0,
                "this type models the concept of no axis: write static_assert(pagedkv::eviction_policy<P>), or the "
                "concept of the axis that is meant, below its definition, and the compiler names what it lacks");
};
template <class Policy, class Axis, class... Rest>
struct role_of_none<Policy, Axis, Rest...> : role_of_none<Policy, Rest...> {};
template <class Policy, class Axis, class... Rest>
  requires Axis::template resembles<Policy>
struct role_of_none<Policy, Axis, Rest...> : Axis::template lacks<Policy> {};

template <class Policy, class Axes, class... Others>
struct role_check {
  static_assert(plain<Policy>, "a policy is a type of its own: leave out const, volatile and &");
  static_assert(!std::is_void_v<Policy> || !plain<Policy>,
                "`void` is no policy: leave it out, and the default of every axis applies");
  static_assert(defined<Policy> || std::is_void_v<Policy> || !plain<Policy>,
                "this policy is declared but not defined here: include its header, below pagedkv/policy/<axis>/, "
                "pagedkv/events/, pagedkv/tier/ or pagedkv/device/");
};
template <defined Policy, class... Axes, class... Others>
struct role_check<Policy, axes<Axes...>, Others...> : role_of_none<Policy, Axes..., Others...> {};
template <defined Policy, class... Axes, class... Others>
  requires(policy_of<Policy, Axes> || ...)
struct role_check<Policy, axes<Axes...>, Others...> {
  static_assert((0 + ... + policy_of<Policy, Axes>) == 1,
                "this type models the concepts of two axes, so its role is not clear: write one type for each axis");
};

template <class Axis, class... Given>
inline constexpr bool at_most_one = (0 + ... + policy_of<Given, Axis>) < 2;

}  // namespace detail

/// A `policy_set` for what a user writes: fails to compile, with a sentence, unless each given policy is for one axis,
/// and no two are for the same. `Others` stand beside the axes.
template <class Axes, class Others, class Defaults, class... Given>
struct checked_policy_set;

template <class... Axes, class... Others, class Defaults, class... Given>
struct checked_policy_set<axes<Axes...>, axes<Others...>, Defaults, Given...>
    : policy_set<axes<Axes...>, Defaults, Given...> {
  static_assert((0 + ... + sizeof(detail::role_check<Given, axes<Axes...>, Others...>)) >= 0);
  static_assert((0 + ... + sizeof(typename Axes::template at_most_one<detail::at_most_one<Axes, Given...>>)) > 0);
};

}  // namespace pagedkv
