#pragma once

#include <pagedkv/pagedkv.hpp>
#include <pagedkv/policy/eviction/clock_sweep.hpp>
#include <pagedkv/policy/locking/lock_free.hpp>
#include <pagedkv/policy/locking/rw_lock.hpp>
#include <pagedkv/policy/locking/sharded_mutex.hpp>
#include <pagedkv/policy/locking/single_thread.hpp>

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <numeric>
#include <shared_mutex>
#include <string_view>
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

}  // namespace pagedkv::bench

/// Registers a benchmark, a function template over the locking policy, for all policies and for the compared ones.
/// Comparisons depend on the order.
#define PAGEDKV_FOR_ALL_POLICIES(function)                                                                      \
  BENCHMARK(function<pagedkv::single_thread>)->UseRealTime();                                                   \
  BENCHMARK(function<pagedkv::bench::rw_lock_std_mutex>)->Apply(pagedkv::bench::one_to_sixteen_threads);        \
  BENCHMARK(function<pagedkv::bench::rw_lock_std_shared_mutex>)->Apply(pagedkv::bench::one_to_sixteen_threads); \
  BENCHMARK(function<pagedkv::rw_lock>)->Apply(pagedkv::bench::one_to_sixteen_threads);                         \
  BENCHMARK(function<pagedkv::sharded_mutex>)->Apply(pagedkv::bench::one_to_sixteen_threads);                   \
  BENCHMARK(function<pagedkv::lock_free>)->Apply(pagedkv::bench::one_to_sixteen_threads)
