#include "tier_kinds.hpp"

#include <pagedkv/policy/eviction/sieve.hpp>
#include <pagedkv/policy/locking/sharded_mutex.hpp>

namespace pagedkv::test {

template <>
std::vector<cache_kind> kinds_with_tiers<one_group>() {
  auto kinds = std::vector<cache_kind>{};
  add_kinds_with_tiers<one_group, single_thread, lru, sieve>(kinds);
  add_kinds_with_tiers<one_group, rw_lock, sieve, lru>(kinds);
  add_kinds_with_tiers<one_group, basic_sharded_mutex<3>, lru, lru>(kinds);
  return kinds;
}

}  // namespace pagedkv::test
