#pragma once

#include <pagedkv/policy/axis.hpp>
#include <pagedkv/policy/locking/lock_free.hpp>
#include <pagedkv/policy/locking/rw_lock.hpp>
#include <pagedkv/policy/locking/sharded_mutex.hpp>
#include <pagedkv/policy/locking/single_thread.hpp>

namespace pagedkv {

/// Every locking policy, once: for programs whose users choose one, and for what runs over all of them.
using all_lockings = policy_list<single_thread, rw_lock, sharded_mutex, lock_free>;

}  // namespace pagedkv
