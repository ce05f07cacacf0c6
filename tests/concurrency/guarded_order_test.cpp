#include "../support/audited_lru.hpp"
#include "../support/on_threads.hpp"
#include "../support/ordered_blocks.hpp"

#include <pagedkv/pagedkv.hpp>
#include <pagedkv/policy/eviction/all.hpp>
#include <pagedkv/policy/locking/sharded_mutex.hpp>

#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/generators/catch_generators_adapters.hpp>
#include <catch2/generators/catch_generators_random.hpp>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

namespace {

using namespace pagedkv;
using namespace pagedkv::testing;
using pagedkv::test::on_threads;

constexpr auto unreferenced = [] { return true; };
constexpr auto referenced = [] { return false; };

/// An order, and a list of the blocks that it should contain, from oldest to newest.
class order_model {
 public:
  order_model(std::int32_t num_blocks, std::uint64_t seed)
      : order_(num_blocks), blocks_(static_cast<std::size_t>(num_blocks)), random_(seed) {}

  void step() {
    const auto block = to_block(below(blocks_.size()));
    switch (below(9)) {
      case 0:
      case 1: release(block); break;
      case 2: hit(block); break;
      case 3: report_late(block); break;
      case 4: forget(block); break;
      case 5:
      case 6: move(block, to_block(below(blocks_.size()))); break;
      case 7: at(block).has_children = !at(block).has_children; break;
      default: evict();
    }
  }

  /// Every listed block is offered, once.
  void drain() {
    for (auto& each : blocks_) {
      each = {};
    }
    for (auto i = listed_.size(); i-- > 0;) {
      evict();
    }
    CHECK(listed_.empty());
    CHECK(order_.victim(take_it, {}) == no_block);
  }

 private:
  struct mark {
    bool overtaken = false;  // referenced though listed: its hit has not been reported yet
    bool has_children = false;
  };

  [[nodiscard]] std::size_t below(std::size_t bound) { return static_cast<std::size_t>(random_() % bound); }
  [[nodiscard]] mark& at(block_id id) { return blocks_[to_index(id)]; }
  [[nodiscard]] bool is_listed(block_id id) const { return std::ranges::count(listed_, id) > 0; }

  void release(block_id id) {
    order_.insert(id, {.parent = below(2) == 0 ? no_block : to_block(below(blocks_.size()))}, unreferenced);
    if (!is_listed(id)) {
      listed_.push_back(id);
    }
    at(id).overtaken = false;
  }

  /// Reports a release after the hit that overtook it.
  void report_late(block_id id) {
    order_.insert(id, {}, referenced);
    at(id).overtaken = is_listed(id);
  }

  void hit(block_id id) {
    order_.remove(id);
    std::erase(listed_, id);
    at(id).overtaken = false;
  }

  void forget(block_id id) {
    order_.erase(id);
    std::erase(listed_, id);
    at(id) = {};
  }

  void move(block_id from, block_id to) {
    if (from == to) {
      return;
    }
    forget(to);
    order_.rename(from, to);
    std::ranges::replace(listed_, from, to);
    at(to) = std::exchange(at(from), {});
  }

  /// The oldest leaf; if there is none, the oldest block.
  [[nodiscard]] block_id expected_victim() {
    const auto leaf =
        std::ranges::find_if(listed_, [&](block_id id) { return !at(id).overtaken && !at(id).has_children; });
    if (leaf != listed_.end()) {
      return *leaf;
    }
    return listed_.empty() || at(listed_.front()).overtaken ? no_block : listed_.front();
  }

  struct offer {
    order_model& model;

    eviction_answer operator()(block_id id) const {
      return model.at(id).has_children ? eviction_answer::has_children : (*this)(id, evict_anyway);
    }
    eviction_answer operator()(block_id id, evict_anyway_t) const {
      return model.at(id).overtaken ? eviction_answer::in_use : eviction_answer::taken;
    }
  };

  void evict() {
    const auto expected = expected_victim();
    const auto victim = order_.victim(offer{*this}, {});
    REQUIRE(victim == expected);
    if (victim != no_block) {
      std::erase(listed_, victim);
      at(victim) = {};
    }
  }

  order_of<audited_lru<>> order_;
  std::vector<block_id> listed_;
  std::vector<mark> blocks_;
  std::mt19937_64 random_;
};

TEST_CASE("an order behind a mutex is exact", "[guarded_order][random]") {
  const auto seed = GENERATE(take(20, random(0U, 0xffff'ffffU)));
  const auto num_blocks = GENERATE(1, 2, 7, 30);  // lru offers at most 32 blocks
  CAPTURE(seed, num_blocks);
  audited_lru<>::reset();
  auto model = order_model{num_blocks, seed};
  for (auto i = 0; i < 3'000; ++i) {
    CAPTURE(i);
    model.step();
    REQUIRE(audited_lru<>::num_violations() == 0);
  }
  model.drain();
  CHECK(audited_lru<>::num_violations() == 0);
}

TEST_CASE("an order behind a mutex takes two bits a block more than its policy", "[guarded_order]") {
  constexpr auto num_blocks = 1024;
  const auto order = eviction_order<sharded_mutex::family, lru>{num_blocks};
  CHECK(order.metadata_bytes() == lru{num_blocks}.metadata_bytes() + 2 * num_blocks / 8);
}

TEST_CASE("the chain that was released first loses its blocks, from its tail, before any other", "[guarded_order]") {
  constexpr auto chain_blocks = 64;
  const auto num_single = GENERATE(0, 1, 6, 15);  // blocks without parents, which go first
  auto cache = kv_cache<float32, sharded_mutex>{
      {.block_size = 1, .num_blocks = 3 * chain_blocks + num_single, .head_dim = 1}};
  const auto serve = [&](token first, std::int64_t num_tokens) {
    auto prompt = std::vector<token>(static_cast<std::size_t>(num_tokens));
    std::iota(prompt.begin(), prompt.end(), first);
    const auto made = cache.create_sequence(prompt).value();
    cache.commit(made.id, num_tokens).value();
    cache.release(made.id).value();
    prompt.push_back(-1);  // the last token is never a hit
    return prompt;
  };
  for (auto i = 0; i < num_single; ++i) {
    serve(20'000 + i, 1);
  }
  const auto oldest = serve(0, chain_blocks);
  const auto next = serve(1'000, chain_blocks);
  serve(2'000, chain_blocks);
  for (auto num_evicted = 1 - num_single; num_evicted <= chain_blocks; ++num_evicted) {
    serve(10'000 + num_evicted, 1);
    if (num_evicted < 1) {
      continue;
    }
    REQUIRE(cache.find_prefix(oldest) == chain_blocks - num_evicted);
    REQUIRE(cache.find_prefix(next) == chain_blocks);
  }
}

/// Requests over an order, as a pool has them: each hits a chain of blocks or none, extends it, and releases it from
/// its tail. Blocks are evicted once all are used.
template <class Order>
class chained_requests {
 public:
  explicit chained_requests(std::uint64_t seed) : random_(seed) {}

  void serve() {
    auto chain = hit(tails_[random_() % tails_.size()]);
    for (auto i = random_() % 4; i > 0 && chain.size() < num_blocks / 2; --i) {
      if (const auto block = allocate(); block != no_block) {
        parent(block) = chain.empty() ? no_block : chain.back();
        chain.push_back(block);
      }
    }
    tails_.push_back(chain.empty() ? no_block : chain.back());
    for (; !chain.empty(); chain.pop_back()) {
      const auto block = chain.back();
      order_.insert(block, {.hash = to_index(block), .parent = parent(block)}, unreferenced);
    }
  }

  [[nodiscard]] const std::vector<block_id>& victims() const { return victims_; }

 private:
  static constexpr auto num_blocks = std::size_t{64};

  [[nodiscard]] block_id& parent(block_id block) { return parents_[to_index(block)]; }

  [[nodiscard]] std::vector<block_id> hit(block_id tail) {
    auto chain = std::vector<block_id>{};
    for (auto block = tail; block != no_block; block = parent(block)) {
      order_.remove(block);
      chain.insert(chain.begin(), block);
    }
    return chain;
  }

  /// `no_block` when no leaf is evictable.
  [[nodiscard]] block_id allocate() {
    if (num_used_ < num_blocks) {
      return to_block(num_used_++);
    }
    const auto victim = order_.victim(
        [&](block_id block, auto...) {
          return std::ranges::count(parents_, block) > 0 ? eviction_answer::has_children : eviction_answer::taken;
        },
        {});
    if (victim != no_block) {
      victims_.push_back(victim);
      parent(victim) = no_block;
      std::erase(tails_, victim);
    }
    return victim;
  }

  Order order_{num_blocks};
  std::mt19937_64 random_;
  std::size_t num_used_ = 0;
  std::vector<block_id> parents_ = std::vector<block_id>(num_blocks, no_block);
  std::vector<block_id> tails_{no_block};
  std::vector<block_id> victims_;
};

TEMPLATE_TEST_CASE("a policy has the same victims under sharded_mutex as in a cache with one thread",
                   "[guarded_order][random]", fifo, lru, sieve, lfu, slru, s3_fifo, arc, tiny_lfu, priority,
                   hit_density, clock_sweep) {
  const auto seed = GENERATE(take(3, random(0U, 0xffff'ffffU)));
  CAPTURE(seed, TestType::name);
  auto guarded = chained_requests<order_of<TestType>>{seed};
  auto single = chained_requests<direct_order<TestType>>{seed};
  for (auto i = 0; i < 1'000; ++i) {
    guarded.serve();
    single.serve();
  }
  CHECK(single.victims().size() > 500);
  CHECK(guarded.victims() == single.victims());
}

/// Blocks that turns of conversations hit, in a pool that holds a third of them. Their prefixes have more blocks than a
/// policy offers in a search.
template <locking Locking, eviction_policy Eviction>
std::int64_t hits_of_conversations(std::uint64_t seed) {
  auto cache = kv_cache<float32, Locking, Eviction>{
      {.block_size = 1, .num_blocks = 700, .head_dim = 1, .max_sequences = 4, .hash_seed = 1}};
  auto random = std::mt19937_64{seed};
  auto conversations = std::vector<std::vector<token>>(20);
  for (auto turn = 0; turn < 400; ++turn) {
    auto& said = conversations[random() % conversations.size()];
    for (auto i = random() % 8 + (said.empty() ? 100 : 1); i > 0; --i) {
      said.push_back(static_cast<token>(random() % 1'000'000));
    }
    const auto made = cache.create_sequence(said).value();
    cache.commit(made.id, std::ssize(said)).value();
    cache.release(made.id).value();
    if (said.size() > 200) {
      said.clear();
    }
  }
  return cache.statistics().hit_blocks;
}

TEMPLATE_TEST_CASE("turns of conversations hit as much under sharded_mutex as with one thread",
                   "[guarded_order][random]", fifo, lru, sieve, lfu, slru, s3_fifo, arc) {
  const auto seed = GENERATE(take(3, random(0U, 0xffff'ffffU)));
  CAPTURE(seed, TestType::name);
  const auto alone = hits_of_conversations<single_thread, TestType>(seed);
  CHECK(alone > 0);
  CHECK(hits_of_conversations<sharded_mutex, TestType>(seed) == alone);
}

TEST_CASE("a block that compaction moves keeps its policy's knowledge", "[guarded_order]") {
  auto order = order_of<priority>{8};
  order.insert(block_id{5}, {.priority = 100}, unreferenced);
  order.insert(block_id{7}, {.priority = 50, .retain_until = timestamp{10}}, unreferenced);
  order.insert(block_id{1}, {.priority = 20}, unreferenced);
  order.remove(block_id{1});
  order.rename(block_id{7}, block_id{0});
  order.rename(block_id{5}, block_id{2});
  order.rename(block_id{1}, block_id{4});
  order.insert(block_id{4}, {.priority = 20}, unreferenced);
  CHECK(order.victim(take_it, timestamp{11}) == block_id{0});
  CHECK(order.victim(take_it, timestamp{11}) == block_id{4});
  CHECK(order.victim(take_it, timestamp{11}) == block_id{2});
  CHECK(order.victim(take_it, timestamp{11}) == no_block);
}

TEST_CASE("an order behind a mutex loses no block and hands none out twice while threads use it",
          "[guarded_order][threads][random]") {
  constexpr auto num_blocks = 30;
  constexpr auto num_threads = 4U;
  constexpr auto num_rounds = 20'000;
  const auto seed = GENERATE(take(1, random(0U, 0xffff'ffffU)));
  CAPTURE(seed);
  audited_lru<>::reset();
  auto blocks = ordered_blocks<std::atomic, order_of<audited_lru<>>>{num_blocks};
  auto num_victims = std::atomic{0};
  on_threads(num_threads, [&](unsigned thread) {
    auto random = std::mt19937_64{seed + thread};
    for (auto round = 0; round < num_rounds; ++round) {
      const auto kind = random() % 8;
      auto block = to_block(random() % num_blocks);
      if (kind == 0) {
        block = blocks.forget(block) ? block : no_block;
      } else if (kind < 4) {
        block = blocks.hit(block) ? block : no_block;
      } else {
        block = blocks.evict();
        num_victims += block != no_block;
      }
      if (block != no_block) {
        blocks.let_go(block);
      }
    }
  });
  CHECK(num_victims > 0);
  const auto left = blocks.drain();
  CHECK(left.size() == num_blocks);
  CHECK(left == blocks.idle_blocks());
  CHECK(audited_lru<>::num_violations() == 0);
}

}  // namespace
