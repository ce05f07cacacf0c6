#include <pagedkv/backend/copy_list.hpp>
#include <pagedkv/pagedkv.hpp>
#include <pagedkv/policy/allocator/caller_memory.hpp>

#include "group_engine.hpp"

#include <catch2/catch_test_macros.hpp>

#include <cstddef>
#include <cstring>
#include <vector>

using namespace pagedkv;
using namespace pagedkv::test;

namespace {

/// An engine's memory for whole blocks, in which it carries out the copies of a list.
struct engine_blocks {
  std::size_t block_bytes;
  std::vector<std::byte> bytes;

  std::byte* at(std::int32_t block) { return bytes.data() + static_cast<std::size_t>(block) * block_bytes; }
  void carry_out(std::vector<block_pair>& list) {
    for (const auto& [from, to] : list) {
      std::memcpy(at(to), at(from), block_bytes);
    }
    list.clear();
  }
};

/// A sequence in both caches.
struct twin_ids {
  sequence_id owner;
  sequence_id guest;
};

/// A cache with memory, and one whose blocks are the engine's: both take the same operations, so blocks have the same
/// ids.
struct twin_caches {
  group_cache<float32> owner;
  group_cache<float32, copy_list> guest;
  engine_blocks blocks;
  std::vector<block_pair> list;

  explicit twin_caches(const cache_config& config)
      : owner(config),
        guest(config),
        blocks{static_cast<std::size_t>(guest.plan().block_bytes),
               std::vector<std::byte>(static_cast<std::size_t>(guest.plan().block_bytes * config.num_blocks))} {
    std::memset(owner.blocks().block(0, 0), 0, blocks.bytes.size());
  }

  twin_ids create(const tokens& prompt) {
    const auto made = owner.create_sequence(prompt).value();
    const auto same = guest.create_sequence(prompt, {}, list).value();
    REQUIRE(made.num_cached_tokens == same.num_cached_tokens);
    return {made.id, same.id};
  }
  void append(twin_ids id, const tokens& more) {
    REQUIRE(owner.append(id.owner, more));
    REQUIRE(guest.append(id.guest, more, list));
  }
  twin_ids fork(twin_ids id) { return {owner.fork(id.owner).value(), guest.fork(id.guest, list).value()}; }

  std::vector<block_id> table(std::size_t group, twin_ids id) {
    auto held = std::vector<block_id>(100);
    auto same = std::vector<block_id>(100);
    held.resize(owner.block_table(id.owner, held, 0, group).value());
    same.resize(guest.block_table(id.guest, same, 0, group).value());
    REQUIRE(held == same);
    return held;
  }
  /// The engine's kernels write the bytes of one sequence's blocks: of its own tokens, or of its state.
  void write_all(twin_ids id, std::byte value) {
    blocks.carry_out(list);
    for (auto g = std::size_t{0}; g < owner.config().groups.size(); ++g) {
      for (const auto block : table(g, id)) {
        auto* own = owner.blocks().block(0, static_cast<std::int64_t>(block));
        std::memset(own, static_cast<int>(value), blocks.block_bytes);
        std::memset(blocks.at(static_cast<std::int32_t>(block)), static_cast<int>(value), blocks.block_bytes);
      }
    }
  }
  void commit(twin_ids id, std::int64_t length) {
    REQUIRE(owner.commit(id.owner, length));
    REQUIRE(guest.commit(id.guest, length, list));
    blocks.carry_out(list);
  }
  void check(twin_ids id) {
    blocks.carry_out(list);
    for (auto g = std::size_t{0}; g < owner.config().groups.size(); ++g) {
      for (const auto block : table(g, id)) {
        const auto* own = owner.blocks().block(0, static_cast<std::int64_t>(block));
        CHECK(std::memcmp(own, blocks.at(static_cast<std::int32_t>(block)), blocks.block_bytes) == 0);
      }
    }
  }
};

}  // namespace

TEST_CASE("groups in an engine's memory get the copies that a cache of its own makes", "[group_cache]") {
  auto caches = twin_caches{config_of({full, window, state}, 100)};
  const auto text = counted(26);
  const auto first = caches.create(text);
  caches.write_all(first, std::byte{1});
  caches.commit(first, caches.owner.next_saved_length(first.owner).value());  // copies the state
  caches.commit(first, 26);
  const auto second = caches.create(text);  // copies a block in part, and the saved state
  CHECK(caches.owner.describe(second.owner)->num_cached_tokens > 0);
  caches.check(second);
  caches.write_all(second, std::byte{2});
  caches.commit(second, 26);
  const auto third = caches.fork(second);  // copies the state
  caches.check(third);
  caches.append(third, counted(3, 70));  // copies the last blocks
  caches.check(third);
  const auto moved = caches.owner.compact().value();
  REQUIRE(caches.guest.compact(caches.list).value() == moved);
  for (const auto id : {first, second, third}) {
    caches.check(id);
    REQUIRE(caches.owner.release(id.owner));
    REQUIRE(caches.guest.release(id.guest));
  }
  CHECK(caches.guest.check_invariants().empty());
  CHECK(caches.guest.memory().payload == 0);
}

TEST_CASE("groups lie in memory that a caller has allocated", "[group_cache]") {
  const auto config = config_of({full, window, state}, 50);
  const auto bytes = group_cache<float32>{config}.memory().payload;
  auto memory = std::vector<std::byte>(static_cast<std::size_t>(bytes) + block_alignment);
  auto* base = memory.data() + (block_alignment - reinterpret_cast<std::uintptr_t>(memory.data()) % block_alignment);
  using lent = group_cache<float32, caller_memory>;
  auto e = engine<lent>{config, caller_memory{{base, static_cast<std::size_t>(bytes)}}};
  CHECK(e.cache.blocks().base == base);
  const auto id = e.create(counted(30)).value();
  e.compute(id);
  e.check(e.fork(id).value());
}

TEST_CASE("a batch tells the new entries of each group's table", "[group_cache]") {
  auto e = engine<group_cache<float32>>{config_of({full, window}, 100)};
  const auto id = e.create(counted(22)).value();
  e.compute(id);
  const auto fork = e.fork(id).value();
  const auto before = std::vector{e.table(0, fork), e.table(1, fork)};
  const auto more = counted(9, 50);
  const auto entry = batch_entry{fork, more};
  auto slots = std::vector<slot>(18);
  auto failure = batch_failure{};
  auto added = std::vector<new_block>(20);
  const auto done = e.cache.append_batch({&entry, 1}, {slots, {&failure, 1}, added}).value();
  auto expected = std::size_t{0};
  for (auto g = std::size_t{0}; g < 2; ++g) {
    const auto after = e.table(g, fork);
    for (auto i = std::size_t{0}; i < after.size(); ++i) {
      if (i >= before[g].size() || after[i] != before[g][i]) {
        REQUIRE(expected < done.num_new_blocks);
        CHECK(added[expected].group == g);
        CHECK(added[expected].index == i);
        CHECK(added[expected].block == after[i]);
        ++expected;
      }
    }
  }
  CHECK(expected > 2);
  CHECK(done.num_new_blocks == expected);
}
