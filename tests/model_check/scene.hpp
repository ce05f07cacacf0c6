#pragma once

#include "../support/faulty_atomics.hpp"

#include <pagedkv/policy/locking/lock_free.hpp>
#include <pagedkv/policy/locking/parts/thread_index.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <new>
#include <type_traits>

// Parts of scenes: programs of a few threads around one component, for a model checker that executes LLVM's
// intermediate code and tries all that the memory model of C++ permits. A scene is one translation unit, whose `main`
// runs the function that PAGEDKV_SCENE names; PAGEDKV_FAULT names a fault to plant, of `faulty`.

extern "C" {
int __VERIFIER_thread_create(const void* attributes, void* (*start)(void*), void* argument);
void* __VERIFIER_thread_join(long thread);
void __VERIFIER_assert_fail(const char* expression, const char* file, int line);
void* __VERIFIER_malloc_aligned(std::size_t alignment, std::size_t bytes);
}

namespace pagedkv::model_check {

/// `std::atomic`, whose waits ask again: the model checker skips turns of a loop that change nothing.
template <class T>
class checked_atomic : public std::atomic<T> {
 public:
  using std::atomic<T>::atomic;

  void wait(T old, std::memory_order order = std::memory_order_seq_cst) const noexcept {
    while (this->load(order) == old) {
    }
  }
  void notify_one() noexcept {}
  void notify_all() noexcept {}
};

#if defined(PAGEDKV_FAULT)
template <class T>
using atomic = testing::faulty<checked_atomic>::PAGEDKV_FAULT<T>;
#else
template <class T>
using atomic = checked_atomic<T>;
#endif

/// Fails the execution unless this holds.
inline void expect(bool holds, const char* what) {
  if (!holds) {
    __VERIFIER_assert_fail(what, "", 0);
  }
}

/// A number that threads may use only one after the other: anything else is a race, which the model checker reports.
class guarded_number {
 public:
  void write(int number) noexcept { number_ = number; }
  [[nodiscard]] int read() const noexcept { return number_; }

 private:
  volatile int number_ = 0;
};

/// 0 in the thread that starts others.
inline thread_local std::uint32_t number_of_thread = 0;

struct thread_numbers {
  [[nodiscard]] std::uint32_t current() const noexcept { return number_of_thread; }
  [[nodiscard]] std::uint32_t limit() const noexcept { return 4; }
};

template <class Body>
struct started_thread {
  Body& body;
  std::uint32_t number;

  static void* run(void* self) {
    const auto& started = *static_cast<started_thread*>(self);
    number_of_thread = started.number;
    started.body();
    return nullptr;
  }
};

/// Runs each of these in a thread of its own, and returns when all have ended.
template <class... Bodies>
void at_once(Bodies... bodies) {
  auto number = std::uint32_t{0};
  const auto start = [&](auto& body) {
    using started = started_thread<std::remove_reference_t<decltype(body)>>;
    return long{__VERIFIER_thread_create(nullptr, started::run, new started{body, ++number})};
  };
  const long threads[] = {start(bodies)...};
  for (const auto thread : threads) {
    __VERIFIER_thread_join(thread);
  }
}

struct locking : basic_lock_free<atomic> {};

}  // namespace pagedkv::model_check

template <>
struct pagedkv::thread_index_of<pagedkv::model_check::locking> {
  using type = model_check::thread_numbers;
};

// The model checker has `operator new(std::size_t)` and `operator delete(void*)`.
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept { return ::operator new(bytes); }
void* operator new[](std::size_t bytes) { return ::operator new(bytes); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return __VERIFIER_malloc_aligned(static_cast<std::size_t>(alignment), bytes);
}
void* operator new[](std::size_t bytes, std::align_val_t alignment) { return ::operator new(bytes, alignment); }
void* operator new(std::size_t bytes, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  return ::operator new(bytes, alignment);
}
void operator delete(void* memory, std::size_t) noexcept { ::operator delete(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { ::operator delete(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { ::operator delete(memory); }
void operator delete[](void* memory) noexcept { ::operator delete(memory); }
void operator delete[](void* memory, std::size_t) noexcept { ::operator delete(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { ::operator delete(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { ::operator delete(memory); }
