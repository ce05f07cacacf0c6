#include <pagedkv/events/event_queues.hpp>
#include <pagedkv/pagedkv.hpp>

#include "group_engine.hpp"

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

using namespace pagedkv;
using namespace pagedkv::test;

namespace {

using plain = engine<group_cache<float32>>;

/// Computes a prompt in chunks, as an engine does where it does not fit into the pool whole.
template <class Engine>
std::int64_t serve_in_chunks(Engine& e, const tokens& prompt) {
  const auto id = e.create(prompt, {.first_chunk = 16}).value();
  const auto cached = e.sequences.at(id).computed;
  e.compute(id);
  for (auto& text = e.sequences.at(id).text; text.size() < prompt.size();) {
    const auto next = prompt.begin() + static_cast<std::ptrdiff_t>(text.size());
    REQUIRE(e.append(id, tokens(next, next + std::min<std::ptrdiff_t>(16, prompt.end() - next))));
    e.compute(id);
  }
  e.check(id);
  e.release(id);
  REQUIRE(e.cache.check_invariants() == sound);
  return cached;
}

}  // namespace

TEST_CASE("a window alone is shared far behind tokens whose blocks are gone", "[group_cache]") {
  auto e = plain{config_of({window}, 40)};
  CHECK(serve_in_chunks(e, counted(2001)) == 0);
  CHECK(e.cache.statistics().evictions > 0);
  CHECK(serve_in_chunks(e, counted(2001)) == 2000);
  auto branch = counted(1000);
  branch.push_back(-1);
  CHECK(e.cache.find_prefix(branch) < 1000);
}

TEST_CASE("with windows alone, blocks give way to nodes", "[group_cache]") {
  const auto config = config_of({window}, 40);
  auto queues = event_queues{config.block_size, {.capacity = 8192}};
  auto e = engine<group_cache<float32, event_queues>>{config, queues};
  auto known = std::set<std::uint64_t>{};
  const auto follow = [&](const cache_event& event) {
    if (event.kind == event_kind::stored) {
      REQUIRE(known.insert(event.hash).second);
    } else {
      REQUIRE(known.erase(event.hash) == 1);
    }
  };
  for (const auto first : {0, 100'000, 200'000, 300'000, 400'000}) {
    CHECK(serve_in_chunks(e, counted(4001, first)) == 0);
    CHECK(e.cache.find_prefix(counted(4001, first)) == 4000);
    queues.drain(follow);
    CHECK(queues.num_dropped() == 0);
  }
  CHECK(e.cache.find_prefix(counted(4001)) == 0);  // its nodes went, and the blocks with them
  CHECK(known.size() >= 1000);
  REQUIRE(e.cache.reset_prefix_cache());
}

TEST_CASE("a chain longer than all nodes is computed, and cached no further", "[group_cache]") {
  auto e = plain{config_of({window}, 40)};
  CHECK(serve_in_chunks(e, counted(10'001)) == 0);
  CHECK(e.cache.find_prefix(counted(10'001)) < 10'000);
  CHECK(serve_in_chunks(e, counted(41, 50'000)) == 0);
  CHECK(serve_in_chunks(e, counted(41, 50'000)) == 40);
}

TEST_CASE("models of states alone share saved states", "[group_cache]") {
  auto e = plain{config_of({state}, 40)};
  const auto first = e.create(counted(41)).value();
  e.compute(first);
  CHECK(e.cache.statistics().blocks.in_use == e.cache.plan().groups[0].blocks_per_state);
  e.release(first);
  const auto again = e.create(counted(61)).value();
  CHECK(e.sequences.at(again).computed == 40);
  e.compute(again);
  e.check(again);
  const auto other = e.create(counted(41)).value();
  CHECK(e.sequences.at(other).computed == 40);
  e.release(other);
  e.release(again);
  CHECK(e.cache.statistics().blocks.in_use == 0);
  REQUIRE(e.cache.check_invariants() == sound);
}

TEST_CASE("a hit that needs no block keeps its nodes while blocks are evicted for it", "[group_cache]") {
  auto short_chunks = chunked;
  short_chunks.window = 8;
  auto e = plain{config_of({short_chunks}, 8)};
  CHECK(e.serve(counted(9)) == 0);
  const auto size = e.cache.plan().groups[0].block_size;
  auto longer = counted(8);
  const auto rest = counted(7 * size, 1000);
  longer.insert(longer.end(), rest.begin(), rest.end());  // takes nearly all blocks, those of the hit among them
  const auto id = e.create(longer).value();
  CHECK(e.sequences.at(id).computed == 8);
  REQUIRE(e.cache.check_invariants() == sound);
  e.compute(id);
  e.check(id);
  e.release(id);
  REQUIRE(e.cache.check_invariants() == sound);
}

TEST_CASE("where a running sequence holds all nodes, its commits evict nothing and tell nothing", "[group_cache]") {
  const auto config = config_of({window}, 40);
  auto queues = event_queues{config.block_size, {.capacity = 1 << 14}};
  auto e = engine<group_cache<float32, event_queues>>{config, queues};
  const auto has_ended_one = GENERATE(false, true);
  if (has_ended_one) {
    e.serve(counted(41, 50'000));  // as many blocks may give way in vain as it has nodes
  }
  const auto id = e.create(counted(16)).value();
  e.compute(id);
  const auto grow = [&](int length) {
    e.append(id, counted(length, 9'000));
    e.compute(id);
  };
  for (auto i = 0; i < 400; ++i) {
    grow(16);
  }
  CHECK(e.cache.find_prefix(counted(17)) < 16);
  queues.drain([](const cache_event&) {});
  const auto evictable = e.cache.statistics().blocks.evictable;
  REQUIRE(evictable > (has_ended_one ? 12 : 20));
  for (auto i = 0; i < 100; ++i) {
    grow(1);
  }
  CHECK(e.cache.statistics().blocks.evictable >= evictable - 1);
  auto num_told = 0;
  queues.drain([&](const cache_event&) { ++num_told; });
  CHECK(num_told == 0);
  CHECK(e.cache.check_invariants() == sound);
}

TEST_CASE("states alone are told of where they are saved, whatever is forked and ended", "[group_cache]") {
  const auto config = config_of({state}, 40);
  auto queues = event_queues{config.block_size};
  auto e = engine<group_cache<float32, event_queues>>{config, queues};
  auto num_stored = 0;
  auto num_evicted = 0;
  const auto count = [&](const cache_event& event) {
    (event.kind == event_kind::stored ? num_stored : num_evicted) += 1;
  };
  const auto first = e.create(counted(41)).value();
  e.compute(first, 36);
  queues.drain(count);
  CHECK(num_stored == 0);
  e.compute(first);
  queues.drain(count);
  CHECK(num_stored == 10);
  const auto forked = e.fork(first).value();
  e.append(forked, counted(20, 500));
  e.compute(forked);
  e.release(forked);
  e.release(first);
  queues.drain(count);
  CHECK(num_stored == 10);
  CHECK(num_evicted == 0);
  REQUIRE(e.cache.resize(1));
  e.serve(counted(5, 700));
  queues.drain(count);
  CHECK(num_evicted == 10);
  CHECK(e.cache.check_invariants() == sound);
}
