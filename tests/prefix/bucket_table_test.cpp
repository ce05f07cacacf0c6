#include <pagedkv/policy/locking/parts/unsynchronized.hpp>
#include <pagedkv/prefix/bucket_table.hpp>

#include <catch2/catch_get_random_seed.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include <algorithm>
#include <map>
#include <random>
#include <vector>

using namespace pagedkv;

namespace {

using table = bucket_table<unsynchronized>;

/// Every id that a look-up offers. The other kind of look-up offers the same ones, in the same order.
[[nodiscard]] std::vector<block_id> offered(const table& t, std::uint64_t hash) {
  auto found = std::vector<block_id>{};
  auto found_alike = std::vector<block_id>{};
  const auto refused = [](std::vector<block_id>& to) {
    return [&to](block_id block) {
      to.push_back(block);
      return false;
    };
  };
  CHECK(t.find(hash, refused(found)) == no_block);
  CHECK(t.find_if_any(hash, refused(found_alike)) == no_block);
  CHECK(found == found_alike);
  return found;
}

template <class Table>
[[nodiscard]] bool finds(const Table& t, std::uint64_t hash, block_id wanted) {
  const auto is_wanted = [&](block_id block) { return block == wanted; };
  const auto found = t.find(hash, is_wanted);
  CHECK(t.find_if_any(hash, is_wanted) == found);
  return found == wanted;
}

/// A word that counts the reads of all words of its kind. A given number of its compare-and-swaps fail, as if other
/// threads had changed the word and changed it back.
template <class T>
class watched : public unsynchronized<T> {
 public:
  using unsynchronized<T>::unsynchronized;

  inline static auto num_loads = 0;
  inline static auto num_overtaken = 0;

  [[nodiscard]] T load(std::memory_order order) const noexcept {
    ++num_loads;
    return unsynchronized<T>::load(order);
  }
  bool compare_exchange_strong(T& expected, T desired, std::memory_order success, std::memory_order failure) noexcept {
    return num_overtaken > 0 ? (--num_overtaken, false)
                             : unsynchronized<T>::compare_exchange_strong(expected, desired, success, failure);
  }
};

/// Average number of words that an unsuccessful look-up reads.
[[nodiscard]] double cost_of_a_miss(const bucket_table<watched>& t, std::mt19937_64& random) {
  constexpr auto num_misses = 20'000;
  const auto before = watched<std::uint32_t>::num_loads + watched<std::uint64_t>::num_loads;
  for (auto i = 0; i < num_misses; ++i) {
    static_cast<void>(t.find(random(), [](block_id) { return false; }));
  }
  return double(watched<std::uint32_t>::num_loads + watched<std::uint64_t>::num_loads - before) / num_misses;
}

}  // namespace

TEST_CASE("an empty table finds nothing", "[bucket_table]") {
  const auto empty = table{1};
  CHECK(offered(empty, 0).empty());
  CHECK(offered(empty, ~std::uint64_t{0}).empty());
}

TEST_CASE("a look-up ends at the first id that is accepted", "[bucket_table]") {
  auto t = table{4};
  t.insert(7, block_id{0});
  t.insert(7, block_id{1});
  auto calls = 0;
  CHECK(t.find(7, [&](block_id) { return ++calls == 1; }) != no_block);
  CHECK(calls == 1);
  CHECK(offered(t, 7).size() == 2);
}

TEST_CASE("a full table of any hashes finds all, and forgets exactly what is erased", "[bucket_table][random]") {
  const auto num_blocks = GENERATE(1, 6, 7, 8, 29, 500);
  const auto num_hashes = GENERATE(std::uint64_t{1}, std::uint64_t{3}, ~std::uint64_t{0});
  const auto seed = Catch::getSeed();
  CAPTURE(num_blocks, num_hashes, seed);
  auto random = std::mt19937_64{seed};
  auto t = table{num_blocks};
  auto hashes = std::map<block_id, std::uint64_t>{};
  for (auto i = 0; i < num_blocks; ++i) {
    // Few hashes also mean few buckets: long runs of buckets that pass entries on.
    hashes[block_id{i}] = random() % num_hashes * 0x1'0000'0001;
  }
  for (auto round = 0; round < 3; ++round) {
    for (const auto& [block, hash] : hashes) {
      t.insert(hash, block);
    }
    auto order = std::vector<block_id>{};
    for (const auto& [block, hash] : hashes) {
      CHECK(finds(t, hash, block));
      order.push_back(block);
    }
    std::ranges::shuffle(order, random);
    for (auto i = std::size_t{0}; i < order.size(); ++i) {
      t.erase(hashes[order[i]], order[i]);
      CHECK_FALSE(finds(t, hashes[order[i]], order[i]));
      if (i % 16 == 0) {
        CHECK(std::all_of(order.begin() + static_cast<std::ptrdiff_t>(i) + 1, order.end(),
                          [&](block_id block) { return finds(t, hashes[block], block); }));
      }
    }
    for (const auto& [block, hash] : hashes) {
      CHECK(offered(t, hash).empty());
    }
  }
}

TEST_CASE("random insertions and erasures agree with a map", "[bucket_table][random]") {
  const auto seed = Catch::getSeed();
  CAPTURE(seed);
  auto random = std::mt19937_64{seed};
  constexpr auto num_blocks = 60;
  auto t = table{num_blocks};
  auto model = std::map<block_id, std::uint64_t>{};
  for (auto i = 0; i < 20'000; ++i) {
    const auto block = block_id{static_cast<std::int32_t>(random() % num_blocks)};
    if (const auto there = model.find(block); there != model.end()) {
      t.erase(there->second, block);
      model.erase(there);
    } else {
      model[block] = random() % 5 << (random() % 2 * 32);
      t.insert(model[block], block);
    }
    const auto asked = random() % 5 << (random() % 2 * 32);
    const auto found = offered(t, asked);
    for (const auto& [id, hash] : model) {
      REQUIRE((hash != asked || std::ranges::count(found, id) == 1));
    }
    REQUIRE(std::ranges::all_of(found, [&](block_id id) { return model.contains(id); }));
  }
}

TEST_CASE("a full table serves misses as fast when all its entries have been replaced many times",
          "[bucket_table][random]") {
  const auto seed = Catch::getSeed();
  CAPTURE(seed);
  auto random = std::mt19937_64{seed};
  constexpr auto num_blocks = std::int32_t{20'000};
  auto t = bucket_table<watched>{num_blocks};
  auto hashes = std::vector<std::uint64_t>(num_blocks);
  for (auto i = 0; i < num_blocks; ++i) {
    hashes[to_index(block_id{i})] = random();
    t.insert(hashes[to_index(block_id{i})], block_id{i});
  }
  const auto fresh = cost_of_a_miss(t, random);
  for (auto i = 0; i < 20 * num_blocks; ++i) {
    const auto block = block_id{static_cast<std::int32_t>(random() % num_blocks)};
    t.erase(hashes[to_index(block)], block);
    hashes[to_index(block)] = random();
    t.insert(hashes[to_index(block)], block);
  }
  const auto aged = cost_of_a_miss(t, random);
  CAPTURE(fresh, aged);
  CHECK(aged < 1.25 * fresh);
}

TEST_CASE("an insertion that finds no room in any bucket leaves no count behind", "[bucket_table]") {
  auto random = std::mt19937_64{};
  auto t = bucket_table<watched>{15};
  const auto empty = cost_of_a_miss(t, random);
  watched<std::uint32_t>::num_overtaken = watched<std::uint64_t>::num_overtaken = 50;
  t.insert(7, block_id{0});
  CHECK(finds(t, 7, block_id{0}));
  t.erase(7, block_id{0});
  watched<std::uint32_t>::num_overtaken = watched<std::uint64_t>::num_overtaken = 0;
  CHECK(cost_of_a_miss(t, random) == empty);
}
