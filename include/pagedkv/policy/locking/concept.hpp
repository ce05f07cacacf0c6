#pragma once

#include <pagedkv/policy/axis.hpp>
#include <pagedkv/policy/locking/parts/contention.hpp>

#include <atomic>
#include <concepts>
#include <cstdint>
#include <string_view>

namespace pagedkv {

/// A value with the operations of `std::atomic` that components use. Every one takes its memory orders explicitly.
///
/// | requirement                                          | meaning                                                   |
/// |------------------------------------------------------|-----------------------------------------------------------|
/// | `a.load(order)`, `a.store(value, order)`             | read, write                                               |
/// | `a.exchange(value, order)`                           | writes and returns what was there                         |
/// | `a.compare_exchange_weak(expected, desired, s, f)`   | writes only over `expected`, else loads it; may fail idly |
/// | `a.compare_exchange_strong(expected, desired, s, f)` | the same, and never fails idly                            |
/// | `a.fetch_add`, `fetch_sub`, `fetch_or`, `fetch_and`  | integers: change by an operand, return what was there     |
template <class A, class T>
concept atomic_of = requires(A a, const A& constant, T& expected, T value, std::memory_order order) {
  requires std::default_initializable<A> && std::constructible_from<A, T>;
  { constant.load(order) } noexcept -> std::same_as<T>;
  { a.store(value, order) } noexcept;
  { a.exchange(value, order) } noexcept -> std::same_as<T>;
  { a.compare_exchange_weak(expected, value, order, order) } noexcept -> std::same_as<bool>;
  { a.compare_exchange_strong(expected, value, order, order) } noexcept -> std::same_as<bool>;
} && (!std::integral<T> || std::same_as<T, bool> || requires(A a, T value, std::memory_order order) {
                      { a.fetch_add(value, order) } noexcept -> std::same_as<T>;
                      { a.fetch_sub(value, order) } noexcept -> std::same_as<T>;
                      { a.fetch_or(value, order) } noexcept -> std::same_as<T>;
                      { a.fetch_and(value, order) } noexcept -> std::same_as<T>;
                    });

/// A mutex held by one writer or by any number of readers. May throw `std::system_error`, as the standard's do.
template <class M>
concept shared_mutex = std::default_initializable<M> && requires(M mutex) {
  mutex.lock();
  mutex.unlock();
  mutex.lock_shared();
  mutex.unlock_shared();
};

/// A mutex held by one thread at a time.
template <class M>
concept exclusive_mutex = std::default_initializable<M> && requires(M mutex) {
  mutex.lock();
  { mutex.try_lock() } -> std::convertible_to<bool>;
  mutex.unlock();
};

namespace detail {

template <class L>
concept has_atomic = requires {
  requires atomic_of<typename L::template atomic<std::uint64_t>, std::uint64_t>;
  requires atomic_of<typename L::template atomic<std::uint32_t>, std::uint32_t>;
  requires atomic_of<typename L::template atomic<bool>, bool>;
};
template <class L>
concept has_cache_mutex = requires { requires shared_mutex<typename L::cache_mutex>; };
template <class L>
concept has_sequence_mutex = requires { requires exclusive_mutex<typename L::sequence_mutex>; };
template <class L>
concept has_family = requires {
  requires std::default_initializable<typename L::family>;
  { L::family::concurrent } -> std::convertible_to<bool>;
};
template <class L>
concept has_contention = requires { requires contention_metrics<typename L::contention>; };
template <class L>
concept has_waits_for_sequence = requires {
  { L::waits_for_sequence } -> std::convertible_to<bool>;
};

}  // namespace detail

/// How threads are kept apart. The cache's logic is written once over these names; a policy that has no use for one of
/// them makes it an empty type whose members do nothing.
///
/// | requirement             | meaning                                                                                |
/// |-------------------------|----------------------------------------------------------------------------------------|
/// | `L::template atomic<T>` | what the words that components share are made of; models `atomic_of<T>`                |
/// | `L::cache_mutex`        | locked shared by operations that only read the cache, exclusively by all others;       |
/// |                         | one that lets several of those in can be `close`d by an operation that must be alone   |
/// | `L::waits_for_sequence` | a second operation on one sequence waits; if false, it is told `sequence_busy`         |
/// | `L::sequence_mutex`     | what it waits for; taken after `cache_mutex`                                           |
/// | `L::family`             | tag that selects the components of the cache, e.g. `unsynchronized_family`             |
/// | `L::family::concurrent` | whether several threads may be inside the components at once                           |
/// | `L::contention`         | models `contention_metrics`                                                            |
/// | `L::name`               | for tables and options, e.g. "rw_lock"                                                 |
///
/// A minimal model:
///
///     struct own_locking {
///       template <class T>
///       using atomic = unsynchronized<T>;
///       using cache_mutex = no_mutex;
///       using sequence_mutex = no_mutex;
///       using family = unsynchronized_family;
///       using contention = no_contention_metrics;
///       static constexpr bool waits_for_sequence = true;
///       static constexpr std::string_view name = "own_locking";
///     };
template <class L>
concept locking = detail::has_atomic<L> && detail::has_cache_mutex<L> && detail::has_sequence_mutex<L> &&
                  detail::has_family<L> && detail::has_contention<L> && detail::has_waits_for_sequence<L> &&
                  detail::has_name<L>;

struct locking_axis {
  template <class Policy>
  static constexpr bool takes = locking<Policy>;

  template <class Defaults, class...>
  using default_policy = typename Defaults::locking_type;

  template <bool Is>
  struct at_most_one {
    static_assert(Is, "two locking policies are given, and a cache has one: leave the other out");
  };

  template <class Policy>
  static constexpr bool resembles = requires { typename Policy::cache_mutex; } ||
                                    requires { typename Policy::sequence_mutex; } ||
                                    requires { typename Policy::family; };

  template <class Policy>
  struct lacks {
    static constexpr auto unmet = detail::first_unmet(
        {detail::has_atomic<Policy>, detail::has_cache_mutex<Policy>, detail::has_sequence_mutex<Policy>,
         detail::has_family<Policy>, detail::has_contention<Policy>, detail::has_waits_for_sequence<Policy>,
         detail::has_name<Policy>});
    static_assert(unmet != 0,
                  "this type is nearly a locking policy: `atomic` is missing or has too few operations; write "
                  "`template <class T> using atomic = std::atomic<T>`, or another model of `pagedkv::atomic_of`");
    static_assert(unmet != 1,
                  "this type is nearly a locking policy: `cache_mutex` is missing or has too few operations; write "
                  "`using cache_mutex = pagedkv::no_mutex`, or another model of `pagedkv::shared_mutex`");
    static_assert(unmet != 2,
                  "this type is nearly a locking policy: `sequence_mutex` is missing or has too few operations; "
                  "write `using sequence_mutex = pagedkv::no_mutex`, or another model of `pagedkv::exclusive_mutex`");
    static_assert(unmet != 3,
                  "this type is nearly a locking policy: `family` is missing or names no components; write `using "
                  "family = pagedkv::unsynchronized_family`, or the family of another locking policy");
    static_assert(unmet != 4,
                  "this type is nearly a locking policy: `contention` is missing or has too few operations; write "
                  "`using contention = pagedkv::no_contention_metrics`, or another model of "
                  "`pagedkv::contention_metrics`");
    static_assert(unmet != 5,
                  "this type is nearly a locking policy: `waits_for_sequence` is missing or has another type; write "
                  "`static constexpr bool waits_for_sequence`");
    static_assert(unmet != 6,
                  "this type is nearly a locking policy: `name` is missing or has another type; write `static "
                  "constexpr std::string_view name`");
  };
};

}  // namespace pagedkv
