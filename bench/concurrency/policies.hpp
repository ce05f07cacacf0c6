#pragma once

#include "../support/over_policies.hpp"
#include "scoreboard.hpp"

#include <pagedkv/pagedkv.hpp>
#include <pagedkv/policy/eviction/clock_sweep.hpp>
#include <pagedkv/policy/locking/all.hpp>

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <numeric>
#include <shared_mutex>
#include <string_view>
#include <type_traits>
#include <vector>

namespace pagedkv::bench {

/// The same eviction policy under every locking policy, so that only locking differs.
template <locking Locking>
using cache_under = kv_cache<float32, Locking, clock_sweep>;

/// Standard mutexes to compare with `fair_shared_mutex`: one that starves writers, and one without shared locking.
struct rw_lock_std_shared_mutex : basic_rw_lock<std::shared_mutex> {
  static constexpr std::string_view name = "rw_lock_std_shared_mutex";
};

class mutex_for_all : public std::mutex {
 public:
  void lock_shared() { lock(); }
  void unlock_shared() { unlock(); }
};

struct rw_lock_std_mutex : basic_rw_lock<mutex_for_all> {
  static constexpr std::string_view name = "rw_lock_std_mutex";
};

inline constexpr auto block_size = 16;

[[nodiscard]] inline cache_config config_of(std::int32_t num_blocks) {
  auto config = cache_config{};
  config.head_dim = 1;
  config.block_size = block_size;
  config.num_blocks = num_blocks;
  config.max_sequences = 1024;
  config.hash_seed = 1;
  return config;
}

[[nodiscard]] inline std::vector<token> text(std::size_t num_tokens, token first) {
  auto tokens = std::vector<token>(num_tokens);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

/// Peers come first, so that the policies are compared with them.
using compared_lockings = decltype(policy_list<rw_lock_std_mutex, rw_lock_std_shared_mutex>{} + all_lockings{});

template <locking Locking>
inline constexpr bool for_one_thread =
    !Locking::family::concurrent && std::is_same_v<typename Locking::cache_mutex, no_mutex>;

template <class... Lockings>
auto those_of_threads(policy_list<Lockings...>) {
  return (policy_list<>{} + ... + std::conditional_t<for_one_thread<Lockings>, policy_list<>, policy_list<Lockings>>{});
}
using lockings_of_threads = decltype(those_of_threads(all_lockings{}));

inline constexpr auto all_threads = []<class Locking>(std::type_identity<Locking>,
                                                      benchmark::internal::Benchmark* benchmark) {
  if constexpr (for_one_thread<Locking>) {
    benchmark->UseRealTime();
  } else {
    one_to_sixteen_threads(benchmark);
  }
};

}  // namespace pagedkv::bench

/// Registers a benchmark, a function template over the locking policy, for all policies and for the compared ones.
#define PAGEDKV_FOR_ALL_POLICIES(function)                                                                \
  [[maybe_unused]] static const bool function##_is_registered = pagedkv::bench::register_over(            \
      pagedkv::bench::compared_lockings{}, #function,                                                     \
      []<class Policy>(std::type_identity<Policy>, benchmark::State& state) { function<Policy>(state); }, \
      pagedkv::bench::all_threads)
