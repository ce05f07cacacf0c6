#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

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
