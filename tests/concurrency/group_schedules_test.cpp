#include "../support/scheduled_policies.hpp"
#include "../support/scheduler.hpp"

#include <pagedkv/pagedkv.hpp>

#include <catch2/catch_test_macros.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

namespace {

using namespace pagedkv;
using namespace pagedkv::testing;

using cache_type = group_cache<float32, scheduled_sharded_mutex, lru>;

cache_config small() {
  auto config = cache_config{};
  config.groups = group_list{group_config{.key_dim = 1, .value_dim = 1}};
  config.block_size = 2;
  config.num_blocks = 8;
  config.max_sequences = 4;
  config.hash_seed = 1;
  return config;
}

/// One sequence writes its last slot, which is published, while another request gets a hit on it and is invalidated.
void append_beside_a_hit(execution& e) {
  auto cache = cache_type{small()};
  const auto num_tokens = 2 * cache.plan().groups[0].block_size;
  auto prompt = std::vector<token>(static_cast<std::size_t>(num_tokens));
  std::iota(prompt.begin(), prompt.end(), 0);
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
  for (const auto& sentence : cache.check_invariants()) {
    e.fail(sentence);
  }
}

}  // namespace

TEST_CASE("an append writes no slot that a hit found, whatever is invalidated meanwhile", "[group_cache][scheduler]") {
  auto explored = explorer{{.preemptions = 2, .max_steps = 50'000}};
  const auto found = explored.exhaustive(append_beside_a_hit);
  INFO(found.failure);
  CAPTURE(found.schedule, found.schedules);
  CHECK(found.failure.empty());
  CHECK(found.complete);
}
