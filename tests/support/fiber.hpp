#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include <ucontext.h>

namespace pagedkv::testing {

/// A function with a stack of its own, which the thread that made it enters and leaves. No exception may leave the
/// function. ThreadSanitizer is not told: it would see one thread that runs them all.
class fiber {
 public:
  fiber() : stack_(std::make_unique<char[]>(stack_bytes)) {}

  fiber(const fiber&) = delete;
  fiber& operator=(const fiber&) = delete;

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
  void resume() { swapcontext(&outside_, &inside_); }

  /// Call it only from inside the fiber.
  void leave() { swapcontext(&inside_, &outside_); }

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
};

}  // namespace pagedkv::testing
