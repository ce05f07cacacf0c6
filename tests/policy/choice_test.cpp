// Policies are given in any order, and only where they differ from the defaults.

#include <pagedkv/events/event_queues.hpp>
#include <pagedkv/pagedkv.hpp>
#include <pagedkv/policy/allocator/host_allocator.hpp>
#include <pagedkv/policy/allocator/page_allocators.hpp>
#include <pagedkv/policy/eviction/clock_sweep.hpp>
#include <pagedkv/policy/free_list/all.hpp>
#include <pagedkv/policy/layout/all.hpp>
#include <pagedkv/policy/locking/lock_free.hpp>

#include <catch2/catch_test_macros.hpp>

#include <string_view>
#include <type_traits>

namespace {

using namespace pagedkv;

template <class Type>
constexpr std::string_view name_of() {
  const auto text = std::string_view{__PRETTY_FUNCTION__};
  const auto start = text.find("Type = ") + 7;
  return text.substr(start, text.find_first_of(";]", start) - start);
}

struct own_hash : xxh3_hash {};

/// Needs storage in huge pages.
struct own_backend : host_backend {
  using default_allocator = huge_page_allocator;
};

}  // namespace

TEST_CASE("the order of policies does not matter", "[choice]") {
  STATIC_CHECK(std::is_same_v<kv_cache<lock_free, int8>, kv_cache<int8, lock_free>>);
  STATIC_CHECK(std::is_same_v<kv_cache<own_hash, event_queues, hnd_block_major, clock_sweep, lock_free, bfloat16>,
                              kv_cache<lock_free, hnd_block_major, bfloat16, own_hash, clock_sweep, event_queues>>);
}

TEST_CASE("a default may be given, too", "[choice]") {
  STATIC_CHECK(std::is_same_v<kv_cache<float16, lru>, kv_cache<>>);
  STATIC_CHECK(
      std::is_same_v<
          kv_cache<any_free_block, no_events, xxh3_hash, nhd_layer_major, host_backend, host_allocator, lru,
                   single_thread, float16>,
          kv_cache<>>);
  STATIC_CHECK(std::is_same_v<kv_cache<single_thread, int8>, kv_cache<int8>>);
}

TEST_CASE("each policy has its role, and the defaults all others", "[choice]") {
  using cache = kv_cache<hnd_block_major, lock_free, own_hash, int8, event_queues, clock_sweep>;
  STATIC_CHECK(std::is_same_v<cache::element_type, int8>);
  STATIC_CHECK(std::is_same_v<cache::locking_type, lock_free>);
  STATIC_CHECK(std::is_same_v<cache::eviction_type, clock_sweep>);
  STATIC_CHECK(std::is_same_v<cache::allocator_type, host_allocator>);
  STATIC_CHECK(std::is_same_v<cache::backend_type, host_backend>);
  STATIC_CHECK(std::is_same_v<cache::layout_type, hnd_block_major>);
  STATIC_CHECK(std::is_same_v<cache::hash_type, own_hash>);
  STATIC_CHECK(std::is_same_v<cache::events_type, event_queues>);
  STATIC_CHECK(std::is_same_v<cache::free_list_type, any_free_block>);
  STATIC_CHECK(std::is_same_v<kv_cache<contiguous_runs, rw_lock>::free_list_type, contiguous_runs>);
}

TEST_CASE("a backend may choose the default allocator", "[choice]") {
  STATIC_CHECK(std::is_same_v<kv_cache<own_backend>::allocator_type, huge_page_allocator>);
  STATIC_CHECK(std::is_same_v<kv_cache<own_backend>, kv_cache<huge_page_allocator, own_backend>>);
  STATIC_CHECK(std::is_same_v<kv_cache<own_backend, host_allocator>::allocator_type, host_allocator>);
}

TEST_CASE("a cache's type names only what differs from the defaults", "[choice]") {
  CHECK(name_of<kv_cache<float16, lru>>() == "pagedkv::basic_kv_cache<pagedkv::default_policies>");
  CHECK(name_of<kv_cache<clock_sweep, host_backend, lock_free, int8>>() ==
        "pagedkv::basic_kv_cache<pagedkv::default_policies, pagedkv::int8, pagedkv::lock_free, pagedkv::clock_sweep>");
}
