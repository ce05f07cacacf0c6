#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>

namespace pagedkv {

/// Where block storage comes from. Exhaustion is a value: a null pointer.
///
/// | requirement                          | meaning                                                               |
/// |--------------------------------------|-----------------------------------------------------------------------|
/// | `a.allocate(bytes, alignment)`       | memory, or null; `bytes` > 0, `alignment` a power of two up to 4096   |
/// | `a.deallocate(pointer, bytes)`       | gives back what `allocate(bytes, …)` returned; never fails            |
///
/// A minimal model:
///
///     struct own_allocator {
///       std::byte* allocate(std::size_t bytes, std::size_t) noexcept {
///         return static_cast<std::byte*>(std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096));
///       }
///       void deallocate(std::byte* pointer, std::size_t) noexcept { std::free(pointer); }
///     };
template <class A>
concept allocator = std::move_constructible<A> && requires(A a, std::size_t bytes, std::byte* pointer) {
  { a.allocate(bytes, bytes) } noexcept -> std::same_as<std::byte*>;
  { a.deallocate(pointer, bytes) } noexcept;
};

/// Whether the host may read and write the memory. An allocator of memory that only a device reaches says by a member
/// `on_host` that is false that it may not.
template <allocator A>
inline constexpr bool on_host = true;

template <allocator A>
  requires requires { requires !A::on_host; }
inline constexpr bool on_host<A> = false;

namespace detail {

/// The allocator that one of the policies, a backend, wants to be used by default.
template <class Otherwise, class...>
struct default_allocator_of {
  using type = Otherwise;
};
template <class Otherwise, class First, class... Rest>
struct default_allocator_of<Otherwise, First, Rest...> : default_allocator_of<Otherwise, Rest...> {};
template <class Otherwise, class First, class... Rest>
  requires requires { typename First::default_allocator; }
struct default_allocator_of<Otherwise, First, Rest...> {
  using type = typename First::default_allocator;
};

}  // namespace detail

struct allocator_axis {
  template <class Policy>
  static constexpr bool takes = allocator<Policy>;

  template <class Defaults, class... Given>
  using default_policy = typename detail::default_allocator_of<typename Defaults::allocator_type, Given...>::type;

  template <bool Is>
  struct at_most_one {
    static_assert(Is, "two allocators are given, and a cache has one: leave the other out");
  };
};

}  // namespace pagedkv
