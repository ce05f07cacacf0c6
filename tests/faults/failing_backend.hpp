#pragma once

#include <pagedkv/core/ids.hpp>
#include <pagedkv/host/backend.hpp>
#include <pagedkv/policy/element/concept.hpp>

#include <cstdint>
#include <span>
#include <string_view>

namespace pagedkv::test {

/// The plan and the record of failing backends; outlives them.
struct backend_calls {
  std::int64_t fail_at = 0;  // the call that fails, counted from 1; 0 for none
  std::int64_t calls = 0;
};

/// The host backend, except that the n-th call fails and does nothing.
struct failing_backend : host_backend {
  static constexpr std::string_view name = "failing";

  explicit failing_backend(backend_calls& to) : plan(&to) {}

  template <element Element, element Input = float32>
  [[nodiscard]] result<void> append(const block_storage_view& view, std::int32_t layer, std::span<const slot> slots,
                                    const token_rows<const typename Input::storage>& keys,
                                    const token_rows<const typename Input::storage>& values, stream_type) noexcept {
    return fails() ? failure() : host::append<Element, Input>(view, layer, slots, keys, values);
  }
  template <element Element, element Output = float32>
  [[nodiscard]] result<void> gather(const block_storage_view& view, std::int32_t layer, std::span<const slot> slots,
                                    const token_rows<typename Output::storage>& keys,
                                    const token_rows<typename Output::storage>& values, stream_type) noexcept {
    return fails() ? failure() : host::gather<Element, Output>(view, layer, slots, keys, values);
  }
  template <element Element, element Input = float32, element Output = Input>
  [[nodiscard]] result<void> attend(const block_storage_view& view, std::int32_t layer, const attention_batch& batch,
                                    const token_rows<const typename Input::storage>& queries,
                                    const attention_output<typename Output::storage>& output,
                                    const attention_options& options, stream_type stream) noexcept {
    return fails() ? failure()
                   : host_backend::attend<Element, Input, Output>(view, layer, batch, queries, output, options, stream);
  }
  [[nodiscard]] result<void> copy_blocks(const block_storage_view& view, std::span<const block_pair> pairs,
                                         stream_type) noexcept {
    return fails() ? failure() : host::copy_blocks(view, pairs);
  }
  [[nodiscard]] result<void> move_blocks(const block_storage_view& view, std::span<const block_pair> pairs,
                                         stream_type) noexcept {
    return fails() ? failure() : host::move_blocks(view, pairs);
  }
  [[nodiscard]] result<void> swap_blocks(const block_storage_view& from, const block_storage_view& to,
                                         std::span<const block_pair> pairs, swap_direction direction,
                                         stream_type stream) noexcept {
    return fails() ? failure() : host_backend::swap_blocks(from, to, pairs, direction, stream);
  }
  [[nodiscard]] result<void> set_mark(mark& made, stream_type stream) noexcept {
    return fails() ? failure() : host_backend::set_mark(made, stream);
  }
  [[nodiscard]] result<void> wait_for(const mark& made, stream_type stream) noexcept {
    return fails() ? failure() : host_backend::wait_for(made, stream);
  }
  [[nodiscard]] result<void> synchronize(stream_type stream) noexcept {
    return fails() ? failure() : host_backend::synchronize(stream);
  }

  backend_calls* plan;

 private:
  [[nodiscard]] bool fails() const noexcept { return ++plan->calls == plan->fail_at; }
  [[nodiscard]] static result<void> failure() noexcept { return error{error_code::backend_failure, "injected"}; }
};

}  // namespace pagedkv::test
