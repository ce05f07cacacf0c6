#pragma once

#include <pagedkv/policy/locking/parts/ordered_mutex.hpp>
#include <pagedkv/policy/locking/parts/unsynchronized.hpp>

namespace pagedkv::detail {

/// The mutex of the nodes of groups; an empty one where the cache's mutex keeps threads apart.
template <class Family>
struct nodes_mutex {
  using type = no_mutex;
};
template <class Family>
concept has_nodes_mutex = requires { typename Family::template mutex<lock_rank::group_nodes>; };
template <has_nodes_mutex Family>
struct nodes_mutex<Family> {
  using type = typename Family::template mutex<lock_rank::group_nodes>;
};

}  // namespace pagedkv::detail
