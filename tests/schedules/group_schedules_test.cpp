#include "../support/check_schedules.hpp"
#include "../support/scheduled_policies.hpp"
#include "../support/scheduler.hpp"
#include "../support/tokens.hpp"

#include <pagedkv/pagedkv.hpp>

#include <catch2/catch_test_macros.hpp>

#include <array>
#include <cstdint>

namespace {

using namespace pagedkv;
using namespace pagedkv::testing;
using pagedkv::test::numbered;

template <class Locking>
using cache_of = group_cache<float32, Locking, lru>;
using cache_type = cache_of<scheduled_sharded_mutex>;

cache_config small(std::int32_t num_blocks = 8) {
  auto config = cache_config{};
  config.groups = group_list{group_config{.key_dim = 1, .value_dim = 1}};
  config.block_size = 2;
  config.num_blocks = num_blocks;
  config.max_sequences = 4;
  config.hash_seed = 1;
  return config;
}

/// One sequence writes its last slot, which is published, while another request gets a hit on it and is invalidated.
void append_beside_a_hit(execution& e) {
  auto cache = cache_type{small()};
  const auto num_tokens = 2 * cache.plan().groups[0].block_size;
  const auto prompt = numbered(num_tokens);
  const auto first = cache.create_sequence(prompt).value().id;
  cache.commit(first, num_tokens).value();
  cache.truncate(first, num_tokens - 1).value();
  auto second = admission{};
  e.spawn([&] { cache.append(first, token{-1}).value(); });
  e.spawn([&] {
    auto longer = prompt;
    longer.push_back(0);
    second = cache.create_sequence(longer).value();
    cache.invalidate_prefix(longer);
  });
  e.run();
  if (!e.failure().empty()) {
    return;
  }
  auto tables = std::array<std::array<block_id, 3>, 2>{};
  cache.block_table(first, tables[0]).value();
  cache.block_table(second.id, tables[1]).value();
  e.expect(second.num_cached_tokens < num_tokens || tables[0][1] != tables[1][1],
           "a token was appended in a block that a hit shares");
  expect_sound(e, cache);
}

/// Two sequences that share their last block write its next slot: the first one copies, the other has it alone.
template <class Locking>
void appends_to_a_shared_block(execution& e) {
  auto cache = cache_of<Locking>{small()};
  const auto num_tokens = cache.plan().groups[0].block_size - 1;
  const auto first = cache.create_sequence(numbered(num_tokens)).value().id;
  cache.commit(first, num_tokens).value();
  const auto second = cache.fork(first).value();
  for (const auto id : {first, second}) {
    e.spawn([&, id] { e.expect(cache.append(id, token{7}).has_value(), "an append is refused though blocks are free"); });
  }
  e.run();
  e.expect(cache.statistics().copies == 1, "a block that two sequences share was not copied once");
  expect_sound(e, cache);
}

/// Two sequences grow, and one block is left.
template <class Locking>
void appends_take_the_last_block(execution& e) {
  auto cache = cache_of<Locking>{small(3)};
  const auto num_tokens = cache.plan().groups[0].block_size;
  const auto ids = std::array{cache.create_sequence(numbered(num_tokens)).value().id,
                              cache.create_sequence(numbered(num_tokens, 100)).value().id};
  auto num_done = 0;
  for (const auto id : ids) {
    e.spawn([&, id] {
      const auto done = cache.append(id, token{7});
      e.expect(done || done.error().code == error_code::capacity_exhausted, "refused for another reason");
      num_done += done.has_value();
    });
  }
  e.run();
  e.expect(num_done == 1, "one block was not given to one sequence");
  expect_sound(e, cache);
}

/// Two sequences grow into blocks that others left: each evicts the deepest one of a chain.
template <class Locking>
void appends_evict(execution& e) {
  auto cache = cache_of<Locking>{small(6)};
  const auto num_tokens = cache.plan().groups[0].block_size;
  const auto left = cache.create_sequence(numbered(4 * num_tokens, 200)).value().id;
  cache.commit(left, 4 * num_tokens).value();
  cache.release(left).value();
  const auto ids = std::array{cache.create_sequence(numbered(num_tokens)).value().id,
                              cache.create_sequence(numbered(num_tokens, 100)).value().id};
  for (const auto id : ids) {
    e.spawn([&, id] { e.expect(cache.append(id, token{7}).has_value(), "an append is refused though blocks are cached"); });
  }
  e.run();
  e.expect(cache.statistics().evictions == 2, "two appends did not evict two blocks");
  e.expect(cache.find_prefix(numbered(4 * num_tokens, 200)) == 2 * num_tokens, "a chain was not evicted from its end");
  expect_sound(e, cache);
}

}  // namespace

TEST_CASE("sequences with groups grow beside each other under every schedule", "[group_cache][scheduler]") {
  for (const auto& body : {scenario{appends_to_a_shared_block<scheduled_sharded_mutex>},
                           scenario{appends_take_the_last_block<scheduled_sharded_mutex>},
                           scenario{appends_evict<scheduled_sharded_mutex>}}) {
    check_complete(explorer{{.preemptions = 1}}.exhaustive(body));
  }
}

TEST_CASE("nodes without their mutex are caught when sequences grow", "[group_cache][scheduler]") {
  auto explored = explorer{{.preemptions = 1}};
  CHECK_FALSE(explored.exhaustive(appends_to_a_shared_block<without_nodes_mutex>).failure.empty());
}

TEST_CASE("an append writes no slot that a hit found, whatever is invalidated meanwhile", "[group_cache][scheduler]") {
  auto explored = explorer{{.preemptions = 2, .max_steps = 50'000}};
  check_complete(explored.exhaustive(append_beside_a_hit));
}
