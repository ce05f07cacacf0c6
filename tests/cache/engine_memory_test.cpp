#include "../support/allocation_count.hpp"
#include "../support/cache_fixture.hpp"

#include <pagedkv/backend/copy_list.hpp>
#include <pagedkv/policy/allocator/caller_memory.hpp>
#include <pagedkv/policy/eviction/clock_sweep.hpp>
#include <pagedkv/policy/layout/all.hpp>
#include <pagedkv/policy/locking/lock_free.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>
#include <vector>

using namespace pagedkv;
using namespace pagedkv::test;

namespace {

using pairs = std::vector<block_pair>;

/// Counts the blocks to copy, where an engine would enqueue its own kernel.
struct own_copies {
  struct stream_type {
    int* num_copied = nullptr;
  };
  using default_allocator = no_memory;

  static constexpr bool uses_storage = false;
  static constexpr std::string_view name = "own_copies";

  result<void> synchronize(stream_type) noexcept { return {}; }
  result<void> copy_blocks(const block_storage_view&, std::span<const block_pair> blocks, stream_type stream) noexcept {
    *stream.num_copied += static_cast<int>(blocks.size());
    return {};
  }
  result<void> move_blocks(const block_storage_view& view, std::span<const block_pair> blocks,
                           stream_type stream) noexcept {
    return copy_blocks(view, blocks, stream);
  }
};

}  // namespace

TEST_CASE("a cache without memory lists the block that an append would copy", "[cache][engine_memory]") {
  auto cache = kv_cache<copy_list>{small_cache(8)};
  STATIC_CHECK(!decltype(cache)::has_memory);
  STATIC_CHECK(std::is_same_v<decltype(cache), kv_cache<no_memory, copy_list>>);
  CHECK(cache.memory().payload == 0);
  auto copies = pairs{};
  const auto first = create_committed(cache, text(0, 6));
  const auto second = cache.fork(first).value();
  const auto shared = table_of(cache, first)[1];
  REQUIRE(cache.append(second, token{7}, copies));
  REQUIRE(copies.size() == 1);
  CHECK(copies[0] == block_pair{static_cast<std::int32_t>(shared), static_cast<std::int32_t>(table_of(cache, second)[1])});
  REQUIRE(cache.append(second, token{8}, copies));
  REQUIRE(cache.append(first, text(7, 2), copies));
  CHECK(copies.size() == 1);
  check_sound(cache);
  release_all(cache, {first, second});
}

TEST_CASE("a cache without memory lists the moves of a compaction", "[cache][engine_memory]") {
  auto cache = kv_cache<copy_list>{small_cache(8)};
  const auto first = cache.create_sequence(text(0, 8)).value().id;
  const auto second = cache.create_sequence(text(100, 8)).value().id;
  REQUIRE(cache.release(first));
  auto copies = pairs{{7, 3}};
  const auto moves = cache.compact(copies).value();
  REQUIRE(moves.size() == 2);
  REQUIRE(copies.size() == 3);
  CHECK(std::equal(moves.begin(), moves.end(), copies.begin() + 1));
  release_all(cache, {second});
}

TEST_CASE("a list that cannot grow refuses its operation, which then changes nothing", "[cache][engine_memory]") {
  auto cache = kv_cache<copy_list>{small_cache(8)};
  const auto first = create_committed(cache, text(0, 6));
  const auto second = cache.fork(first).value();
  const auto before = cache.statistics().blocks;
  const auto table = table_of(cache, second);
  auto copies = pairs{};
  auto num_failures = 0L;
  const auto refuses_until_there_is_memory = [&](auto&& operation) {
    for (auto n = 1L;; ++n) {
      fail_allocation(n);
      const auto outcome = operation();
      fail_allocation(0);
      if (outcome) {
        return;
      }
      ++num_failures;
      CHECK(outcome.error().code == error_code::out_of_memory);
      CHECK(copies.empty());
      CHECK(cache.statistics().blocks == before);
      CHECK(table_of(cache, second) == table);
      check_sound(cache);
    }
  };
  refuses_until_there_is_memory([&] { return cache.append(second, token{7}, copies); });
  CHECK(copies.size() == 1);
  REQUIRE(num_failures > 0);
  release_all(cache, {first, second});
}

TEST_CASE("prefixes are shared without memory, also under a tracker", "[cache][engine_memory]") {
  auto cache = kv_cache<copy_list, lock_free, clock_sweep>{small_cache(8)};
  auto tracker = request_tracker{cache};
  auto copies = pairs{};
  const auto first = tracker.submit(text(0, 9), {}, copies).value();
  REQUIRE(cache.commit(first.sequence, 9));
  const auto second = tracker.submit(text(0, 9), {}, copies).value();
  CHECK(second.num_cached_tokens == 8);
  const auto sample = tracker.fork(first.id, copies).value();
  REQUIRE(tracker.append(sample.id, token{1}, copies));
  CHECK(copies.size() == 1);
  for (const auto id : {first.id, second.id, sample.id}) {
    REQUIRE(tracker.finish(id));
  }
  check_sound(cache);
}

TEST_CASE("an engine's backend copies blocks in the engine's memory", "[cache][engine_memory]") {
  auto cache = kv_cache<own_copies>{small_cache(8)};
  auto num_copied = 0;
  const auto first = create_committed(cache, text(0, 6));
  const auto second = cache.fork(first).value();
  REQUIRE(cache.append(second, token{7}, {&num_copied}));
  CHECK(num_copied == 1);
  release_all(cache, {first, second});
}

TEST_CASE("a cache lies in the caller's memory", "[cache][engine_memory]") {
  const auto config = small_cache(8);
  const auto bytes = static_cast<std::size_t>(plan_storage<nhd_layer_major>(config, size_of_element<float32>)->bytes);
  using cache_type = kv_cache<float32, caller_memory>;
  auto memory = std::vector<std::byte>(bytes + block_alignment);
  {
    auto cache = cache_type{config, caller_memory{memory}};
    CHECK(cache.view().base >= memory.data());
    CHECK(cache.view().base + bytes <= memory.data() + memory.size());
  }
  const auto refused = cache_type::create(config, caller_memory{std::span{memory}.first(bytes - 1)});
  CHECK(refused.error().code == error_code::out_of_memory);
}
