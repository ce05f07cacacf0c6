#pragma once

#include <pagedkv/attention/attention.hpp>
#include <pagedkv/core/block_pair.hpp>
#include <pagedkv/core/ids.hpp>
#include <pagedkv/core/result.hpp>
#include <pagedkv/storage/view.hpp>

#include <concepts>
#include <cstdint>
#include <span>
#include <string_view>

namespace pagedkv {

/// Where block storage lives and block operations run. Operations are ordered within a stream and asynchronous to the
/// caller unless stated; rows and slots must outlive them, pairs may go when the call returns. `Element` is the element
/// of the storage.
///
/// | requirement                                              | meaning                                             |
/// |----------------------------------------------------------|-----------------------------------------------------|
/// | `B::stream`, `b.synchronize(stream)`                     | an ordered queue of work; wait until it is empty    |
/// | `b.template append<E>(view, layer, slots, k, v, stream)` | encodes rows into slots; negative slots are skipped |
/// | `b.template gather<E>(view, layer, slots, k, v, stream)` | decodes slots into rows; negative slots are skipped |
/// | `b.copy_blocks(view, pairs, stream)`                     | copies blocks whole; no destination is a source     |
/// | `b.move_blocks(view, pairs, stream)`                     | the same, as if all sources were read first         |
/// | `B::name`                                                | for tables                                          |
template <class B, class Element>
concept backend_for = requires(B b, const block_storage_view& view, std::int32_t layer, std::span<const slot> slots,
                               token_rows<const float> input, token_rows<float> output,
                               std::span<const block_pair> pairs, typename B::stream stream) {
  { b.synchronize(stream) } noexcept -> std::same_as<result<void>>;
  { b.template append<Element>(view, layer, slots, input, input, stream) } noexcept -> std::same_as<result<void>>;
  { b.template gather<Element>(view, layer, slots, output, output, stream) } noexcept -> std::same_as<result<void>>;
  { b.copy_blocks(view, pairs, stream) } noexcept -> std::same_as<result<void>>;
  { b.move_blocks(view, pairs, stream) } noexcept -> std::same_as<result<void>>;
  { B::name } -> std::convertible_to<std::string_view>;
};

/// A backend that computes attention where the blocks are. `Input` and `Output`, unscaled elements, say how queries and
/// outputs are stored; batch, options and rows outlive the operation.
///
/// | requirement                                                                        | meaning                 |
/// |------------------------------------------------------------------------------------|-------------------------|
/// | `b.template attend<E, I, O>(view, layer, batch, queries, output, options, stream)` | see `attention_options` |
template <class B, class Element, class Input, class Output>
concept attention_backend_for =
    requires(B b, const block_storage_view& view, std::int32_t layer, const attention_batch& batch,
             const attention_queries<typename Input::storage>& queries,
             const attention_output<typename Output::storage>& output, const attention_options& options,
             typename B::stream stream) {
      {
        b.template attend<Element, Input, Output>(view, layer, batch, queries, output, options, stream)
      } noexcept -> std::same_as<result<void>>;
    };

}  // namespace pagedkv
