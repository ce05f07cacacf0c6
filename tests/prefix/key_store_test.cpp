#include "../support/allocation_failure.hpp"
#include "../support/cache_fixture.hpp"
#include "../support/on_threads.hpp"

#include <pagedkv/prefix/token_store.hpp>

#include <algorithm>
#include <array>
#include <atomic>

using namespace pagedkv;
using namespace pagedkv::test;

namespace {

template <class T>
using atomic = std::atomic<T>;

constexpr auto one = std::array{prefix_key{3, {1, 2}}};
constexpr auto two = std::array{prefix_key{8, {3, 4}}, prefix_key{9, {5, 6}}};

}  // namespace

TEST_CASE("a key store holds the keys of each block, and no memory without keys", "[key_store]") {
  auto store = key_store<atomic>(4);
  CHECK(store.metadata_bytes() == 0);
  CHECK(store.keys(block_id{1}).empty());
  store.clear(block_id{1});
  store.rename(block_id{1}, block_id{0});
  REQUIRE(store.assign(block_id{1}, one));
  REQUIRE(store.assign(block_id{3}, two));
  CHECK(store.metadata_bytes() > 0);
  CHECK(std::ranges::equal(store.keys(block_id{1}), one));
  store.rename(block_id{3}, block_id{0});
  CHECK(std::ranges::equal(store.keys(block_id{0}), two));
  CHECK(store.keys(block_id{3}).empty());
  store.clear(block_id{1});
  CHECK(store.keys(block_id{1}).empty());
}

TEST_CASE("several threads may be the first to assign keys", "[key_store]") {
  auto store = key_store<atomic>(64);
  on_threads(std::size_t{4}, [&](std::size_t t) {
    for (auto i = t; i < 64; i += 4) {
      static_cast<void>(store.assign(to_block(i), one));
    }
  });
  for (auto i = std::size_t{0}; i < 64; ++i) {
    CHECK(std::ranges::equal(store.keys(to_block(i)), one));
  }
}

TEST_CASE("an operation that finds no memory for keys changes nothing", "[key_store][faults]") {
  const auto prompt = text(0, 12);
  const auto asked = text(0, 13);  // one token is left to compute
  const auto keys = std::array{prefix_key{1, {1, 1}}, prefix_key{9, {2, 2}}};
  for (auto calls = 0;; ++calls) {
    CAPTURE(calls);
    auto cache = kv_cache<>{small_cache(8)};
    fail_allocations_after(calls);
    const auto made = cache.create_sequence({prompt, keys});
    const auto committed = made ? cache.commit(made->id, 12) : result<void>{made.error()};
    fail_allocations_after(-1);
    check_sound(cache);
    if (!made) {
      CHECK(made.error().code == error_code::out_of_memory);
      CHECK(cache.statistics().blocks.in_use == 0);
      continue;
    }
    if (committed) {
      CHECK(cache.find_prefix({asked, keys}) == 12);
      release_all(cache, {made->id});
      return;  // from here on, there is memory for everything
    }
    CHECK(committed.error().code == error_code::out_of_memory);
    CHECK(cache.describe(made->id)->num_computed_tokens == 0);
    CHECK(cache.find_prefix({asked, keys}) == 0);
    REQUIRE(cache.commit(made->id, 12));
    CHECK(cache.find_prefix({asked, keys}) == 12);
    release_all(cache, {made->id});
  }
}

TEST_CASE("keys of a commit that failed go with their tokens", "[key_store][faults]") {
  const auto keys = std::array{prefix_key{1, {1, 1}}, prefix_key{9, {2, 2}}};
  for (auto calls = 0;; ++calls) {
    CAPTURE(calls);
    auto cache = kv_cache<>{small_cache(8)};
    const auto id = cache.create_sequence({text(0, 12), keys}).value().id;
    fail_allocations_after(calls);
    const auto committed = cache.commit(id, 12);
    fail_allocations_after(-1);
    if (committed) {
      CHECK(calls > 1);
      return;
    }
    REQUIRE(cache.truncate(id, 1));
    REQUIRE(cache.append(id, text(1, 11)));
    REQUIRE(cache.commit(id, 12));
    check_sound(cache);
    CHECK(cache.find_prefix(text(0, 13)) == 12);
    release_all(cache, {id});
  }
}
