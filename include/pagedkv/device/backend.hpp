#pragma once

#include <pagedkv/backend/concept.hpp>
#include <pagedkv/core/ids.hpp>
#include <pagedkv/device/allocators.hpp>
#include <pagedkv/device/attend.hpp>
#include <pagedkv/device/blocks.hpp>
#include <pagedkv/device/device.hpp>
#include <pagedkv/device/rows.hpp>
#include <pagedkv/device/stream.hpp>
#include <pagedkv/policy/element/float16.hpp>
#include <pagedkv/policy/element/float32.hpp>

namespace pagedkv {

/// Block operations on one AMD or NVIDIA device, enqueued in the caller's streams; without a HIP or CUDA compiler, on
/// the host executor. Operations enqueue and return: the stream's next synchronisation reports errors of the work
/// itself. Slots and rows are device-accessible memory; block pairs are host memory. Stateless except for the device's
/// number; thread-safe. Operations make the device current first: `backend_failure` where its runtime refuses that.
class hip_backend {
 public:
  using stream_type = runtime::stream;
  using default_allocator = hip::device_allocator;

  static constexpr std::string_view name = "hip";

  /// Throws `exception` when the device does not exist.
  explicit hip_backend(int device = 0) : device_(device) { hip::check_device(device).value(); }

  /// The number of the device, as its runtime counts. Constant time.
  [[nodiscard]] int device() const noexcept { return device_; }

  /// Does what `hip::stream::synchronize` does.
  [[nodiscard]] result<void> synchronize(stream_type stream) noexcept {
    return on_device([&] { return hip::to_result(runtime::synchronize_stream(stream), "the wait for a stream"); });
  }

  /// Does what `hip::append` does.
  template <element Element, element Input = float32>
  [[nodiscard]] result<void> append(const block_storage_view& view, std::int32_t layer, std::span<const slot> slots,
                                    const token_rows<const typename Input::storage>& keys,
                                    const token_rows<const typename Input::storage>& values,
                                    stream_type stream) noexcept {
    return on_device([&] { return hip::append<Element, Input>(view, layer, slots, keys, values, stream); });
  }

  /// Does what `hip::gather` does.
  template <element Element, element Output = float32>
  [[nodiscard]] result<void> gather(const block_storage_view& view, std::int32_t layer, std::span<const slot> slots,
                                    const token_rows<typename Output::storage>& keys,
                                    const token_rows<typename Output::storage>& values, stream_type stream) noexcept {
    return on_device([&] { return hip::gather<Element, Output>(view, layer, slots, keys, values, stream); });
  }

  /// Does what `hip::attend` does.
  template <element Element, element Input = float32, element Output = Input>
  [[nodiscard]] result<void> attend(const block_storage_view& view, std::int32_t layer, const attention_batch& batch,
                                    const token_rows<const typename Input::storage>& queries,
                                    const attention_output<typename Output::storage>& output,
                                    const attention_options& options, stream_type stream) noexcept {
    return on_device(
        [&] { return hip::attend<Element, Input, Output>(view, layer, batch, queries, output, options, stream); });
  }

  /// Does what `hip::copy_blocks` does.
  [[nodiscard]] result<void> copy_blocks(const block_storage_view& view, std::span<const block_pair> pairs,
                                         stream_type stream) noexcept {
    return on_device([&] { return hip::copy_blocks(view, pairs, stream); });
  }

  /// Does what `hip::move_blocks` does.
  [[nodiscard]] result<void> move_blocks(const block_storage_view& view, std::span<const block_pair> pairs,
                                         stream_type stream) noexcept {
    return on_device([&] { return hip::move_blocks(view, pairs, stream); });
  }

  /// See `swaps_blocks`; the host's memory is pinned.
  using host_memory = hip::pinned_allocator;
  using mark = hip::event;

  /// Does what `hip::swap_blocks` does.
  [[nodiscard]] result<void> swap_blocks(const block_storage_view& from, const block_storage_view& to,
                                         std::span<const block_pair> pairs, swap_direction direction,
                                         stream_type stream) noexcept {
    const auto kind = direction == swap_direction::to_host     ? runtime::device_to_host
                      : direction == swap_direction::from_host ? runtime::host_to_device
                                                               : runtime::device_to_device;
    return on_device([&] { return hip::swap_blocks(from, to, pairs, kind, stream); });
  }

  /// An event of the device, and its operations. Constant time. Errors: those of `hip::event`.
  [[nodiscard]] mark make_mark() { return mark{device_}; }
  [[nodiscard]] result<void> set_mark(mark& at, stream_type stream) noexcept {
    return on_device([&] { return at.record(stream); });
  }
  [[nodiscard]] result<bool> reached(const mark& at) noexcept { return at.reached(); }
  [[nodiscard]] result<void> wait_for(const mark& at, stream_type stream) noexcept {
    return on_device([&] { return at.hold(stream); });
  }

 private:
  template <class Operation>
  [[nodiscard]] result<void> on_device(Operation operation) noexcept {
    const auto scope = hip::device_scope(device_);
    const auto selected = hip::to_result(scope.status(), "the choice of a device");
    return selected ? operation() : selected;
  }

  int device_;
};

static_assert(backend_for<hip_backend, float32> && swaps_blocks<hip_backend> &&
              attention_backend_for<hip_backend, float16, float32, float16>);

}  // namespace pagedkv
