#pragma once

#include <pagedkv/policy/axis.hpp>
#include <pagedkv/policy/free_list/concept.hpp>

#include <string_view>

namespace pagedkv {

/// Takes any free block: the one that costs least under the locking policy.
struct any_free_block {
  static constexpr bool prefers_runs = false;
  static constexpr std::string_view name = "any_free_block";
};

static_assert(free_list_policy<any_free_block>);

/// Takes whole octets, eight neighbouring ids each, as far as an allocation goes: transfers need fewer descriptors.
/// Where no octet is free, evicts the tails of cached chains that complete one: out of turn, but only blocks that have
/// been evictable for long, and only under policies that order by age, such as `lru`. Under others, blocks leave in
/// turn, and fewer octets are whole. For `single_thread` and `rw_lock`. 9 bytes per block.
struct contiguous_runs {
  static constexpr bool prefers_runs = true;
  static constexpr int most_ahead = 20;
  static constexpr int least_age = 50;
  static constexpr std::string_view name = "contiguous_runs";
};

static_assert(free_list_policy<contiguous_runs>);

/// Every free list policy, once: for programs whose users choose one, and for what runs over all of them.
using all_free_lists = policy_list<any_free_block, contiguous_runs>;

}  // namespace pagedkv
