#pragma once

#include <pagedkv/backend/concept.hpp>
#include <pagedkv/core/ids.hpp>
#include <pagedkv/host/blocks.hpp>
#include <pagedkv/host/rows.hpp>
#include <pagedkv/host/workers.hpp>
#include <pagedkv/policy/element/float32.hpp>

namespace pagedkv {

/// Block operations that are complete when they return. Stateless; operations on different blocks may run concurrently.
struct host_backend {
  /// Operations run on the calling thread; attention also uses the threads that the stream lends.
  struct stream_type {
    host::workers threads = {};
  };

  static constexpr std::string_view name = "host";

  /// The cache passes host memory to this backend's operations and may read it.
  static constexpr bool reads_on_host = true;

  /// Constant time: operations are complete when they return. Errors: none.
  [[nodiscard]] result<void> synchronize(stream_type) noexcept { return {}; }

  /// Does what `host::append` does.
  template <element Element, element Input = float32>
  [[nodiscard]] result<void> append(const block_storage_view& view, std::int32_t layer, std::span<const slot> slots,
                                    const token_rows<const typename Input::storage>& keys,
                                    const token_rows<const typename Input::storage>& values, stream_type) noexcept {
    return host::append<Element, Input>(view, layer, slots, keys, values);
  }

  /// Does what `host::gather` does.
  template <element Element, element Output = float32>
  [[nodiscard]] result<void> gather(const block_storage_view& view, std::int32_t layer, std::span<const slot> slots,
                                    const token_rows<typename Output::storage>& keys,
                                    const token_rows<typename Output::storage>& values, stream_type) noexcept {
    return host::gather<Element, Output>(view, layer, slots, keys, values);
  }

  /// Does what `host::copy_blocks` does.
  [[nodiscard]] result<void> copy_blocks(const block_storage_view& view, std::span<const block_pair> pairs,
                                         stream_type) noexcept {
    return host::copy_blocks(view, pairs);
  }

  /// Does what `host::move_blocks` does.
  [[nodiscard]] result<void> move_blocks(const block_storage_view& view, std::span<const block_pair> pairs,
                                         stream_type) noexcept {
    return host::move_blocks(view, pairs);
  }

  /// See `swaps_blocks`. Host memory is all there is, and copies are complete when they return.
  struct mark {};

  /// Does what `host::copy_blocks` does, between two storages; copies to host memory are not read soon.
  [[nodiscard]] result<void> swap_blocks(const block_storage_view& from, const block_storage_view& to,
                                         std::span<const block_pair> pairs, swap_direction direction,
                                         stream_type) noexcept {
    return host::copy_blocks(from, to, pairs, direction != swap_direction::to_host);
  }
  /// All copies are complete. Constant time. Errors: none.
  [[nodiscard]] mark make_mark() noexcept { return {}; }
  [[nodiscard]] result<void> set_mark(mark&, stream_type) noexcept { return {}; }
  [[nodiscard]] result<bool> reached(const mark&) noexcept { return true; }
  [[nodiscard]] result<void> wait_for(const mark&, stream_type) noexcept { return {}; }

  /// Does what `host::attend` does. Defined in `pagedkv/host/attend.hpp`, as vector code takes long to compile.
  template <element Element, element Input = float32, element Output = Input>
  [[nodiscard]] result<void> attend(const block_storage_view& view, std::int32_t layer, const attention_batch& batch,
                                    const token_rows<const typename Input::storage>& queries,
                                    const attention_output<typename Output::storage>& output,
                                    const attention_options& options, stream_type) noexcept;
};

static_assert(backend_for<host_backend, float32> && swaps_blocks<host_backend>);

}  // namespace pagedkv
