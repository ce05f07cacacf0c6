#pragma once

#include <pagedkv/policy/axis.hpp>

#include <concepts>
#include <cstddef>

namespace pagedkv {

namespace detail {

template <class A>
concept has_allocate = requires(A a, std::size_t bytes) {
  { a.allocate(bytes, bytes) } noexcept -> std::same_as<std::byte*>;
};
template <class A>
concept has_deallocate = requires(A a, std::size_t bytes, std::byte* pointer) {
  { a.deallocate(pointer, bytes) } noexcept;
};

}  // namespace detail

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
concept allocator = std::move_constructible<A> && detail::has_allocate<A> && detail::has_deallocate<A>;

/// An allocator of memory that comes and goes behind addresses that stay. Blocks keep their addresses while a cache
/// grows and shrinks. Ranges below start and end at multiples of the granule from the start of their reservation.
///
/// | requirement                    | meaning                                                                                |
/// |--------------------------------|----------------------------------------------------------------------------------------|
/// | `a.granule()`                  | bytes that are mapped together; a power of two                                         |
/// | `a.reserve(bytes, alignment)`  | addresses without memory, or null; `deallocate` gives them back with all that is mapped |
/// | `a.map(pointer, bytes)`        | puts memory behind a range that has none; false when exhausted, and then maps nothing  |
/// | `a.unmap(pointer, bytes)`      | gives back the memory behind a mapped range, which nothing accesses any more           |
///
/// A minimal model:
///
///     struct own_reserving_allocator : own_allocator {
///       std::size_t granule() const noexcept { return 4096; }
///       std::byte* reserve(std::size_t bytes, std::size_t alignment) noexcept { return allocate(bytes, alignment); }
///       bool map(std::byte*, std::size_t) noexcept { return true; }
///       void unmap(std::byte*, std::size_t) noexcept {}
///     };
template <class A>
concept resizable_allocator = allocator<A> && requires(A a, const A& constant, std::size_t bytes, std::byte* pointer) {
  { constant.granule() } noexcept -> std::same_as<std::size_t>;
  { a.reserve(bytes, bytes) } noexcept -> std::same_as<std::byte*>;
  { a.map(pointer, bytes) } noexcept -> std::same_as<bool>;
  { a.unmap(pointer, bytes) } noexcept;
};

/// Whether the host may read and write the memory. An allocator of memory that only a device reaches says by a member
/// `on_host` that is false that it may not.
template <allocator A>
inline constexpr bool on_host = true;

template <allocator A>
  requires requires { requires !A::on_host; }
inline constexpr bool on_host<A> = false;

/// Whether there is memory at all. An allocator that stands for none (see `no_memory`) says by a member
/// `provides_memory` that is false that it is never called.
template <allocator A>
inline constexpr bool provides_memory = true;

template <allocator A>
  requires requires { requires !A::provides_memory; }
inline constexpr bool provides_memory<A> = false;

namespace detail {

/// The `default_allocator` of the backend among the policies; `Otherwise` if it names none.
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

  template <class Policy>
  static constexpr bool resembles =
      requires(Policy policy, std::size_t bytes) { policy.allocate(bytes, bytes); } ||
      requires(Policy policy, std::size_t bytes, std::byte* pointer) { policy.deallocate(pointer, bytes); };

  template <class Policy>
  struct lacks {
    static constexpr auto unmet = detail::first_unmet(
        {std::move_constructible<Policy>, detail::has_allocate<Policy>, detail::has_deallocate<Policy>});
    static_assert(unmet != 0,
                  "this type is nearly an allocator: it cannot be moved, and a cache keeps the one that it is given; "
                  "write a move constructor");
    static_assert(unmet != 1,
                  "this type is nearly an allocator: `allocate` is missing, may throw or has another form; write "
                  "`std::byte* allocate(std::size_t bytes, std::size_t alignment) noexcept`");
    static_assert(unmet != 2,
                  "this type is nearly an allocator: `deallocate` is missing, may throw or has another form; write "
                  "`void deallocate(std::byte* pointer, std::size_t bytes) noexcept`");
  };
};

/// None: K/V lies in tensors of the engine's, which block ids and slots index. A cache with it has no `write`, `read`
/// or `view`; it takes a backend that uses no storage, as `copy_list` does.
struct no_memory {
  static constexpr bool provides_memory = false;

  [[nodiscard]] std::byte* allocate(std::size_t /*bytes*/, std::size_t /*alignment*/) noexcept { return nullptr; }
  void deallocate(std::byte* /*pointer*/, std::size_t /*bytes*/) noexcept {}
};

static_assert(allocator<no_memory> && !provides_memory<no_memory>);

}  // namespace pagedkv
