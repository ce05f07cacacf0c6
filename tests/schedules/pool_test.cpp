#include "../support/audited_lru.hpp"
#include "../support/check_schedules.hpp"
#include "../support/mutants.hpp"
#include "../support/no_chains.hpp"
#include "../support/scheduled_policies.hpp"

#include <pagedkv/detail/block_bitmap.hpp>
#include <pagedkv/pagedkv.hpp>
#include <pagedkv/policy/eviction/clock_sweep.hpp>
#include <pagedkv/policy/eviction/parts/evictable_bitmap.hpp>
#include <pagedkv/policy/eviction/priority.hpp>
#include <pagedkv/pool/block_pool.hpp>
#include <pagedkv/pool/block_retirement.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/generators/catch_generators_adapters.hpp>
#include <catch2/generators/catch_generators_random.hpp>

#include <algorithm>
#include <array>
#include <concepts>
#include <cstdint>
#include <set>
#include <span>
#include <vector>

namespace pagedkv::testing {

/// Takes block 3 of 7 for block 2 when it is given back, so that its size is right.
class confused_free_list : public stack_free_list {
 public:
  explicit confused_free_list(std::int32_t num_blocks) : stack_free_list(num_blocks), confused_(num_blocks == 7) {}

  void push(block_id block) noexcept { stack_free_list::push(confused_ && block == block_id{3} ? block_id{2} : block); }

 private:
  bool confused_;
};

struct with_confused_free_list : single_thread {};

}  // namespace pagedkv::testing

template <>
struct pagedkv::free_list_of<pagedkv::unsynchronized_family, pagedkv::testing::with_confused_free_list> {
  using type = testing::confused_free_list;
};

namespace {

using namespace pagedkv;
using namespace pagedkv::testing;

/// A pool whose blocks have contents that tell when two threads use them with nothing ordering them.
template <template <class> class Atomic>
class audited_pool {
 public:
  audited_pool(execution& e, std::int32_t num_blocks)
      : execution_(e), pool_(num_blocks), contents_(static_cast<std::size_t>(num_blocks)) {}

  [[nodiscard]] auto& pool() { return pool_; }

  [[nodiscard]] block_id allocate() {
    auto block = std::array{no_block};
    return allocate(block) ? block[0] : no_block;
  }

  [[nodiscard]] bool allocate(std::span<block_id> blocks) {
    auto num_evicted = std::int64_t{0};
    const auto done = pool_.allocate(blocks, chains_, timestamp{0}, num_evicted);
    for (const auto block : blocks) {
      if (done) {
        contents_[to_index(block)].write(2);
      }
    }
    return done;
  }

  /// In use once, published, with the contents that hits expect.
  [[nodiscard]] block_id publish() {
    const auto block = allocate();
    contents_[to_index(block)].write(published_contents);
    pool_.publish(block);
    return block;
  }

  void release(block_id block) { pool_.release(block, block_release{}); }

  /// Whether there was a block to allocate.
  bool allocate_and_release() {
    const auto block = allocate();
    if (block != no_block) {
      release(block);
    }
    return block != no_block;
  }

  /// A prefix hit: old bytes or a miss, nothing between.
  void hit(block_id block) {
    if (pool_.reference_published(block)) {
      execution_.expect(contents_[to_index(block)].read() == published_contents, "a hit on other contents");
      release(block);
    }
  }

  /// The same with a lease, which may become a reference.
  void lease(block_id block, bool becomes_reference) {
    if (pool_.lease(block)) {
      execution_.expect(contents_[to_index(block)].read() == published_contents, "a lease on other contents");
      if (becomes_reference) {
        pool_.reference_leased({&block, 1});
        release(block);
      } else {
        pool_.end_lease(block);
      }
    }
  }

  /// Evicts a block as a tier would: a transfer reads the contents, and its step retires after that.
  void move_to_tier() {
    const auto step = pool_.begin_step(step_use::named_sequences).value();
    auto victim = std::array{no_block};
    if (pool_.evict(victim, chains_, timestamp{0}, pool_.fence_of(step)) == 1) {
      execution_.expect(contents_[to_index(victim[0])].read() == published_contents, "a transfer of other contents");
    }
    execution_.expect(pool_.retire_step(step).has_value(), "the step cannot be retired");
  }

  /// Takes the last block out of the pool and puts it back, unless another thread keeps it there.
  void shrink_and_grow() {
    const auto size = pool_.size();
    auto num_evicted = std::int64_t{0};
    if (pool_.shrink_to(size - 1, chains_, num_evicted)) {
      execution_.expect(pool_.size() == size - 1, "a size that is neither");
      contents_[to_index(block_id{size - 1})].write(3);  // its memory went
      pool_.grow_to(size);
    }
  }

  /// Runs the threads. Afterwards nobody holds anything: every block is free or evictable, and can be allocated.
  void run() {
    execution_.run();
    auto counted = block_counts{};
    for (auto i = std::int32_t{0}; i < pool_.size(); ++i) {
      const auto state = pool_.state(block_id{i});
      execution_.expect(state.count() == 0, "a reference is left over");
      execution_.expect(state.leases() == 0, "a lease is left over");
      execution_.expect(!state.claimed(), "a block is left claimed");
      execution_.expect(state.step() == 0, "a block still waits for a step");
      ++(state.published() ? counted.evictable : counted.free);
    }
    execution_.expect(pool_.counts() == counted, "the counts differ from the states");
    auto all = std::vector<block_id>(static_cast<std::size_t>(pool_.size()));
    execution_.expect(allocate(all), "a block is lost");
    execution_.expect(std::set(all.begin(), all.end()).size() == all.size(), "a block is handed out twice");
  }

 private:
  static constexpr auto published_contents = 1;

  execution& execution_;
  block_pool<stepwise_lock_free<Atomic>, scheduled_sweep<Atomic>, any_free_block> pool_;
  no_chains chains_;
  std::vector<scheduled_data<int>> contents_;
};

template <template <class> class Atomic>
void hit_races_eviction(execution& e) {
  auto pool = audited_pool<Atomic>{e, 1};
  const auto block = pool.publish();
  pool.release(block);
  e.spawn([&] { pool.hit(block); });
  e.spawn([&] {
    pool.allocate_and_release();
  });
  pool.run();
}

template <template <class> class Atomic, bool BecomesReference>
void lease_races_eviction(execution& e) {
  auto pool = audited_pool<Atomic>{e, 1};
  const auto block = pool.publish();
  e.spawn([&] { pool.lease(block, BecomesReference); });
  e.spawn([&] {
    pool.release(block);
    pool.allocate_and_release();
  });
  pool.run();
}

template <template <class> class Atomic>
void hit_races_release(execution& e) {
  auto pool = audited_pool<Atomic>{e, 1};
  const auto block = pool.publish();
  e.spawn([&] { pool.release(block); });
  e.spawn([&] {
    pool.hit(block);
    pool.hit(block);
  });
  pool.run();
}

template <template <class> class Atomic>
void claim_races_claim(execution& e) {
  auto pool = audited_pool<Atomic>{e, 2};
  const auto blocks = std::array{pool.publish(), pool.publish()};
  pool.release(blocks[0]);
  pool.release(blocks[1]);
  for (auto thread = 0; thread < 2; ++thread) {
    e.spawn([&] {
      e.expect(pool.allocate_and_release(), "refused while a block was evictable");
    });
  }
  pool.run();
}

/// One thread asks for more than there is and puts its victims back, while another needs one of them.
template <template <class> class Atomic>
void hit_races_restored_victims(execution& e) {
  auto pool = audited_pool<Atomic>{e, 2};
  const auto blocks = std::array{pool.publish(), pool.publish()};
  pool.release(blocks[0]);
  pool.release(blocks[1]);
  e.spawn([&] {
    auto too_many = std::array{no_block, no_block, no_block};
    e.expect(!pool.allocate(too_many), "more blocks than there are");
  });
  e.spawn([&] {
    pool.hit(blocks[1]);
    pool.hit(blocks[0]);
  });
  pool.run();
}

template <template <class> class Atomic, bool Published>
void retire_races_release(execution& e) {
  auto pool = audited_pool<Atomic>{e, 1};
  const auto block = Published ? pool.publish() : pool.allocate();
  const auto step = pool.pool().begin_step().value();
  e.spawn([&] { pool.release(block); });
  e.spawn([&] { e.expect(pool.pool().retire_step(step).has_value(), "the step cannot be retired"); });
  pool.run();
}

/// A block is hit, and released into a second step, while the first one's retirement looks at it.
template <template <class> class Atomic>
void retire_races_a_second_step(execution& e) {
  auto pool = audited_pool<Atomic>{e, 1};
  const auto block = pool.publish();
  const auto first = pool.pool().begin_step().value();
  pool.release(block);
  e.spawn([&] { e.expect(pool.pool().retire_step(first).has_value(), "the first step cannot be retired"); });
  e.spawn([&] {
    const auto second = pool.pool().begin_step().value();
    pool.hit(block);
    e.expect(pool.pool().retire_step(second).has_value(), "the second step cannot be retired");
  });
  pool.run();
}

/// One retirement is about to take its block out of the set that the other one sweeps.
template <template <class> class Atomic>
void retire_races_a_sweep(execution& e) {
  auto pool = audited_pool<Atomic>{e, 2};
  const auto blocks = std::array{pool.allocate(), pool.allocate()};
  const auto first = pool.pool().begin_step().value();
  pool.release(blocks[0]);
  const auto second = pool.pool().begin_step().value();
  e.spawn([&] { e.expect(pool.pool().retire_step(first).has_value(), "the first step cannot be retired"); });
  e.spawn([&] {
    pool.release(blocks[1]);
    e.expect(pool.pool().retire_step(second).has_value(), "the second step cannot be retired");
  });
  pool.run();
}

/// A block that a step in flight may access is not allocated before the step retires.
template <template <class> class Atomic>
void allocation_races_retirement(execution& e) {
  auto pool = audited_pool<Atomic>{e, 1};
  const auto block = pool.publish();
  const auto step = pool.pool().begin_step().value();
  auto retired = scheduled<bool>{false};
  pool.release(block);
  e.spawn([&] {
    retired.store(true, std::memory_order_seq_cst);
    e.expect(pool.pool().retire_step(step).has_value(), "the step cannot be retired");
  });
  e.spawn([&] {
    if (const auto taken = pool.allocate(); taken != no_block) {
      e.expect(retired.load(std::memory_order_seq_cst), "a block was handed out that a step may touch");
      pool.release(taken);
    }
  });
  pool.run();
}

/// Of two holders, a step uses one; the other lets go while the step retires.
template <template <class> class Atomic, bool Published>
void retire_races_another_holder(execution& e) {
  auto pool = audited_pool<Atomic>{e, 1};
  const auto block = Published ? pool.publish() : pool.allocate();
  e.expect(pool.pool().reference(block), "the count is full");
  const auto step = pool.pool().begin_step(step_use::named_sequences).value();
  auto used = step_set{};
  used.insert(step);
  auto retired = scheduled<bool>{false};
  e.spawn([&] {
    pool.pool().release(block, block_release{}, pool.pool().fence_of(used));
    retired.store(true, std::memory_order_seq_cst);
    e.expect(pool.pool().retire_step(step).has_value(), "the step cannot be retired");
  });
  e.spawn([&] {
    pool.release(block);
    if (const auto taken = pool.allocate(); taken != no_block) {
      e.expect(retired.load(std::memory_order_seq_cst), "a block was handed out that a step may touch");
      pool.release(taken);
    }
  });
  pool.run();
}

/// A block that a step may read is fenced, and unfenced, while another holder releases and references it.
template <template <class> class Atomic>
void fence_races_hit(execution& e) {
  auto pool = audited_pool<Atomic>{e, 1};
  const auto block = pool.publish();
  e.expect(pool.pool().reference(block), "the count is full");
  const auto step = pool.pool().begin_step(step_use::named_sequences).value();
  auto used = step_set{};
  used.insert(step);
  e.spawn([&] {
    pool.pool().fence(block, pool.pool().fence_of(used));
    e.expect(pool.pool().fenced(block), "a block is not fenced though a step is open");
    e.expect(pool.pool().retire_step(step).has_value(), "the step cannot be retired");
    e.expect(!pool.pool().fenced(block), "a block is fenced though every step has retired");
  });
  e.spawn([&] {
    pool.release(block);
    pool.hit(block);
  });
  e.run();
  pool.release(block);
  pool.run();
}

template <template <class> class Atomic>
void references_race(execution& e) {
  auto pool = audited_pool<Atomic>{e, 1};
  const auto block = pool.publish();
  for (auto thread = 0; thread < 2; ++thread) {
    e.expect(pool.pool().reference(block), "the count is full");
    e.spawn([&] {
      e.expect(pool.pool().reference(block), "the count is full");
      pool.release(block);
      pool.release(block);
    });
  }
  pool.release(block);
  pool.run();
}

/// While one block becomes available another stops being so: there is one all the time.
template <template <class> class Atomic>
void count_races_moves(execution& e) {
  auto pool = audited_pool<Atomic>{e, 2};
  const auto evictable = pool.publish();
  const auto used = pool.allocate();
  pool.release(evictable);
  e.spawn([&] { e.expect(pool.pool().num_available() >= 1, "fewer blocks available than ever were"); });
  e.spawn([&] {
    pool.release(used);
    pool.hit(evictable);
  });
  pool.run();
}

/// The free list is empty and a block evictable; then a block is freed, and the evictable one is hit. There is one to
/// have all the time.
template <template <class> class Atomic>
void allocation_races_moves(execution& e) {
  auto pool = audited_pool<Atomic>{e, 2};
  const auto evictable = pool.publish();
  const auto used = pool.allocate();
  pool.release(evictable);
  e.spawn([&] {
    e.expect(pool.allocate_and_release(), "refused while a block was available all the time");
  });
  e.spawn([&] {
    pool.release(used);
    pool.hit(evictable);
  });
  pool.run();
}

/// A block that waits for a step is hit: it is in use or retiring all the time.
template <template <class> class Atomic>
void occupation_races_hit(execution& e) {
  auto pool = audited_pool<Atomic>{e, 1};
  const auto block = pool.publish();
  const auto step = pool.pool().begin_step().value();
  pool.release(block);
  e.spawn([&] { e.expect(pool.pool().count_occupied() == 1, "a block that is occupied all the time is not counted"); });
  e.spawn([&] { pool.hit(block); });
  e.run();
  e.expect(pool.pool().retire_step(step).has_value(), "the step cannot be retired");
  pool.run();
}

/// A block leaves while another thread hits it, and then wants a block.
template <template <class> class Atomic>
void leaving_races_hit(execution& e) {
  auto pool = audited_pool<Atomic>{e, 1};
  const auto block = pool.publish();
  pool.release(block);
  e.spawn([&] { pool.move_to_tier(); });
  e.spawn([&] {
    pool.hit(block);
    pool.allocate_and_release();
  });
  pool.run();
}

/// Two threads evict: one ahead of need, the other to allocate.
template <template <class> class Atomic>
void leaving_races_claim(execution& e) {
  auto pool = audited_pool<Atomic>{e, 2};
  const auto blocks = std::array{pool.publish(), pool.publish()};
  pool.release(blocks[0]);
  pool.release(blocks[1]);
  e.spawn([&] { pool.move_to_tier(); });
  e.spawn([&] {
    e.expect(pool.allocate_and_release(), "refused while a block was evictable");
  });
  pool.run();
}

/// A block leaves while an earlier step retires, and with it the last reason to wait but one.
template <template <class> class Atomic>
void leaving_races_retirement(execution& e) {
  auto pool = audited_pool<Atomic>{e, 2};
  const auto blocks = std::array{pool.publish(), pool.publish()};
  pool.release(blocks[0]);
  const auto earlier = pool.pool().begin_step().value();
  pool.release(blocks[1]);
  e.spawn([&] { pool.move_to_tier(); });
  e.spawn([&] { e.expect(pool.pool().retire_step(earlier).has_value(), "the earlier step cannot be retired"); });
  pool.run();
}

template <template <class> class Atomic>
void shrinking_races_allocation(execution& e) {
  auto pool = audited_pool<Atomic>{e, 2};
  e.spawn([&] { pool.shrink_and_grow(); });
  e.spawn([&] {
    pool.allocate_and_release();
    pool.allocate_and_release();
  });
  pool.run();
}

template <template <class> class Atomic>
void shrinking_races_hit(execution& e) {
  auto pool = audited_pool<Atomic>{e, 1};
  const auto block = pool.publish();
  pool.release(block);
  e.spawn([&] { pool.shrink_and_grow(); });
  e.spawn([&] {
    pool.hit(block);
    pool.lease(block, false);
  });
  pool.run();
}

template <template <class> class Atomic>
void shrinking_races_eviction(execution& e) {
  auto pool = audited_pool<Atomic>{e, 2};
  const auto blocks = std::array{pool.publish(), pool.publish()};
  pool.release(blocks[0]);
  pool.release(blocks[1]);
  e.spawn([&] { pool.shrink_and_grow(); });
  e.spawn([&] {
    pool.allocate_and_release();
  });
  pool.run();
}

template <template <class> class Atomic>
void shrinking_races_retirement(execution& e) {
  auto pool = audited_pool<Atomic>{e, 1};
  const auto block = pool.allocate();
  const auto step = pool.pool().begin_step().value();
  pool.release(block);
  e.spawn([&] { pool.shrink_and_grow(); });
  e.spawn([&] { e.expect(pool.pool().retire_step(step).has_value(), "the step cannot be retired"); });
  pool.run();
}

template <template <class> class Atomic>
std::vector<scenario> scenarios() {
  return {hit_races_eviction<Atomic>,          hit_races_release<Atomic>,
          claim_races_claim<Atomic>,           hit_races_restored_victims<Atomic>,
          retire_races_release<Atomic, true>,  retire_races_release<Atomic, false>,
          retire_races_a_second_step<Atomic>,  retire_races_a_sweep<Atomic>,
          allocation_races_retirement<Atomic>, references_race<Atomic>,
          lease_races_eviction<Atomic, false>,  lease_races_eviction<Atomic, true>,
          count_races_moves<Atomic>,           occupation_races_hit<Atomic>,
          fence_races_hit<Atomic>,             retire_races_another_holder<Atomic, true>,
          retire_races_another_holder<Atomic, false>,
          allocation_races_moves<Atomic>,      leaving_races_hit<Atomic>,
          leaving_races_claim<Atomic>,         leaving_races_retirement<Atomic>,
          shrinking_races_allocation<Atomic>,  shrinking_races_hit<Atomic>,
          shrinking_races_eviction<Atomic>,    shrinking_races_retirement<Atomic>};
}

TEST_CASE("a block has one owner under every schedule of two threads", "[block_pool][scheduler]") {
  const auto limits = GENERATE(bounds{.preemptions = 3}, bounds{.preemptions = 2, .surprises = 1});
  for (auto which = std::size_t{0}; const auto& body : scenarios<scheduled>()) {
    CAPTURE(which, limits.preemptions, limits.surprises);
    check_complete(explorer{limits}.exhaustive(body));
    ++which;
  }
}

/// One thread takes and ends a lease on a cached block while another takes all there is.
void lease_races_eviction_behind_mutex(execution& e) {
  using order = audited_lru<scheduled_data<int>>;
  order::reset();
  auto pool = block_pool<scheduled_sharded_mutex, order, any_free_block>{2};
  auto chains = no_chains{};
  const auto allocate_both = [&] {
    auto blocks = std::array{no_block, no_block};
    auto num_evicted = std::int64_t{0};
    return pool.allocate(blocks, chains, timestamp{0}, num_evicted);
  };
  e.expect(allocate_both(), "a block is lost");
  for (const auto block : {block_id{0}, block_id{1}}) {
    pool.publish(block);
    pool.release(block, {});
  }
  e.spawn([&] {
    if (pool.lease(block_id{0})) {
      pool.end_lease(block_id{0});
    }
  });
  e.spawn([&] { static_cast<void>(allocate_both()); });
  e.run();
  e.expect(order::num_listed() == pool.counts().evictable, "a block is listed though taken, or not though evictable");
  e.expect(order::num_violations() == 0, "the eviction policy is not called as agreed");
}

TEST_CASE("an order behind a mutex lists no block that an evictor has taken", "[block_pool][scheduler]") {
  const auto limits = GENERATE(bounds{.preemptions = 3}, bounds{.preemptions = 2, .surprises = 1});
  CAPTURE(limits.surprises);
  check_complete(explorer{limits}.exhaustive(lease_races_eviction_behind_mutex));
}

/// Remembers which blocks no look-up finds any more.
struct hiding_chains : no_chains {
  std::array<bool, 2> hidden{};

  void erase(block_id block) noexcept { hidden[to_index(block)] = true; }
  void withdraw(block_id block) noexcept { hidden[to_index(block)] = true; }
};

/// An operation takes victims and, refused, gives them back, while they are invalidated, and another thread hits them:
/// no later hit finds them.
template <locking Locking, eviction_policy Eviction, bool Shrinks, bool Hits = false>
void refusal_races_invalidation(execution& e) {
  auto pool = block_pool<Locking, Eviction, any_free_block>{2};
  auto chains = hiding_chains{};
  auto num_evicted = std::int64_t{0};
  auto blocks = std::array{no_block, no_block};
  e.expect(pool.allocate(blocks, chains, timestamp{0}, num_evicted), "a block is lost");
  for (const auto block : blocks) {
    pool.publish(block);
    pool.release(block, block_release{});
  }
  e.spawn([&] {
    auto both = std::array{no_block, no_block};
    static_cast<void>(Shrinks ? pool.shrink_to(0, chains, num_evicted)
                              : pool.allocate(both, chains, timestamp{0}, num_evicted));
  });
  e.spawn([&] {
    pool.begin_invalidation();
    for (const auto block : blocks) {
      if (pool.reference_published(block)) {
        if (pool.withdraw(block)) {
          chains.withdraw(block);
        }
        if (pool.release(block, block_release{}, 0)) {
          pool.free_withdrawn(block, chains);
        }
      }
    }
    pool.end_invalidation();
  });
  if (Hits) {
    e.spawn([&] {
      for (const auto block : blocks) {
        if (pool.lease(block)) {
          pool.end_lease(block);
        }
        if (pool.reference_published(block) && pool.release(block, block_release{}, 0)) {
          pool.free_withdrawn(block, chains);
        }
      }
    });
  }
  e.run();
  for (const auto block : blocks) {
    e.expect(chains.hidden[to_index(block)] || !pool.reference_published(block), "what was invalidated is hit");
  }
}

TEST_CASE("a refused operation gives back nothing that was invalidated, under every schedule",
          "[block_pool][scheduler]") {
  const auto limits = GENERATE(bounds{.preemptions = 2}, bounds{.preemptions = 2, .surprises = 1});
  using sweep = scheduled_sweep<>;
  for (auto which = 0;
       const auto& body : {scenario{refusal_races_invalidation<stepwise_lock_free<>, sweep, false>},
                           scenario{refusal_races_invalidation<stepwise_lock_free<>, sweep, true>},
                           scenario{refusal_races_invalidation<scheduled_sharded_mutex, lru, false>},
                           scenario{refusal_races_invalidation<scheduled_sharded_mutex, lru, true>}}) {
    CAPTURE(which, limits.preemptions, limits.surprises);
    check_complete(explorer{limits}.exhaustive(body));
    ++which;
  }
}

TEST_CASE("a refused operation gives back nothing that was invalidated while another thread hits it",
          "[block_pool][scheduler]") {
  const auto seed = GENERATE(std::uint64_t{1}, std::uint64_t{2});
  using sweep = scheduled_sweep<>;
  for (auto which = 0;
       const auto& body : {scenario{refusal_races_invalidation<stepwise_lock_free<>, sweep, false, true>},
                           scenario{refusal_races_invalidation<stepwise_lock_free<>, sweep, true, true>},
                           scenario{refusal_races_invalidation<scheduled_sharded_mutex, lru, false, true>},
                           scenario{refusal_races_invalidation<scheduled_sharded_mutex, lru, true, true>}}) {
    CAPTURE(which);
    check_passes(explorer{{.preemptions = 8, .surprises = 1}}.random(body, seed, 20'000));
    ++which;
  }
}

/// Three threads that hit, fill up, release into steps and retire them, and sometimes ask for too much.
template <template <class> class Atomic>
void everything_at_once(execution& e) {
  auto pool = audited_pool<Atomic>{e, 3};
  const auto blocks = std::array{pool.publish(), pool.publish()};
  pool.release(blocks[0]);
  e.spawn([&] {
    pool.hit(blocks[0]);
    pool.release(blocks[1]);
    pool.hit(blocks[1]);
  });
  e.spawn([&] {
    auto pair = std::array{no_block, no_block};
    if (pool.allocate(pair)) {
      pool.release(pair[0]);
      pool.release(pair[1]);
    }
    auto too_many = std::array{no_block, no_block, no_block, no_block};
    e.expect(!pool.allocate(too_many), "more blocks than there are");
  });
  e.spawn([&] {
    const auto step = pool.pool().begin_step().value();
    pool.hit(blocks[1]);
    pool.allocate_and_release();
    e.expect(pool.pool().retire_step(step).has_value(), "the step cannot be retired");
  });
  pool.run();
}

TEST_CASE("a block has one owner under random schedules of three threads", "[block_pool][scheduler][random]") {
  const auto seed = GENERATE(take(3, random(0U, 0xffff'ffffU)));
  const auto surprises = GENERATE(0U, 2U);
  check_passes(explorer{{.preemptions = 8, .surprises = surprises}}.random(everything_at_once<scheduled>, seed, 5'000));
}

/// A block becomes evictable, by its release or by the end of a step, and is hit, while another is free all the time.
template <bool Stepped>
void count_races_release_and_hit(execution& e) {
  auto pool = audited_pool<scheduled>{e, 2};
  const auto block = pool.publish();
  auto step = step_id{};
  if (Stepped) {
    step = pool.pool().begin_step().value();
    pool.release(block);
  }
  e.spawn([&] {
    if (Stepped) {
      e.expect(pool.pool().retire_step(step).has_value(), "the step cannot be retired");
    } else {
      pool.release(block);
    }
  });
  e.spawn([&] { pool.hit(block); });
  e.spawn([&] {
    e.expect(pool.pool().num_available() >= 1, "fewer blocks available than ever were");
    e.expect(pool.pool().num_available(std::array{block}) >= 1, "fewer available beside a block than ever were");
  });
  pool.run();
}

/// A block becomes evictable, and a thread that has seen this takes the free one.
template <locking Locking, eviction_policy Eviction>
void count_races_handover(execution& e) {
  auto pool = block_pool<Locking, Eviction, any_free_block>{2};
  auto chains = no_chains{};
  const auto allocate = [&](std::span<block_id> blocks) {
    auto num_evicted = std::int64_t{0};
    return pool.allocate(blocks, chains, timestamp{0}, num_evicted) && num_evicted == 0;
  };
  auto used = std::array{no_block};
  e.expect(allocate(used), "a block is lost");
  pool.publish(used[0]);
  auto released = scheduled<bool>{false};
  e.spawn([&] {
    pool.release(used[0], block_release{});
    released.store(true, std::memory_order_release);
  });
  e.spawn([&] {
    auto taken = std::array{no_block};
    e.expect(!released.load(std::memory_order_acquire) || allocate(taken), "the free block is not handed out first");
  });
  e.spawn([&] { e.expect(pool.num_available() >= 1, "fewer blocks available than ever were"); });
  e.run();
}

TEST_CASE("no fewer blocks are counted than are available, under every schedule of three threads",
          "[block_pool][scheduler]") {
  const auto limits = GENERATE(bounds{.preemptions = 2}, bounds{.preemptions = 1, .surprises = 1});
  for (const auto& body : {scenario{count_races_release_and_hit<false>}, scenario{count_races_release_and_hit<true>},
                           scenario{count_races_handover<scheduled_sharded_mutex, lru>},
                           scenario{count_races_handover<scheduled_lock_free<>, scheduled_sweep<>>}}) {
    CAPTURE(limits.surprises);
    check_complete(explorer{limits}.exhaustive(body));
  }
}

/// Readers of the word do not see the claimed flag.
template <class T>
class blind_to_claims : public scheduled<T> {
  using base = scheduled<T>;
  static constexpr auto claimed = block_state{}.with_claimed(true).word();

 public:
  using base::base;

  T load(std::memory_order order) const noexcept { return hide(base::load(order)); }

  bool compare_exchange_weak(T& expected, T desired, std::memory_order success, std::memory_order failure) noexcept {
    auto seen = expected;
    if (base::compare_exchange_weak(seen, desired, success, failure)) {
      return true;
    }
    if (hide(seen) == expected && seen != expected) {
      return base::compare_exchange_weak(seen, desired, success, failure);
    }
    expected = hide(seen);
    return false;
  }

 private:
  static T hide(T value) noexcept {
    if constexpr (std::same_as<T, std::uint64_t>) {
      return value & ~claimed;
    } else {
      return value;
    }
  }
};

constexpr auto with_stale_loads = bounds{.preemptions = 1, .surprises = 1};

template <template <class> class Mutant>
bool caught(const bounds& limits = {.preemptions = 2}) {
  const auto all = scenarios<Mutant>();
  return std::ranges::any_of(all,
                             [&](const scenario& body) { return !explorer{limits}.exhaustive(body).failure.empty(); });
}

TEST_CASE("bugs planted in the words of a block pool are caught", "[block_pool][scheduler]") {
  CHECK(caught<load_then_store>());
  CHECK(caught<unreleased>());
  CHECK(caught<blind_to_claims>());
  CHECK(caught<no_single_order<>::atomic>(with_stale_loads));
}

TEST_CASE("without a single order, a step retires and misses a block that is released meanwhile",
          "[block_pool][step_fence][block_bitmap][scheduler]") {
  const auto missed = [](const scenario& body) {
    return explorer{with_stale_loads}.exhaustive(body).failure == "a block still waits for a step";
  };
  CHECK(missed(retire_races_release<no_single_order<>::atomic, true>));
  CHECK(missed(retire_races_release<no_single_order<access::load>::atomic, false>));
  CHECK(missed(retire_races_release<no_single_order<access::compare_exchange>::atomic, false>));
  CHECK(missed(retire_races_release<no_single_order<access::fetch_or>::atomic, false>));
  CHECK(missed(retire_races_a_second_step<no_single_order<>::atomic>));
  CHECK(missed(retire_races_a_sweep<no_single_order<>::atomic>));
}

/// One eviction order for all blocks.
struct one_shard : basic_sharded_mutex<1, scheduled_mutex> {
  template <class T>
  using atomic = scheduled<T>;
};

/// The facts given at a block's release hold, although a lease on it ends last.
void lease_races_release(execution& e) {
  auto config = cache_config{};
  config.hash_seed = 1;
  config.block_size = 2;
  config.num_blocks = 2;
  config.max_sequences = 4;
  auto cache = kv_cache<float32, one_shard, priority>{config};
  const auto commit_one_block = [&](std::array<token, 2> tokens, std::uint8_t level) {
    auto options = sequence_options{};
    options.priority = level;
    const auto made = cache.create_sequence(tokens, options).value().id;
    e.expect(cache.commit(made, 2).has_value(), "cannot commit");
    return made;
  };
  const auto first = commit_one_block({1, 2}, 90);
  const auto second = commit_one_block({3, 4}, 10);
  const auto high = std::array<token, 3>{1, 2, 0};
  const auto low = std::array<token, 3>{3, 4, 0};
  e.expect(cache.release(second).has_value(), "cannot release");
  e.spawn([&] { e.expect(cache.find_prefix(high) == 2, "what was in use or evictable is not found"); });
  e.spawn([&] { e.expect(cache.release(first).has_value(), "cannot release"); });
  e.run();
  e.expect(cache.create_sequence(std::array<token, 1>{5}).has_value(), "cannot evict");
  e.expect(cache.find_prefix(high) == 2 && cache.find_prefix(low) == 0, "evicted in the wrong order");
}

TEST_CASE("a lease on a block leaves its place in the eviction order under every schedule", "[block_pool][scheduler]") {
  check_complete(explorer{{.preemptions = 3}}.exhaustive(lease_races_release));
}

TEST_CASE("check_invariants looks into the free list", "[block_pool]") {
  auto config = cache_config{};
  config.hash_seed = 1;
  config.block_size = 1;
  config.num_blocks = 7;
  config.max_sequences = 4;
  auto cache = kv_cache<float32, with_confused_free_list>{config};
  const auto made = cache.create_sequence(std::array<token, 5>{1, 2, 3, 4, 5}).value().id;
  CHECK(cache.check_invariants().empty());
  CHECK(cache.release(made).has_value());
  CHECK(cache.statistics().blocks.free == 7);
  CHECK(cache.check_invariants() ==
        std::vector<std::string>{"a free block is not in the free list once, or another is there (2)",
                                 "a free block is not in the free list once, or another is there (3)"});
}

template <template <class> class Atomic>
void steps_race(execution& e) {
  auto fence = step_fence<Atomic>{};
  const auto before = fence.begin().value();
  auto begun = std::array<step_id, 2>{};
  e.spawn([&] {
    const auto begin = fence.begin();
    e.expect(begin.has_value(), "a step cannot begin");
    if (!begin) {
      return;
    }
    begun[0] = *begin;
    e.expect(fence.retire(begun[0]).has_value(), "a step cannot be retired");
  });
  e.spawn([&] {
    const auto tag = fence.tag();
    e.expect(tag != 0 && !fence.passed(tag), "no step is in flight");
    e.expect(fence.retire(before).has_value(), "a step cannot be retired");
    const auto begin = fence.begin();
    e.expect(begin.has_value(), "a step cannot begin");
    if (!begin) {
      return;
    }
    begun[1] = *begin;
    e.expect(fence.retire(begun[1]).has_value(), "a step cannot be retired");
  });
  e.run();
  e.expect(begun[0] != begun[1], "two steps have one number");
  e.expect(!fence.in_flight(), "the fence stands though every step has retired");
}

template <template <class> class Atomic>
void retirements_race(execution& e) {
  auto fence = step_fence<Atomic>{};
  const auto step = fence.begin().value();
  auto times_retired = std::array<bool, 2>{};
  for (auto thread = std::size_t{0}; thread < 2; ++thread) {
    e.spawn([&, thread] { times_retired[thread] = fence.retire(step).has_value(); });
  }
  e.run();
  e.expect(times_retired[0] != times_retired[1], "a step is retired once");
  e.expect(!fence.in_flight(), "the fence stands though every step has retired");
}

TEST_CASE("a step fence falls with the last step under every schedule", "[step_fence][scheduler]") {
  const auto limits = GENERATE(bounds{.preemptions = 4}, bounds{.preemptions = 2, .surprises = 2});
  for (const auto& body : {scenario{steps_race<scheduled>}, scenario{retirements_race<scheduled>}}) {
    CAPTURE(limits.surprises);
    check_complete(explorer{limits}.exhaustive(body));
  }
  CHECK_FALSE(explorer{}.exhaustive(steps_race<load_then_store>).failure.empty());
  CHECK_FALSE(explorer{}.exhaustive(retirements_race<load_then_store>).failure.empty());
  const auto stands = [](const scenario& body) {
    return explorer{with_stale_loads}.exhaustive(body).failure == "the fence stands though every step has retired";
  };
  CHECK(stands(steps_race<no_single_order<>::atomic>));
  CHECK(stands(steps_race<no_single_order<access::load>::atomic>));
  CHECK(stands(steps_race<no_single_order<access::compare_exchange>::atomic>));
}

/// One id comes and goes while another, of the same word, comes to stay.
template <class Set>
void bits_race(execution& e) {
  auto set = Set{128};
  set.insert(block_id{70});
  e.spawn([&] {
    set.erase(block_id{70});
    set.insert(block_id{70});
    set.erase(block_id{70});
  });
  e.spawn([&] { set.insert(block_id{71}); });
  e.run();
  auto found = std::set<block_id>{};
  set.for_each([&](block_id block) { found.insert(block); });
  e.expect(found == std::set{block_id{71}}, "a sweep misses an id, or finds one that was erased");
}

/// One id goes while another, of the same word, comes and is looked for.
template <class Set>
void erasure_races_sweep(execution& e) {
  auto set = Set{128};
  set.insert(block_id{70});
  e.spawn([&] { set.erase(block_id{70}); });
  e.spawn([&] {
    set.insert(block_id{71});
    auto found = false;
    set.for_each([&](block_id block) { found |= block == block_id{71}; });
    e.expect(found, "a sweep misses an id that is in the set throughout");
  });
  e.run();
}

/// The guarantee of `block_bitmap` for a thread that inserts and then reads a word, and one that writes it and then
/// sweeps.
template <template <class> class Atomic>
void insertion_races_sweep(execution& e) {
  auto set = block_bitmap<Atomic>{128};
  auto sweeping = scheduled<bool>{false};
  auto sees_sweep = false;
  auto found = false;
  e.spawn([&] {
    set.insert(block_id{70});
    sees_sweep = sweeping.load(std::memory_order_seq_cst);
  });
  e.spawn([&] {
    sweeping.store(true, std::memory_order_seq_cst);
    set.for_each([&](block_id) { found = true; });
  });
  e.run();
  e.expect(sees_sweep || found, "neither thread sees what the other wrote");
}

/// The set that the clock keeps, under the names of the other one. Only its exhaustive search misses nothing while
/// others are at work.
template <bool Exhaustively, template <class> class Atomic = scheduled>
class clock_bitmap {
 public:
  explicit clock_bitmap(std::int32_t num_blocks) : bits_(static_cast<std::size_t>(num_blocks)) {}

  void insert(block_id block) noexcept { bits_.set(to_index(block)); }
  void erase(block_id block) noexcept { bits_.reset(to_index(block)); }
  template <class Visit>
  void for_each(Visit&& visit) {
    for (auto at = find(0); at < 128; at = find(at + 1)) {
      visit(to_block(at));
    }
  }

 private:
  [[nodiscard]] std::size_t find(std::size_t from) const {
    return Exhaustively ? bits_.find_exhaustively(from) : bits_.find(from);
  }

  evictable_bitmap<Atomic> bits_;
};

/// A set that is swept by its summary; with or without a second look after a bit of that was cleared.
template <bool SecondLook>
class summarised_bitmap {
 public:
  explicit summarised_bitmap(std::int32_t) {}

  void insert(block_id block) noexcept {
    word_.fetch_or(bit(block), std::memory_order_seq_cst);
    summary_.fetch_or(1, std::memory_order_seq_cst);
  }
  void erase(block_id block) noexcept {
    if ((word_.fetch_and(~bit(block), std::memory_order_seq_cst) & ~bit(block)) == 0) {
      summary_.fetch_and(0, std::memory_order_seq_cst);
      if (SecondLook && word_.load(std::memory_order_seq_cst) != 0) {
        summary_.fetch_or(1, std::memory_order_seq_cst);
      }
    }
  }
  template <class Visit>
  void for_each(Visit&& visit) {
    const auto bits = summary_.load(std::memory_order_seq_cst) != 0 ? word_.load(std::memory_order_seq_cst) : 0;
    for (auto block = block_id{64}; block < block_id{128}; block = to_block(to_index(block) + 1)) {
      if ((bits & bit(block)) != 0) {
        visit(block);
      }
    }
  }

 private:
  static std::uint64_t bit(block_id block) noexcept { return std::uint64_t{1} << to_index(block) % 64; }

  scheduled<std::uint64_t> word_{0};
  scheduled<std::uint64_t> summary_{0};
};

TEST_CASE("a bitmap loses no id under any schedule", "[block_bitmap][scheduler]") {
  const auto limits = GENERATE(bounds{.preemptions = 6}, bounds{.preemptions = 3, .surprises = 2});
  for (const auto& body :
       {scenario{bits_race<block_bitmap<scheduled>>}, scenario{bits_race<clock_bitmap<false>>},
        scenario{erasure_races_sweep<block_bitmap<scheduled>>}, scenario{erasure_races_sweep<clock_bitmap<true>>},
        scenario{insertion_races_sweep<scheduled>}}) {
    check_complete(explorer{limits}.exhaustive(body));
  }
  CHECK_FALSE(explorer{}.exhaustive(bits_race<summarised_bitmap<false>>).failure.empty());
  CHECK_FALSE(explorer{{.preemptions = 3}}.exhaustive(erasure_races_sweep<summarised_bitmap<true>>).failure.empty());
}

TEST_CASE("a bitmap without a single order loses ids", "[block_bitmap][scheduler]") {
  const auto lost = [](const scenario& body) { return !explorer{with_stale_loads}.exhaustive(body).failure.empty(); };
  CHECK(lost(insertion_races_sweep<no_single_order<>::atomic>));
  CHECK(lost(insertion_races_sweep<no_single_order<access::fetch_or>::atomic>));
  CHECK(lost(insertion_races_sweep<no_single_order<access::load>::atomic>));

  CHECK(lost(bits_race<clock_bitmap<false, no_single_order<>::atomic>>));
  CHECK(lost(bits_race<clock_bitmap<false, no_single_order<access::fetch_or>::atomic>>));
  CHECK(lost(bits_race<clock_bitmap<false, no_single_order<access::fetch_and>::atomic>>));
  CHECK(lost(bits_race<clock_bitmap<false, no_single_order<access::load>::atomic>>));
}

}  // namespace
