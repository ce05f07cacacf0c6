#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include <ucontext.h>

#if defined(__SANITIZE_THREAD__)
  #define PAGEDKV_THREAD_SANITIZER
#elif defined(__has_feature)
  #if __has_feature(thread_sanitizer)
    #define PAGEDKV_THREAD_SANITIZER
  #endif
#endif
#ifdef PAGEDKV_THREAD_SANITIZER
  #include <sanitizer/tsan_interface.h>
#endif

namespace pagedkv::testing {

#ifdef PAGEDKV_THREAD_SANITIZER
inline constexpr bool slow_fibers = true;
#else
inline constexpr bool slow_fibers = false;
#endif

/// A function with a stack of its own, which the thread that made it enters and leaves. No exception may leave the
/// function.
class fiber {
 public:
  fiber() : stack_(std::make_unique<char[]>(stack_bytes)) {
#ifdef PAGEDKV_THREAD_SANITIZER
    sanitizer_fiber_ = __tsan_create_fiber(0);
#endif
  }

  fiber(const fiber&) = delete;
  fiber& operator=(const fiber&) = delete;

  ~fiber() {
#ifdef PAGEDKV_THREAD_SANITIZER
    __tsan_destroy_fiber(sanitizer_fiber_);
#endif
  }

  /// Prepares to run `body` from its start. An earlier body is dropped, not unwound.
  void start(std::function<void()> body) {
    body_ = std::move(body);
    getcontext(&inside_);
    inside_.uc_stack.ss_sp = stack_.get();
    inside_.uc_stack.ss_size = stack_bytes;
    inside_.uc_link = nullptr;
    const auto self = reinterpret_cast<std::uintptr_t>(this);
    makecontext(&inside_, reinterpret_cast<void (*)()>(&fiber::enter), 2, static_cast<unsigned>(self >> 32),
                static_cast<unsigned>(self));
    finished_ = false;
  }

  /// Runs until the body calls `leave` or returns.
  void resume() {
#ifdef PAGEDKV_THREAD_SANITIZER
    sanitizer_outside_ = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(sanitizer_fiber_, 0);
#endif
    swapcontext(&outside_, &inside_);
  }

  /// Call it only from inside the fiber.
  void leave() {
#ifdef PAGEDKV_THREAD_SANITIZER
    __tsan_switch_to_fiber(sanitizer_outside_, 0);
#endif
    swapcontext(&inside_, &outside_);
  }

  [[nodiscard]] bool finished() const { return finished_; }

 private:
  static constexpr auto stack_bytes = std::size_t{128} << 10;

  // makecontext passes ints only.
  static void enter(unsigned high, unsigned low) {
    auto* self = reinterpret_cast<fiber*>(std::uintptr_t{high} << 32 | low);
    self->body_();
    self->finished_ = true;
    self->leave();
  }

  std::unique_ptr<char[]> stack_;
  std::function<void()> body_;
  ucontext_t inside_{};
  ucontext_t outside_{};
  bool finished_ = true;
#ifdef PAGEDKV_THREAD_SANITIZER
  void* sanitizer_fiber_ = nullptr;
  void* sanitizer_outside_ = nullptr;
#endif
};

}  // namespace pagedkv::testing
