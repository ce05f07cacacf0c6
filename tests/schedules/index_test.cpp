#include "../support/check_schedules.hpp"
#include "../support/mutants.hpp"
#include "../support/scheduled_policies.hpp"

#include <pagedkv/cache/record_map.hpp>
#include <pagedkv/policy/eviction/clock_sweep.hpp>
#include <pagedkv/policy/free_list/all.hpp>
#include <pagedkv/pool/block_pool.hpp>
#include <pagedkv/prefix/bucket_table.hpp>
#include <pagedkv/prefix/chain_match.hpp>
#include <pagedkv/prefix/prefix_index.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/generators/catch_generators_adapters.hpp>
#include <catch2/generators/catch_generators_random.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace {

using namespace pagedkv;
using namespace pagedkv::testing;

constexpr auto bucket_slots = 15;

/// A hash with this tag whose home is the first bucket, where it looks at this slot first.
constexpr std::uint64_t first_bucket(std::uint64_t tag, std::uint64_t slot = 0) {
  return tag << 48 | (slot * 0x1'0000 + bucket_slots - 1) / bucket_slots << 32;
}

template <class Table>
bool holds(const Table& table, std::uint64_t hash, block_id block) {
  return table.find(hash, [&](block_id found) { return found == block; }) == block;
}

/// The first bucket has room for one entry more; one thread fills it, the other empties it and fills it again.
template <template <class> class Atomic>
void inserts_race_in_a_full_bucket(execution& e) {
  constexpr auto last_slot = std::uint64_t{bucket_slots - 1};
  auto table = bucket_table<Atomic>{28};
  for (auto i = 0; i < bucket_slots - 1; ++i) {
    table.insert(first_bucket(static_cast<std::uint64_t>(i)), block_id{i});
  }
  auto contents = std::array<scheduled_data<int>, 2>{};
  e.spawn([&] {
    contents[0].write(1);
    table.insert(first_bucket(100, last_slot), block_id{20});
    e.expect(holds(table, first_bucket(100, last_slot), block_id{20}), "an entry is lost");
    table.erase(first_bucket(100, last_slot), block_id{20});
    e.expect(!holds(table, first_bucket(100, last_slot), block_id{20}), "an entry is found after it was erased");
  });
  e.spawn([&] {
    contents[1].write(1);
    table.insert(first_bucket(101, last_slot), block_id{21});
    e.expect(holds(table, first_bucket(101, last_slot), block_id{21}), "an entry is lost");
    static_cast<void>(table.find(first_bucket(100, last_slot), [&](block_id block) {
      e.expect(block == block_id{20}, "a wrong id");
      e.expect(contents[0].read() == 1, "an entry without what was written before it");
      return true;
    }));
  });
  e.run();
  for (auto i = 0; i < bucket_slots - 1; ++i) {
    e.expect(holds(table, first_bucket(static_cast<std::uint64_t>(i)), block_id{i}), "an entry is lost");
  }
  e.expect(holds(table, first_bucket(101, last_slot), block_id{21}), "an entry is lost");
  e.expect(!holds(table, first_bucket(100, last_slot), block_id{20}), "an entry is found after it was erased");
}

/// An entry that its bucket passed on is found, whatever comes and goes in that bucket.
template <template <class> class Atomic>
void entries_pass_an_overflowing_bucket(execution& e) {
  auto table = bucket_table<Atomic>{28};
  for (auto i = 0; i <= bucket_slots; ++i) {
    table.insert(first_bucket(static_cast<std::uint64_t>(i)), block_id{i});
  }
  e.spawn([&] {
    table.insert(first_bucket(200, 3), block_id{20});
    table.erase(first_bucket(3), block_id{3});
  });
  e.spawn([&] {
    e.expect(holds(table, first_bucket(bucket_slots), block_id{bucket_slots}), "an entry that was passed on is lost");
    table.erase(first_bucket(bucket_slots), block_id{bucket_slots});
    table.insert(first_bucket(201, 3), block_id{21});
    e.expect(holds(table, first_bucket(201, 3), block_id{21}), "an entry is lost");
  });
  e.run();
  e.expect(holds(table, first_bucket(200, 3), block_id{20}) && holds(table, first_bucket(201, 3), block_id{21}),
           "an entry is lost");
  e.expect(!holds(table, first_bucket(bucket_slots), block_id{bucket_slots}) &&
               !holds(table, first_bucket(3), block_id{3}),
           "an entry is found after it was erased");
  table.erase(first_bucket(200, 3), block_id{20});
  e.expect(holds(table, first_bucket(201, 3), block_id{21}), "an entry is lost with another");
}

/// As many compare-and-swaps as were asked for fail, as if other threads were quicker and then took back what they did.
template <class T>
class overtaken : public scheduled<T> {
  using base = scheduled<T>;

 public:
  using base::base;

  inline static auto num_overtaken = 0;

  bool compare_exchange_strong(T& expected, T desired, std::memory_order success, std::memory_order failure) noexcept {
    execution::active()->concerns_others();
    return num_overtaken > 0 ? (--num_overtaken, static_cast<void>(base::load(failure)), false)
                             : base::compare_exchange_strong(expected, desired, success, failure);
  }
};

/// One thread finds no room in either bucket and begins again, while another looks for what the first bucket passed on.
void insertion_begins_again(execution& e) {
  auto table = bucket_table<overtaken>{15};
  auto& num_overtaken = overtaken<std::uint32_t>::num_overtaken;
  num_overtaken = bucket_slots;
  table.insert(first_bucket(1), block_id{1});
  num_overtaken = 2 * bucket_slots;
  e.spawn([&] { table.insert(first_bucket(2), block_id{2}); });
  e.spawn([&] {
    e.expect(holds(table, first_bucket(1), block_id{1}), "an entry that was passed on is lost");
    table.erase(first_bucket(1), block_id{1});
  });
  e.run();
  e.expect(holds(table, first_bucket(2), block_id{2}), "an entry is lost");
  table.erase(first_bucket(2), block_id{2});
  e.expect(!holds(table, first_bucket(2), block_id{2}), "an entry is found after it was erased");
}

TEST_CASE("a bucket table loses and invents no entry under any schedule", "[bucket_table][scheduler]") {
  const auto limits = GENERATE(bounds{.preemptions = 3}, bounds{.preemptions = 1, .surprises = 1});
  for (const auto& body :
       {scenario{inserts_race_in_a_full_bucket<scheduled>}, scenario{entries_pass_an_overflowing_bucket<scheduled>},
        scenario{insertion_begins_again}}) {
    check_complete(explorer{limits}.exhaustive(body));
  }
}

/// Changes by an operand are a load and then a store.
template <class T>
class load_then_store_addition : public scheduled<T> {
  using base = scheduled<T>;

 public:
  using base::base;

  T fetch_add(T operand, std::memory_order order) noexcept {
    const auto before = base::load(order);
    base::store(static_cast<T>(before + operand), order);
    return before;
  }
};

TEST_CASE("bugs planted in a bucket table are caught", "[bucket_table][scheduler]") {
  // At random, since an exhaustive search takes long to come to the beginning of an execution.
  const auto caught = [](const scenario& body) {
    return !explorer{{.preemptions = 4}}.random(body, 1, 2'000).failure.empty();
  };
  CHECK(caught(inserts_race_in_a_full_bucket<load_then_store>));
  CHECK(caught(inserts_race_in_a_full_bucket<unreleased>));
  CHECK(caught(entries_pass_an_overflowing_bucket<load_then_store_addition>));
}

constexpr auto block_size = std::size_t{2};
constexpr auto tokens_a = std::array<token, block_size>{1, 2};
constexpr auto tokens_b = std::array<token, block_size>{3, 4};

/// A hash that is the same for all, so that only the comparison of tokens tells contents apart.
struct no_hash {
  [[nodiscard]] static std::uint64_t hash(std::uint64_t, std::span<const token>) noexcept { return first_bucket(1); }
};

/// Pool and prefix index as the cache joins them. Contents stand beside the tokens, and tell when a read of those is
/// not ordered after their writing.
template <template <class> class Atomic>
class audited_index {
  using locking = stepwise_lock_free<Atomic>;

 public:
  audited_index(execution& e, std::int32_t num_blocks)
      : execution_(e),
        pool_(num_blocks),
        index_(num_blocks, block_size, 7),
        contents_(static_cast<std::size_t>(num_blocks)) {}

  /// A block with these tokens as the first of a chain, in use once and published; `no_block` when there was none.
  [[nodiscard]] block_id publish(std::span<const token> tokens) { return publish(tokens, root(), tokens[0]); }
  /// The same after one whose link this was, and which had these tokens.
  [[nodiscard]] block_id publish_after(const chain_link& before, std::span<const token> first,
                                       std::span<const token> tokens) {
    return publish(tokens, before, behind(first[0], tokens[0]));
  }

  void release(block_id block) {
    if (block != no_block) {
      pool_.release(block, block_release{});
    }
  }

  /// Finds a block with these tokens and none with others. Returns it, held.
  [[nodiscard]] block_id find(std::span<const token> tokens) {
    const auto found = index_.find(root(), hash(tokens), tokens, leases{*this});
    if (found != no_block) {
      execution_.expect(contents_[to_index(found)].read() == tokens[0], "a hit on other contents");
      execution_.expect(std::ranges::equal(index_.tokens(found), tokens), "a hit on other tokens");
    }
    return found;
  }

  /// Looks up two blocks of a chain; returns how many were found.
  std::size_t find_chain(std::span<const token> first, std::span<const token> second) {
    auto tokens = std::vector<token>(first.begin(), first.end());
    tokens.insert(tokens.end(), second.begin(), second.end());
    auto expected = std::array{first[0], behind(first[0], second[0])};
    auto num_found = std::size_t{0};
    return match_chain(index_, root(), tokens, block_size, 2, leases{*this}, [&](block_id block) {
      execution_.expect(contents_[to_index(block)].read() == expected[num_found++], "a hit on other contents");
      release(block);
    });
  }

  [[nodiscard]] chain_link link(block_id block) const { return index_.link(block); }

  /// Runs the threads. Afterwards nobody holds anything, and what is published can be found.
  void run() {
    execution_.run();
    for (auto i = std::int32_t{0}; i < pool_.size(); ++i) {
      const auto state = pool_.state(block_id{i});
      execution_.expect(state.count() == 0 && !state.claimed(), "a reference or a claim is left over");
      if (state.published()) {
        execution_.expect(index_.reaches(block_id{i}), "a published block cannot be found");
        execution_.expect(index_.contents_agree(block_id{i}), "a published block has other tokens");
      }
    }
  }

 private:
  struct leases {
    audited_index& owner;

    [[nodiscard]] bool take(block_id block) const noexcept {
      const auto taken = owner.pool_.reference_published(block);
      if (taken) {
        static_cast<void>(owner.contents_[to_index(block)].read());
      }
      return taken;
    }
    void end(block_id block) const noexcept { owner.pool_.release(block, block_release{}); }
  };

  /// Contents that stand after others, as a number.
  [[nodiscard]] static token behind(token parent, token own) { return 100 * parent + own; }

  [[nodiscard]] block_id publish(std::span<const token> tokens, const chain_link& before, token contents) {
    auto block = std::array{no_block};
    auto num_evicted = std::int64_t{0};
    if (pool_.allocate(block, index_, timestamp{0}, num_evicted)) {
      contents_[to_index(block[0])].write(contents);
      std::ranges::copy(tokens, index_.tokens(block[0]).begin());
      const auto twin = index_.publish(block[0], before, index_.hash(before.hash, tokens), leases{*this});
      pool_.publish(block[0]);
      if (twin != no_block) {
        leases{*this}.end(twin);
      }
    }
    return block[0];
  }

  [[nodiscard]] chain_link root() const { return index_.root(salt::none); }
  [[nodiscard]] std::uint64_t hash(std::span<const token> tokens) const { return index_.hash(root().hash, tokens); }

  execution& execution_;
  block_pool<locking, scheduled_sweep<Atomic>, any_free_block> pool_;
  prefix_index<locking, no_hash> index_;
  std::vector<scheduled_data<int>> contents_;
};

/// One block that holds, in turn, one text and another with the same hash, while somebody looks for the first.
template <template <class> class Atomic>
void find_races_replacement(execution& e) {
  auto index = audited_index<Atomic>{e, 1};
  index.release(index.publish(tokens_a));
  e.spawn([&] { index.release(index.publish(tokens_b)); });
  e.spawn([&] {
    index.release(index.find(tokens_a));
    index.release(index.find(tokens_b));
  });
  index.run();
}

/// Every thread finds the blocks that a sequence holds, from their publication on.
template <template <class> class Atomic>
void find_follows_publication(execution& e) {
  auto index = audited_index<Atomic>{e, 2};
  auto published = scheduled<bool>{false};
  auto block = no_block;
  e.spawn([&] {
    block = index.publish(tokens_a);
    published.store(true, std::memory_order_release);
  });
  e.spawn([&] {
    const auto is_there = published.load(std::memory_order_acquire);
    const auto found = index.find(tokens_a);
    e.expect(!is_there || found != no_block, "a block that is in use and published is not found");
    index.release(found);
    index.release(index.publish(tokens_b));
  });
  e.run();
  index.release(block);
  index.run();
}

/// Equal contents published one after the other share an identity; at the same moment they may not, but each is found.
template <template <class> class Atomic>
void publications_race(execution& e) {
  auto index = audited_index<Atomic>{e, 3};
  const auto first = index.publish(tokens_a);
  for (auto thread = 0; thread < 2; ++thread) {
    e.spawn([&] {
      const auto block = index.publish(tokens_a);
      e.expect(index.link(block).identity == index.link(first).identity, "equal contents have two identities");
      index.release(block);
    });
  }
  e.run();
  index.release(first);
  index.run();
}

/// A look-up follows a link to a block that is evicted, reused for the same tokens elsewhere or for others in the same
/// place, and then for what it held before.
template <template <class> class Atomic, bool Elsewhere>
void link_races_reuse(execution& e) {
  auto index = audited_index<Atomic>{e, 2};
  const auto parent = index.publish(tokens_a);
  const auto before = index.link(parent);
  index.release(index.publish_after(before, tokens_a, tokens_b));
  auto last = no_block;  // none while the look-up holds the only block
  e.spawn([&] {
    index.release(Elsewhere ? index.publish(tokens_b) : index.publish_after(before, tokens_a, tokens_a));
    last = index.publish_after(before, tokens_a, tokens_b);
    index.release(last);
  });
  e.spawn([&] {
    e.expect(index.find_chain(tokens_a, tokens_b) >= 1, "a block that is in use and published is not found");
  });
  e.run();
  e.expect(last == no_block || index.find_chain(tokens_a, tokens_b) == 2, "what was published again is not found");
  index.release(parent);
  index.run();
}

/// A block is evicted and reused while a sequence publishes what continues its old contents: the block may then link to
/// what does not continue the new ones.
template <template <class> class Atomic>
void parent_races_reuse(execution& e) {
  auto index = audited_index<Atomic>{e, 2};
  const auto parent = index.publish(tokens_a);
  const auto before = index.link(parent);
  index.release(parent);
  e.spawn([&] { index.release(index.publish_after(before, tokens_a, tokens_b)); });
  e.spawn([&] {
    index.release(index.publish(tokens_b));
    index.release(index.publish(tokens_b));
    index.find_chain(tokens_b, tokens_b);
    index.find_chain(tokens_a, tokens_b);
  });
  index.run();
}

template <template <class> class Atomic>
std::vector<scenario> index_scenarios() {
  return {find_races_replacement<Atomic>, find_follows_publication<Atomic>, publications_race<Atomic>,
          link_races_reuse<Atomic, true>, link_races_reuse<Atomic, false>,  parent_races_reuse<Atomic>};
}

TEST_CASE("a prefix index finds exactly the published blocks under every schedule", "[prefix_index][scheduler]") {
  const auto limits = GENERATE(bounds{.preemptions = 2}, bounds{.preemptions = 1, .surprises = 1});
  for (const auto& body : index_scenarios<scheduled>()) {
    check_complete(explorer{limits}.exhaustive(body));
  }
}

TEST_CASE("a prefix index finds the published blocks under random schedules of three threads",
          "[prefix_index][scheduler][random]") {
  const auto seed = GENERATE(take(3, random(0U, 0xffff'ffffU)));
  const auto body = [](execution& e) {
    auto index = audited_index<scheduled>{e, 2};
    for (auto thread = 0; thread < 3; ++thread) {
      e.spawn([&, thread] {
        const auto& own = thread % 2 == 0 ? tokens_a : tokens_b;
        const auto& other = thread % 2 == 0 ? tokens_b : tokens_a;
        index.release(index.publish(own));
        index.release(index.find(other));
        index.release(index.publish(other));
      });
    }
    index.run();
  };
  check_passes(explorer{{.preemptions = 8, .surprises = 2}}.random(body, seed, 3'000));
}

TEST_CASE("bugs planted in the words of a prefix index are caught", "[prefix_index][scheduler]") {
  const auto caught = [](const std::vector<scenario>& all) {
    return std::ranges::any_of(
        all, [](const scenario& body) { return !explorer{{.preemptions = 2}}.exhaustive(body).failure.empty(); });
  };
  CHECK(caught(index_scenarios<load_then_store>()));
  CHECK(caught(index_scenarios<unreleased>()));
}

struct number {
  scheduled_data<int> value;
};

/// One thread ends a record and starts another, which takes its cell; the other uses the id of the first.
template <template <class> class Atomic>
void stale_id_races_reuse(execution& e) {
  auto map = record_map<number, stepwise_lock_free<Atomic>>{1};
  using entry = typename decltype(map)::entry;
  const auto start = [&](int value) {
    auto& cell = *map.reserve("number of records").value();
    cell.record().value.write(value);
    map.open(cell);
    return map.id_of(cell);
  };
  const auto first = start(1);
  e.spawn([&] {
    auto& cell = *map.find(first);
    if (map.enter(cell, first) == entry::inside) {
      map.leave_closed(cell);
      map.abandon(cell);
      const auto second = start(2);
      e.expect(second != first, "an id names two records");
      e.expect(map.enter(cell, second) == entry::inside, "a record is busy that only one thread knows");
      map.leave(cell, second);
    }
  });
  e.spawn([&] {
    auto& cell = *map.find(first);
    if (map.enter(cell, first) == entry::inside) {
      e.expect(cell.record().value.read() == 1, "a stale id leads to another record");
      map.leave(cell, first);
    }
  });
  e.run();
}

/// Both threads need the first chunk of cells.
template <template <class> class Atomic>
void first_records_race(execution& e) {
  auto map = record_map<number, stepwise_lock_free<Atomic>>{2};
  auto cells = std::array<typename decltype(map)::cell*, 2>{};
  for (auto thread = std::size_t{0}; thread < 2; ++thread) {
    e.spawn([&, thread] {
      cells[thread] = map.reserve("number of records").value();
      map.open(*cells[thread]);
    });
  }
  e.run();
  auto num_open = 0;
  map.for_each([&](const auto&) { ++num_open; });
  e.expect(cells[0] != cells[1] && num_open == 2, "a record is lost");
}

/// A generation is even or odd, and that is all.
template <class T>
class generation_of_one_bit : public scheduled<T> {
  using base = scheduled<T>;

 public:
  using base::base;

  void store(T value, std::memory_order order) noexcept {
    if constexpr (sizeof(T) == sizeof(std::uint32_t)) {
      base::store(static_cast<T>(value % 2), order);
    } else {
      base::store(value, order);
    }
  }
};

TEST_CASE("a record map tells a stale id under every schedule", "[record_map][scheduler]") {
  const auto limits = GENERATE(bounds{.preemptions = 4}, bounds{.preemptions = 2, .surprises = 1});
  for (const auto& body : {scenario{stale_id_races_reuse<scheduled>}, scenario{first_records_race<scheduled>}}) {
    check_complete(explorer{limits}.exhaustive(body));
  }
  CHECK_FALSE(explorer{}.exhaustive(stale_id_races_reuse<generation_of_one_bit>).failure.empty());
  CHECK_FALSE(explorer{}.exhaustive(stale_id_races_reuse<unreleased>).failure.empty());
  CHECK_FALSE(explorer{}.exhaustive(first_records_race<load_then_store>).failure.empty());
}

}  // namespace
