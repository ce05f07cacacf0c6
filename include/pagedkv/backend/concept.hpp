#pragma once

#include <pagedkv/attention/attention.hpp>
#include <pagedkv/core/ids.hpp>
#include <pagedkv/core/result.hpp>
#include <pagedkv/policy/axis.hpp>
#include <pagedkv/policy/element/bfloat16.hpp>
#include <pagedkv/policy/element/float16.hpp>
#include <pagedkv/policy/element/float32.hpp>
#include <pagedkv/storage/view.hpp>

#include <concepts>
#include <cstdint>
#include <span>
#include <string_view>

namespace pagedkv {

namespace detail {

template <class B>
concept has_stream = requires { typename B::stream_type; };
template <class B>
concept has_synchronize = requires(B b, typename B::stream_type stream) {
  { b.synchronize(stream) } noexcept -> std::same_as<result<void>>;
};
template <class B>
concept has_copy_blocks =
    requires(B b, const block_storage_view& view, std::span<const block_pair> pairs, typename B::stream_type stream) {
      { b.copy_blocks(view, pairs, stream) } noexcept -> std::same_as<result<void>>;
    };
template <class B>
concept has_move_blocks =
    requires(B b, const block_storage_view& view, std::span<const block_pair> pairs, typename B::stream_type stream) {
      { b.move_blocks(view, pairs, stream) } noexcept -> std::same_as<result<void>>;
    };

}  // namespace detail

/// Where block storage lives and block operations run. Operations are ordered within a stream and asynchronous to the
/// caller unless stated; rows and slots must outlive them, pairs may go when the call returns.
///
/// | requirement                               | meaning                                          |
/// |-------------------------------------------|--------------------------------------------------|
/// | `B::stream_type`, `b.synchronize(stream)` | an ordered queue of work; wait until it is empty |
/// | `b.copy_blocks(view, pairs, stream)`      | copies blocks whole; no destination is a source  |
/// | `b.move_blocks(view, pairs, stream)`      | the same, as if all sources were read first      |
/// | `B::name`                                 | for tables                                       |
///
/// A backend that may read slots and storage with the host's own instructions while the caller waits says so by a
/// member `reads_on_host` that is true. A backend whose storage must lie in memory of its own kind names an allocator
/// of that memory as `B::default_allocator`: a cache uses it unless it is given another. A backend that copies blocks
/// outside of block storage, in the engine's tensors, says by a member `uses_storage` that is false that it leaves the
/// view alone, and names `no_memory` as `B::default_allocator`.
///
/// A minimal model:
///
///     struct own_backend {
///       struct stream_type {};
///       static constexpr std::string_view name = "own_backend";
///       result<void> synchronize(stream_type) noexcept { return {}; }
///       result<void> copy_blocks(const block_storage_view& view, std::span<const block_pair> pairs, stream_type) noexcept {
///         return host::copy_blocks(view, pairs);
///       }
///       result<void> move_blocks(const block_storage_view& view, std::span<const block_pair> pairs, stream_type) noexcept {
///         return host::move_blocks(view, pairs);
///       }
///     };
template <class B>
concept backend = detail::has_stream<B> && detail::has_synchronize<B> && detail::has_copy_blocks<B> &&
                  detail::has_move_blocks<B> && detail::has_name<B>;

/// Whether the backend may read slots and storage with the host's own instructions while the caller waits.
template <backend B>
inline constexpr bool reads_on_host = false;

template <backend B>
  requires requires { requires B::reads_on_host; }
inline constexpr bool reads_on_host<B> = true;

/// Whether the backend copies within block storage. Only one whose member `uses_storage` is false does not.
template <backend B>
inline constexpr bool uses_storage = true;

template <backend B>
  requires requires { requires !B::uses_storage; }
inline constexpr bool uses_storage<B> = false;

/// A backend that writes and reads rows of storage whose element is `E`. Rows are stored as an unscaled element, `R`.
///
/// | requirement                                                 | meaning                                             |
/// |-------------------------------------------------------------|-----------------------------------------------------|
/// | `b.template append<E, R>(view, layer, slots, k, v, stream)` | encodes rows into slots; negative slots are skipped |
/// | `b.template gather<E, R>(view, layer, slots, k, v, stream)` | decodes slots into rows; negative slots are skipped |
template <class B, class Element, class Rows>
concept moves_rows = requires(B b, const block_storage_view& view, std::int32_t layer, std::span<const slot> slots,
                              const token_rows<const typename Rows::storage>& input,
                              const token_rows<typename Rows::storage>& output, typename B::stream_type stream) {
  { b.template append<Element, Rows>(view, layer, slots, input, input, stream) } noexcept -> std::same_as<result<void>>;
  {
    b.template gather<Element, Rows>(view, layer, slots, output, output, stream)
  } noexcept -> std::same_as<result<void>>;
};

/// A backend for caches of this element, which takes rows of float32, float16 and bfloat16.
template <class B, class Element>
concept backend_for = backend<B> && moves_rows<B, Element, float32> && moves_rows<B, Element, float16> &&
                      moves_rows<B, Element, bfloat16>;

/// A backend that computes attention where the blocks are. `Input` and `Output`, unscaled elements, say how queries and
/// outputs are stored; batch, options and rows outlive the operation.
///
/// | requirement                                                                        | meaning                 |
/// |------------------------------------------------------------------------------------|-------------------------|
/// | `b.template attend<E, I, O>(view, layer, batch, queries, output, options, stream)` | see `attention_options` |
template <class B, class Element, class Input, class Output>
concept attention_backend_for = requires(
    B b, const block_storage_view& view, std::int32_t layer, const attention_batch& batch,
    const token_rows<const typename Input::storage>& queries, const attention_output<typename Output::storage>& output,
    const attention_options& options, typename B::stream_type stream) {
  {
    b.template attend<Element, Input, Output>(view, layer, batch, queries, output, options, stream)
  } noexcept -> std::same_as<result<void>>;
};

/// The direction of `swap_blocks`. A peer is another device's storage, in memory that this one reaches.
enum class swap_direction : std::uint8_t { to_host, from_host, from_peer };

/// A backend that copies blocks between its storage and other memory, and tells when. Both views have the same element
/// and inner layout; strides and number of blocks may differ. After an error of `swap_blocks` no copy is under way, and
/// destinations may hold any bytes. Tiers need it.
///
/// | requirement                                         | meaning                                                        |
/// |-----------------------------------------------------|----------------------------------------------------------------|
/// | `b.swap_blocks(from, to, pairs, direction, stream)` | copies blocks whole, in order of the stream                    |
/// | `B::mark`, `b.make_mark()`                          | a place in a stream, none yet; may throw `exception`           |
/// | `b.set_mark(mark, stream)`                          | puts it behind all that is enqueued in the stream              |
/// | `b.reached(mark)`                                   | whether all before it was executed; true while it has no place |
/// | `b.wait_for(mark, stream)`                          | lets later work in the stream wait for it; does not wait       |
template <class B>
concept swaps_blocks = backend<B> && requires(B b, const block_storage_view& view, std::span<const block_pair> pairs,
                                              typename B::stream_type stream, typename B::mark& mark) {
  { b.swap_blocks(view, view, pairs, swap_direction::to_host, stream) } noexcept -> std::same_as<result<void>>;
  { b.make_mark() } -> std::same_as<typename B::mark>;
  { b.set_mark(mark, stream) } noexcept -> std::same_as<result<void>>;
  { b.reached(mark) } noexcept -> std::same_as<result<bool>>;
  { b.wait_for(mark, stream) } noexcept -> std::same_as<result<void>>;
};

struct backend_axis {
  template <class Policy>
  static constexpr bool takes = backend<Policy>;

  template <class Defaults, class...>
  using default_policy = typename Defaults::backend_type;

  template <bool Is>
  struct at_most_one {
    static_assert(Is, "two backends are given, and a cache has one: leave the other out");
  };

  template <class Policy>
  static constexpr bool resembles = detail::has_stream<Policy> || requires { &Policy::copy_blocks; } ||
                                    requires { &Policy::move_blocks; };

  template <class Policy>
  struct lacks {
    static constexpr auto unmet = detail::first_unmet(
        {detail::has_stream<Policy>, detail::has_synchronize<Policy>, detail::has_copy_blocks<Policy>,
         detail::has_move_blocks<Policy>, detail::has_name<Policy>});
    static_assert(
        unmet != 0,
        "this type is nearly a backend: `stream_type` is missing; write `struct stream_type {}`, or the type of an "
        "ordered queue of work");
    static_assert(unmet != 1,
                  "this type is nearly a backend: `synchronize` is missing, may throw or has another form; write "
                  "`result<void> synchronize(stream_type stream) noexcept`");
    static_assert(unmet != 2,
                  "this type is nearly a backend: `copy_blocks` is missing, may throw or has another form; write "
                  "`result<void> copy_blocks(const block_storage_view& view, std::span<const block_pair> pairs, "
                  "stream_type stream) noexcept`");
    static_assert(unmet != 3,
                  "this type is nearly a backend: `move_blocks` is missing, may throw or has another form; write "
                  "`result<void> move_blocks(const block_storage_view& view, std::span<const block_pair> pairs, "
                  "stream_type stream) noexcept`");
    static_assert(unmet != 4,
                  "this type is nearly a backend: `name` is missing or has another type; write `static constexpr "
                  "std::string_view name`");
  };
};

}  // namespace pagedkv
