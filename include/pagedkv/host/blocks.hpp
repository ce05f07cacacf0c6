#pragma once

#include <pagedkv/core/ids.hpp>
#include <pagedkv/detail/memory.hpp>
#include <pagedkv/storage/move_order.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace pagedkv::detail {

/// Copies past the processor's caches: a store into memory that is in no cache otherwise reads it first, and what it
/// puts there displaces other data. `finish_streaming` before others may read the copy. Sanitizers do not see such
/// stores of g++.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
inline void stream_bytes(std::byte* to, const std::byte* from, std::size_t bytes) noexcept {
  using two_words [[gnu::vector_size(16)]] = long long;
  constexpr auto line = std::size_t{64};
  if ((reinterpret_cast<std::uintptr_t>(to) | bytes) % line != 0) {
    std::memcpy(to, from, bytes);
    return;
  }
  const auto stream = [=](std::size_t first) {
    auto words = two_words{};
    std::memcpy(&words, from + first, sizeof(words));
    auto* const there = reinterpret_cast<two_words*>(to + first);
  #if defined(__clang__)
    __builtin_nontemporal_store(words, there);
  #else
    __builtin_ia32_movntdq(there, words);
  #endif
  };
  for (std::size_t i = 0; i < bytes; i += line) {
    stream(i);
    stream(i + 16);
    stream(i + 32);
    stream(i + 48);
  }
}
inline void finish_streaming() noexcept { __builtin_ia32_sfence(); }
#else
inline void stream_bytes(std::byte* to, const std::byte* from, std::size_t bytes) noexcept {
  std::memcpy(to, from, bytes);
}
inline void finish_streaming() noexcept {}
#endif

/// Requests the start of bytes that are copied soon; the processor follows by itself.
[[gnu::always_inline]] inline void prefetch_bytes(const std::byte* from, std::size_t bytes) noexcept {
  constexpr auto most = std::size_t{1024};
  for (std::size_t i = 0; i < std::min(bytes, most); i += 64) {
    __builtin_prefetch(from + i);
  }
}

}  // namespace pagedkv::detail

namespace pagedkv::host {

/// Copies one block in every layer, with scales and padding. The two are different blocks.
inline void copy_block(const block_storage_view& view, block_pair pair) noexcept {
  const auto bytes = static_cast<std::size_t>(view.layer_bytes());
  for (auto layer = std::int32_t{0}; layer < view.num_layers; ++layer) {
    std::memcpy(view.block(layer, pair.destination), view.block(layer, pair.source), bytes);
  }
}

/// Copies blocks in every layer; no destination is also a source. Linear in the bytes of the blocks. Errors:
/// `invalid_argument` for a block outside the storage, before anything is written.
[[nodiscard]] inline result<void> copy_blocks(const block_storage_view& view,
                                              std::span<const block_pair> pairs) noexcept {
  if (const auto checked = check_pairs(view, pairs); !checked) {
    return checked;
  }
  for (const auto pair : pairs) {
    copy_block(view, pair);
  }
  return {};
}

/// Copies between two storages, of the same element and inner layout. `read_soon`: whether the copies are; others do
/// not pass through the processor's caches, unless they are few. Linear in the bytes of the blocks. Errors:
/// `invalid_argument` for blocks or storages that do not fit, before anything is written.
[[nodiscard]] inline result<void> copy_blocks(const block_storage_view& from, const block_storage_view& to,
                                              std::span<const block_pair> pairs, bool read_soon = true) noexcept {
  if (from.layer_bytes() != to.layer_bytes() || from.num_layers != to.num_layers) {
    return error{error_code::invalid_argument, "bytes of a block of the destination, which are not the source's,",
                 to.layer_bytes() * to.num_layers, from.layer_bytes() * from.num_layers};
  }
  if (const auto checked = check_pairs(from, to, pairs); !checked) {
    return checked;
  }
  constexpr auto num_ahead = std::size_t{4};
  constexpr auto few_bytes = std::size_t{32} << 10;  // below, to wait for the last stores takes longer
  const auto bytes = static_cast<std::size_t>(from.layer_bytes());
  const auto streams = !read_soon && pairs.size() * bytes * static_cast<std::size_t>(from.num_layers) >= few_bytes;
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    const auto& [source, destination] = pairs[i];
    for (auto layer = std::int32_t{0}; layer < from.num_layers; ++layer) {
      if (i + num_ahead < pairs.size()) {
        detail::prefetch_bytes(from.block(layer, pairs[i + num_ahead].source), bytes);
      }
      if (streams) {
        detail::stream_bytes(to.block(layer, destination), from.block(layer, source), bytes);
      } else {
        std::memcpy(to.block(layer, destination), from.block(layer, source), bytes);
      }
    }
  }
  if (streams) {
    detail::finish_streaming();
  }
  return {};
}

/// Exchanges two blocks in every layer.
inline void swap_block(const block_storage_view& view, block_pair pair) noexcept {
  for (auto layer = std::int32_t{0}; layer < view.num_layers; ++layer) {
    auto* const source = view.block(layer, pair.source);
    std::swap_ranges(source, source + view.layer_bytes(), view.block(layer, pair.destination));
  }
}

/// Copies blocks in every layer as if all sources were read first; chains and cycles are allowed and need no second
/// buffer. O(n log n) in the pairs, and linear in the bytes of the blocks. Errors, before anything is written:
/// `invalid_argument` for a block outside the storage or the destination of two moves; `out_of_memory` for the working
/// memory, which is proportional to the moves.
[[nodiscard]] inline result<void> move_blocks(const block_storage_view& view,
                                              std::span<const block_pair> pairs) noexcept {
  if (const auto checked = check_pairs(view, pairs); !checked) {
    return checked;
  }
  const auto move = [&]() -> result<void> {
    auto order = move_order{pairs};
    if (const auto twice = order.ambiguous_destination()) {
      return error{error_code::invalid_argument, "destination block of two moves", *twice};
    }
    order.run([&](block_pair pair) { copy_block(view, pair); }, [&](block_pair pair) { swap_block(view, pair); });
    return {};
  };
  const auto num_moves = static_cast<std::int64_t>(pairs.size());
  return detail::with_memory(move, error{error_code::out_of_memory, "moves", num_moves});
}

}  // namespace pagedkv::host
