#pragma once

#include <pagedkv/policy/axis.hpp>
#include <pagedkv/policy/eviction/arc.hpp>
#include <pagedkv/policy/eviction/clock_sweep.hpp>
#include <pagedkv/policy/eviction/concept.hpp>
#include <pagedkv/policy/eviction/fifo.hpp>
#include <pagedkv/policy/eviction/hit_density.hpp>
#include <pagedkv/policy/eviction/lfu.hpp>
#include <pagedkv/policy/eviction/lru.hpp>
#include <pagedkv/policy/eviction/priority.hpp>
#include <pagedkv/policy/eviction/s3_fifo.hpp>
#include <pagedkv/policy/eviction/sieve.hpp>
#include <pagedkv/policy/eviction/slru.hpp>
#include <pagedkv/policy/eviction/tiny_lfu.hpp>

namespace pagedkv {

/// Every eviction policy, once: for programs whose users choose one, and for tests and benchmarks that run over all.
using all_evictions =
    policy_list<lru, fifo, no_eviction, clock_sweep, sieve, lfu, slru, s3_fifo, arc, tiny_lfu, priority, hit_density>;

}  // namespace pagedkv
