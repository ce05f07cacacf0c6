#pragma once

#include <boost/context/fiber.hpp>
#include <boost/context/preallocated.hpp>
#include <boost/context/protected_fixedsize_stack.hpp>

#include <cstddef>
#include <functional>
#include <memory>
#include <utility>

#if defined(__has_feature)
  #if __has_feature(address_sanitizer)
    #define PAGEDKV_ADDRESS_SANITIZER
  #endif
  #if __has_feature(thread_sanitizer)
    #define PAGEDKV_THREAD_SANITIZER
  #endif
#endif
#if defined(__SANITIZE_ADDRESS__) && !defined(PAGEDKV_ADDRESS_SANITIZER)
  #define PAGEDKV_ADDRESS_SANITIZER
#endif
#if defined(__SANITIZE_THREAD__) && !defined(PAGEDKV_THREAD_SANITIZER)
  #define PAGEDKV_THREAD_SANITIZER
#endif

#if defined(PAGEDKV_ADDRESS_SANITIZER)
  #include <sanitizer/common_interface_defs.h>
#endif
#if defined(PAGEDKV_THREAD_SANITIZER)
  #include <sanitizer/tsan_interface.h>
#endif

namespace pagedkv::executor {

/// A stack of its own that runs `body` repeatedly: each `resume` runs until the body suspends or returns. Belongs to
/// one thread. The sanitizers are informed of every switch.
class fiber {
 public:
  explicit fiber(std::size_t stack_bytes) {
    auto allocator = boost::context::protected_fixedsize_stack(stack_bytes);
    auto stack = allocator.allocate();
    stack_bytes_ = stack.size;
    stack_bottom_ = static_cast<std::byte*>(stack.sp) - stack.size;
#if defined(PAGEDKV_THREAD_SANITIZER)
    own_identity_ = __tsan_create_fiber(0);
#endif
    context_ = boost::context::fiber(std::allocator_arg, boost::context::preallocated(stack.sp, stack.size, stack),
                                     allocator, [this](boost::context::fiber&& caller) {
                                       enter(std::move(caller));
                                       return std::move(caller_);
                                     });
  }

  fiber(const fiber&) = delete;
  fiber& operator=(const fiber&) = delete;

  /// The body must not be suspended.
  ~fiber() {
    body_ = nullptr;
    resume();
#if defined(PAGEDKV_THREAD_SANITIZER)
    __tsan_destroy_fiber(own_identity_);
#endif
  }

  /// Sets the body that the next `resume` starts. The current body must not be suspended.
  void assign(std::function<void()> body) { body_ = std::move(body); }

  void resume() {
#if defined(PAGEDKV_ADDRESS_SANITIZER)
    void* fake_stack = nullptr;
    __sanitizer_start_switch_fiber(&fake_stack, stack_bottom_, stack_bytes_);
#endif
#if defined(PAGEDKV_THREAD_SANITIZER)
    caller_identity_ = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(own_identity_, 0);
#endif
    context_ = std::move(context_).resume();
#if defined(PAGEDKV_ADDRESS_SANITIZER)
    __sanitizer_finish_switch_fiber(fake_stack, nullptr, nullptr);
#endif
  }

  /// Returns to the caller of `resume`. Call it on this fiber's own stack only.
  void suspend() {
#if defined(PAGEDKV_ADDRESS_SANITIZER)
    void* fake_stack = nullptr;
    __sanitizer_start_switch_fiber(&fake_stack, caller_bottom_, caller_bytes_);
#endif
    announce_return();
    caller_ = std::move(caller_).resume();
#if defined(PAGEDKV_ADDRESS_SANITIZER)
    __sanitizer_finish_switch_fiber(fake_stack, &caller_bottom_, &caller_bytes_);
#endif
  }

 private:
  void enter(boost::context::fiber&& caller) {
    caller_ = std::move(caller);
#if defined(PAGEDKV_ADDRESS_SANITIZER)
    __sanitizer_finish_switch_fiber(nullptr, &caller_bottom_, &caller_bytes_);
#endif
    while (body_) {
      body_();
      suspend();
    }
#if defined(PAGEDKV_ADDRESS_SANITIZER)
    __sanitizer_start_switch_fiber(nullptr, caller_bottom_, caller_bytes_);
#endif
    announce_return();
  }

  void announce_return() {
#if defined(PAGEDKV_THREAD_SANITIZER)
    __tsan_switch_to_fiber(caller_identity_, 0);
#endif
  }

  std::function<void()> body_;
  boost::context::fiber context_;
  boost::context::fiber caller_;
  void* stack_bottom_ = nullptr;
  std::size_t stack_bytes_ = 0;
#if defined(PAGEDKV_ADDRESS_SANITIZER)
  const void* caller_bottom_ = nullptr;
  std::size_t caller_bytes_ = 0;
#endif
#if defined(PAGEDKV_THREAD_SANITIZER)
  void* own_identity_ = nullptr;
  void* caller_identity_ = nullptr;
#endif
};

}  // namespace pagedkv::executor
