#pragma once

#include <pagedkv/policy/axis.hpp>
#include <pagedkv/policy/hash/xxh3_hash.hpp>

namespace pagedkv {

/// Every hash, once: for programs whose users choose one, and for what runs over all of them.
using all_hashes = policy_list<xxh3_hash>;

}  // namespace pagedkv
