#pragma once

#include <concepts>
#include <memory>
#include <type_traits>

namespace pagedkv::host {

/// Threads that a caller lends to an operation.
///
/// | requirement   | meaning                                                                                               |
/// |---------------|-------------------------------------------------------------------------------------------------------|
/// | `p.size()`    | how many calls can run at once                                                                        |
/// | `p.run(n, f)` | calls `f(0)` to `f(n - 1)`, once each, on any threads; returns when all have returned; throws nothing |
template <class P>
concept worker_pool = requires(P& p, void (&call)(int)) {
  { p.size() } -> std::convertible_to<int>;
  p.run(1, call);
};

/// A worker pool of any type, or the calling thread alone. Does not own the pool, which outlives every use.
class workers {
 public:
  constexpr workers() = default;

  template <worker_pool Pool>
    requires(!std::same_as<std::remove_const_t<Pool>, workers>)
  constexpr workers(Pool& pool) noexcept  // NOLINT(google-explicit-constructor): a pool is meant to be passed as it is
      : pool_(std::addressof(pool)), operations_(&operations_on<Pool>) {}

  /// How many calls can run at once: 1 without a pool.
  [[nodiscard]] int size() const { return pool_ == nullptr ? 1 : operations_->size(pool_); }

  /// See `run` in `worker_pool`'s table.
  template <class Call>
  void run(int n, Call&& call) const {
    if (pool_ != nullptr && n > 1) {
      auto* const constant_or_not = const_cast<void*>(static_cast<const void*>(std::addressof(call)));
      operations_->run(pool_, n, constant_or_not, [](void* context, int i) {
        (*static_cast<std::remove_reference_t<Call>*>(context))(i);
      });
      return;
    }
    for (auto i = 0; i < n; ++i) {
      call(i);
    }
  }

 private:
  using invocation = void (*)(void* context, int i);

  struct operations {
    int (*size)(void* pool);
    void (*run)(void* pool, int n, void* context, invocation invoke);
  };

  template <class Pool>
  static int size_of(void* pool) {
    return static_cast<int>(static_cast<Pool*>(pool)->size());
  }

  template <class Pool>
  static void run_on(void* pool, int n, void* context, invocation invoke) {
    static_cast<Pool*>(pool)->run(n, [=](int i) { invoke(context, i); });
  }

  template <class Pool>
  static constexpr auto operations_on = operations{&size_of<Pool>, &run_on<Pool>};

  // Two words, so that an append passes its stream in registers.
  void* pool_ = nullptr;
  const operations* operations_ = nullptr;
};

}  // namespace pagedkv::host
