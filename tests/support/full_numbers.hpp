#pragma once

#include <cstdlib>
#include <string_view>

#if defined(__has_feature)
  #define PAGEDKV_UNDER_THREAD_SANITIZER __has_feature(thread_sanitizer)
  #define PAGEDKV_UNDER_ADDRESS_SANITIZER __has_feature(address_sanitizer)
#else
  #ifdef __SANITIZE_THREAD__
    #define PAGEDKV_UNDER_THREAD_SANITIZER true
  #else
    #define PAGEDKV_UNDER_THREAD_SANITIZER false
  #endif
  #ifdef __SANITIZE_ADDRESS__
    #define PAGEDKV_UNDER_ADDRESS_SANITIZER true
  #else
    #define PAGEDKV_UNDER_ADDRESS_SANITIZER false
  #endif
#endif

namespace pagedkv::testing {

/// Whether ThreadSanitizer instruments this program, which makes it many times slower.
inline constexpr bool under_thread_sanitizer = PAGEDKV_UNDER_THREAD_SANITIZER;

/// Whether PAGEDKV_TEST_FULL is set and not empty: long runs are wanted.
[[nodiscard]] inline bool full_numbers() {
  const auto* const set = std::getenv("PAGEDKV_TEST_FULL");
  return set != nullptr && !std::string_view{set}.empty();
}

/// `full` if long runs are wanted, otherwise a number that is fast enough for every change.
template <class Number>
[[nodiscard]] Number scaled(Number everyday, Number full) {
  return full_numbers() ? full : everyday;
}

/// So many rounds of a random test. Where a sanitizer makes each several times as long, half of them are enough for
/// every change.
template <class Number>
[[nodiscard]] Number halved_if_sanitized(Number rounds) {
  constexpr auto sanitized = PAGEDKV_UNDER_THREAD_SANITIZER || PAGEDKV_UNDER_ADDRESS_SANITIZER;
  return scaled(sanitized ? (rounds + 1) / 2 : rounds, rounds);
}

}  // namespace pagedkv::testing
