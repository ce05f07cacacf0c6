#pragma once

#include <pagedkv/core/ids.hpp>
#include <pagedkv/host/backend.hpp>
#include <pagedkv/policy/element/concept.hpp>

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace pagedkv::test {

/// The host backend, which fails on demand, records the streams of block operations, and may call a function during a
/// copy.
struct recording_backend : host_backend {
  using stream_type = int;

  struct log {
    bool fail = false;
    std::vector<std::pair<std::string, stream_type>> calls;
    std::function<void(stream_type)> during_copy = [](stream_type) {};
  };

  static constexpr std::string_view name = "recording";

  explicit recording_backend(log& to) : notes(&to) {}

  [[nodiscard]] result<void> synchronize(stream_type) noexcept { return {}; }

  template <element Element, element Input = float32>
  [[nodiscard]] result<void> append(const block_storage_view& view, std::int32_t layer, std::span<const slot> slots,
                                    const token_rows<const typename Input::storage>& keys,
                                    const token_rows<const typename Input::storage>& values,
                                    stream_type stream) noexcept {
    notes->calls.emplace_back("append", stream);
    return host::append<Element, Input>(view, layer, slots, keys, values);
  }

  template <element Element, element Output = float32>
  [[nodiscard]] result<void> gather(const block_storage_view& view, std::int32_t layer, std::span<const slot> slots,
                                    const token_rows<typename Output::storage>& keys,
                                    const token_rows<typename Output::storage>& values, stream_type stream) noexcept {
    notes->calls.emplace_back("gather", stream);
    return host::gather<Element, Output>(view, layer, slots, keys, values);
  }

  [[nodiscard]] result<void> copy_blocks(const block_storage_view& view, std::span<const block_pair> pairs,
                                         stream_type stream) noexcept {
    notes->calls.emplace_back("copy", stream);
    notes->during_copy(stream);
    return notes->fail ? error{error_code::backend_failure, "copy"} : host::copy_blocks(view, pairs);
  }

  [[nodiscard]] result<void> move_blocks(const block_storage_view& view, std::span<const block_pair> pairs,
                                         stream_type stream) noexcept {
    notes->calls.emplace_back("move", stream);
    return notes->fail ? error{error_code::backend_failure, "move"} : host::move_blocks(view, pairs);
  }

  [[nodiscard]] result<void> swap_blocks(const block_storage_view& from, const block_storage_view& to,
                                         std::span<const block_pair> pairs, swap_direction direction,
                                         stream_type stream) noexcept {
    notes->calls.emplace_back("swap", stream);
    return host_backend::swap_blocks(from, to, pairs, direction, {});
  }

  [[nodiscard]] result<void> set_mark(mark&, stream_type stream) noexcept {
    notes->calls.emplace_back("mark", stream);
    return {};
  }

  [[nodiscard]] result<void> wait_for(const mark&, stream_type stream) noexcept {
    notes->calls.emplace_back("wait", stream);
    return {};
  }

  log* notes;
};

}  // namespace pagedkv::test
