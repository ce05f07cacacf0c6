#pragma once

#include <pagedkv/policy/element/bfloat16.hpp>
#include <pagedkv/policy/element/float16.hpp>
#include <pagedkv/policy/element/float32.hpp>
#include <pagedkv/policy/element/int8.hpp>
#include <pagedkv/policy/eviction/arc.hpp>
#include <pagedkv/policy/eviction/clock_sweep.hpp>
#include <pagedkv/policy/eviction/fifo.hpp>
#include <pagedkv/policy/eviction/hit_density.hpp>
#include <pagedkv/policy/eviction/lfu.hpp>
#include <pagedkv/policy/eviction/lru.hpp>
#include <pagedkv/policy/eviction/no_eviction.hpp>
#include <pagedkv/policy/eviction/priority.hpp>
#include <pagedkv/policy/eviction/s3_fifo.hpp>
#include <pagedkv/policy/eviction/sieve.hpp>
#include <pagedkv/policy/eviction/slru.hpp>
#include <pagedkv/policy/eviction/tiny_lfu.hpp>
#include <pagedkv/policy/locking/lock_free.hpp>
#include <pagedkv/policy/locking/rw_lock.hpp>
#include <pagedkv/policy/locking/sharded_mutex.hpp>
#include <pagedkv/policy/locking/single_thread.hpp>

#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace pagedkv::replay {

template <class... Policies>
struct policy_list {};

// The policies that the command line offers. A locking policy also has its file `engine_<name>.cpp`.
using all_elements = policy_list<float16, bfloat16, float32, int8>;
using all_lockings = policy_list<single_thread, rw_lock<>, sharded_mutex<>, lock_free>;
using all_evictions =
    policy_list<lru, fifo, no_eviction, clock_sweep, sieve, lfu, slru, s3_fifo, arc, tiny_lfu, priority, hit_density>;

template <class... Policies>
[[nodiscard]] std::vector<std::string> names_of(policy_list<Policies...>) {
  return {std::string{Policies::name}...};
}

/// Calls `visit(std::type_identity<Policy>{})` for the policy of this name, which is in the list.
template <class First, class... Rest, class Visit>
auto with_policy(policy_list<First, Rest...>, std::string_view name, Visit&& visit) {
  if constexpr (sizeof...(Rest) != 0) {
    if (First::name != name) {
      return with_policy(policy_list<Rest...>{}, name, visit);
    }
  }
  return visit(std::type_identity<First>{});
}

}  // namespace pagedkv::replay
