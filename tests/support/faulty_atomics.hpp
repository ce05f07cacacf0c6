#pragma once

#include <atomic>
#include <cstdint>

namespace pagedkv::testing {

/// The accesses from which `no_single_order` removes the order.
enum class access { load, store, exchange, compare_exchange, fetch_add, fetch_sub, fetch_or, fetch_and };

/// Atomics that lack one guarantee, for every component built from them, over atomics `Base` that have all.
template <template <class> class Base>
struct faulty {
  /// Words of 64 bits keep only some bits of their upper half, where components have tags and counts.
  template <class T, unsigned TagBits>
  class short_tagged : public Base<T> {
    using base = Base<T>;

    static T shortened(T value) noexcept {
      if constexpr (sizeof(T) == 8) {
        return static_cast<T>(value & ((std::uint64_t{1} << (32 + TagBits)) - 1));
      } else {
        return value;
      }
    }

   public:
    short_tagged() noexcept = default;
    short_tagged(T value) noexcept : base(shortened(value)) {}

    void store(T value, std::memory_order order = std::memory_order_seq_cst) noexcept {
      base::store(shortened(value), order);
    }

    bool compare_exchange_weak(T& expected, T desired, std::memory_order success = std::memory_order_seq_cst,
                               std::memory_order failure = std::memory_order_seq_cst) noexcept {
      return base::compare_exchange_weak(expected, shortened(desired), success, failure);
    }

    bool compare_exchange_strong(T& expected, T desired, std::memory_order success = std::memory_order_seq_cst,
                                 std::memory_order failure = std::memory_order_seq_cst) noexcept {
      return base::compare_exchange_strong(expected, shortened(desired), success, failure);
    }
  };

  template <class T>
  class untagged : public short_tagged<T, 0> {
   public:
    using short_tagged<T, 0>::short_tagged;
  };

  /// As many bits as Boost.Lockfree has.
  template <class T>
  class tagged_16 : public short_tagged<T, 16> {
   public:
    using short_tagged<T, 16>::short_tagged;
  };

  /// A compare-and-swap is a load and then a store.
  template <class T>
  class load_then_store : public Base<T> {
    using base = Base<T>;

   public:
    using base::base;

    bool compare_exchange_strong(T& expected, T desired, std::memory_order success = std::memory_order_seq_cst,
                                 std::memory_order failure = std::memory_order_seq_cst) noexcept {
      const auto seen = base::load(failure);
      if (seen != expected) {
        expected = seen;
        return false;
      }
      base::store(desired, success);
      return true;
    }

    bool compare_exchange_weak(T& expected, T desired, std::memory_order success = std::memory_order_seq_cst,
                               std::memory_order failure = std::memory_order_seq_cst) noexcept {
      return compare_exchange_strong(expected, desired, success, failure);
    }
  };

  /// An exchange is a load and then a store.
  template <class T>
  class load_then_store_exchange : public Base<T> {
    using base = Base<T>;

   public:
    using base::base;

    T exchange(T value, std::memory_order order = std::memory_order_seq_cst) noexcept {
      const auto before = base::load(order);
      base::store(value, order);
      return before;
    }
  };

  /// So is a fetch-or.
  template <class T>
  class load_then_store_or : public Base<T> {
    using base = Base<T>;

   public:
    using base::base;

    T fetch_or(T value, std::memory_order order = std::memory_order_seq_cst) noexcept {
      const auto before = base::load(order);
      base::store(before | value, order);
      return before;
    }
  };

  /// Nothing is released.
  template <class T>
  class unreleased : public Base<T> {
    using base = Base<T>;

    static std::memory_order weaker(std::memory_order order) noexcept {
      const auto releases_only = order == std::memory_order_release || order == std::memory_order_relaxed;
      return releases_only ? std::memory_order_relaxed : std::memory_order_acquire;
    }

   public:
    using base::base;

    void store(T value, std::memory_order = std::memory_order_seq_cst) noexcept {
      base::store(value, std::memory_order_relaxed);
    }
    T exchange(T value, std::memory_order order = std::memory_order_seq_cst) noexcept {
      return base::exchange(value, weaker(order));
    }
    T fetch_or(T value, std::memory_order order = std::memory_order_seq_cst) noexcept {
      return base::fetch_or(value, weaker(order));
    }
    T fetch_and(T value, std::memory_order order = std::memory_order_seq_cst) noexcept {
      return base::fetch_and(value, weaker(order));
    }
    T fetch_add(T value, std::memory_order order = std::memory_order_seq_cst) noexcept {
      return base::fetch_add(value, weaker(order));
    }
    T fetch_sub(T value, std::memory_order order = std::memory_order_seq_cst) noexcept {
      return base::fetch_sub(value, weaker(order));
    }

    bool compare_exchange_weak(T& expected, T desired, std::memory_order success = std::memory_order_seq_cst,
                               std::memory_order failure = std::memory_order_seq_cst) noexcept {
      return base::compare_exchange_weak(expected, desired, weaker(success), failure);
    }

    bool compare_exchange_strong(T& expected, T desired, std::memory_order success = std::memory_order_seq_cst,
                                 std::memory_order failure = std::memory_order_seq_cst) noexcept {
      return base::compare_exchange_strong(expected, desired, weaker(success), failure);
    }
  };

  /// Sequentially consistent accesses of these kinds, or of all kinds, only acquire and release: other threads may see
  /// them in another order. `wait` is unchanged, because its order does not determine when a thread sleeps.
  template <class T, access... Kinds>
  class no_single_order : public Base<T> {
    using base = Base<T>;

    template <access Kind>
    static std::memory_order weaker(std::memory_order order) noexcept {
      const auto affected = sizeof...(Kinds) == 0 || ((Kind == Kinds) || ...);
      if (!affected || order != std::memory_order_seq_cst) {
        return order;
      }
      return Kind == access::load    ? std::memory_order_acquire
             : Kind == access::store ? std::memory_order_release
                                     : std::memory_order_acq_rel;
    }

   public:
    using base::base;

    T load(std::memory_order order = std::memory_order_seq_cst) const noexcept {
      return base::load(weaker<access::load>(order));
    }
    void store(T value, std::memory_order order = std::memory_order_seq_cst) noexcept {
      base::store(value, weaker<access::store>(order));
    }
    T exchange(T value, std::memory_order order = std::memory_order_seq_cst) noexcept {
      return base::exchange(value, weaker<access::exchange>(order));
    }
    T fetch_add(T value, std::memory_order order = std::memory_order_seq_cst) noexcept {
      return base::fetch_add(value, weaker<access::fetch_add>(order));
    }
    T fetch_sub(T value, std::memory_order order = std::memory_order_seq_cst) noexcept {
      return base::fetch_sub(value, weaker<access::fetch_sub>(order));
    }
    T fetch_or(T value, std::memory_order order = std::memory_order_seq_cst) noexcept {
      return base::fetch_or(value, weaker<access::fetch_or>(order));
    }
    T fetch_and(T value, std::memory_order order = std::memory_order_seq_cst) noexcept {
      return base::fetch_and(value, weaker<access::fetch_and>(order));
    }

    bool compare_exchange_weak(T& expected, T desired, std::memory_order success = std::memory_order_seq_cst,
                               std::memory_order failure = std::memory_order_seq_cst) noexcept {
      return base::compare_exchange_weak(expected, desired, weaker<access::compare_exchange>(success),
                                         weaker<access::load>(failure));
    }

    bool compare_exchange_strong(T& expected, T desired, std::memory_order success = std::memory_order_seq_cst,
                                 std::memory_order failure = std::memory_order_seq_cst) noexcept {
      return base::compare_exchange_strong(expected, desired, weaker<access::compare_exchange>(success),
                                           weaker<access::load>(failure));
    }
  };

  /// An addition releases nothing.
  template <class T>
  class unreleased_addition : public Base<T> {
    using base = Base<T>;

   public:
    using base::base;

    T fetch_add(T value, std::memory_order = std::memory_order_seq_cst) noexcept {
      return base::fetch_add(value, std::memory_order_acquire);
    }
  };

  /// An exchange releases nothing.
  template <class T>
  class unreleased_exchange : public Base<T> {
    using base = Base<T>;

   public:
    using base::base;

    T exchange(T value, std::memory_order = std::memory_order_seq_cst) noexcept {
      return base::exchange(value, std::memory_order_acquire);
    }
  };
};

}  // namespace pagedkv::testing
