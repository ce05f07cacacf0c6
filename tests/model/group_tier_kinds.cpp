#include "tier_kinds.hpp"

#include <pagedkv/policy/eviction/sieve.hpp>
#include <pagedkv/policy/locking/sharded_mutex.hpp>

namespace pagedkv::test {

template <>
std::vector<cache_kind> kinds_with_tiers<layer_groups>() {
  auto kinds = std::vector<cache_kind>{};
  add_kinds_with_tiers<layer_groups, single_thread, lru, sieve>(kinds);
  add_kinds_with_tiers<layer_groups, rw_lock, sieve, lru>(kinds);
  add_kinds_with_tiers<layer_groups, sharded_mutex, lru, lru>(kinds);
  return kinds;
}

}  // namespace pagedkv::test
