#pragma once

namespace pagedkv {

/// Pauses a loop that reads a word repeatedly: yields the core's resources for a moment.
inline void spin_pause() noexcept {
  for (auto i = 0; i < 8; ++i) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
  }
}

}  // namespace pagedkv
