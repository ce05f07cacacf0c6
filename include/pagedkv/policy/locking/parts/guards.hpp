#pragma once

namespace pagedkv {

namespace detail {

/// Stands where other kinds of cache hold a mutex.
struct [[nodiscard]] no_guard {
  no_guard() noexcept = default;
  no_guard(const no_guard&) = delete;
  no_guard& operator=(const no_guard&) = delete;
  ~no_guard() {}  // NOLINT(modernize-use-equals-default): a guard is not an unused variable
};

}  // namespace detail

/// Holds a mutex during its own lifetime; costs nothing if the mutex is empty.
template <class Mutex>
class [[nodiscard]] exclusive_guard {
 public:
  explicit exclusive_guard(Mutex& mutex) noexcept : mutex_(mutex) { mutex_.lock(); }
  exclusive_guard(const exclusive_guard&) = delete;
  exclusive_guard& operator=(const exclusive_guard&) = delete;
  ~exclusive_guard() { mutex_.unlock(); }

 private:
  Mutex& mutex_;
};

template <class Mutex>
class [[nodiscard]] shared_guard {
 public:
  explicit shared_guard(Mutex& mutex) noexcept : mutex_(mutex) { mutex_.lock_shared(); }
  shared_guard(const shared_guard&) = delete;
  shared_guard& operator=(const shared_guard&) = delete;
  ~shared_guard() { mutex_.unlock_shared(); }

 private:
  Mutex& mutex_;
};

/// Tries to lock a mutex; waits for it only if the caller is patient.
template <class Mutex>
class [[nodiscard]] eager_guard {
 public:
  eager_guard(Mutex& mutex, bool patient) noexcept : mutex_(mutex) {
    if (patient) {
      mutex_.lock();
    }
    holds_ = patient || mutex_.try_lock();
  }
  eager_guard(const eager_guard&) = delete;
  eager_guard& operator=(const eager_guard&) = delete;
  ~eager_guard() {
    if (holds_) {
      mutex_.unlock();
    }
  }

  [[nodiscard]] bool holds() const noexcept { return holds_; }

 private:
  Mutex& mutex_;
  bool holds_ = false;
};

/// Keeps all other threads out of the cache during its own lifetime, if the mutex can be closed.
template <class Mutex>
class [[nodiscard]] whole_guard {
 public:
  explicit whole_guard(Mutex& mutex) noexcept : mutex_(mutex) {
    if constexpr (requires { mutex_.close(); }) {
      mutex_.close();
    } else {
      mutex_.lock();
    }
  }
  whole_guard(const whole_guard&) = delete;
  whole_guard& operator=(const whole_guard&) = delete;
  ~whole_guard() {
    if constexpr (requires { mutex_.open(); }) {
      mutex_.open();
    } else {
      mutex_.unlock();
    }
  }

 private:
  Mutex& mutex_;
};

}  // namespace pagedkv
