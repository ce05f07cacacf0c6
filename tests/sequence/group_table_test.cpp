#include <pagedkv/sequence/group_table.hpp>

#include "../support/printing.hpp"

#include <catch2/catch_get_random_seed.hpp>
#include <catch2/catch_test_macros.hpp>

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <random>
#include <vector>

using namespace pagedkv;

namespace {

void append(group_table& table, std::initializer_list<int> blocks) {
  REQUIRE(table.try_reserve(table.all().size() + blocks.size()));
  std::ranges::transform(blocks, table.extend(blocks.size()).begin(), [](int block) { return block_id{block}; });
}

std::vector<int> entries(const group_table& table) {
  auto found = std::vector<int>{};
  std::ranges::transform(table.all(), std::back_inserter(found),
                         [](block_id block) { return static_cast<int>(block); });
  return found;
}

}  // namespace

TEST_CASE("a table without drops has an entry for each place", "[group_table]") {
  auto table = group_table{};
  append(table, {5, 6, 7});
  CHECK(table.end() == 3);
  CHECK(table[1] == block_id{6});
  CHECK_FALSE(table.is_held(3));
  CHECK(table.num_skipped() == 0);

  auto slots = std::array<slot, 4>{};
  fill_slots(table, 4, 3, slots);
  CHECK(slots == std::array{slot{23}, slot{24}, slot{25}, slot{26}});
}

TEST_CASE("dropping keeps places, and the table begins at the first kept block", "[group_table]") {
  auto table = group_table{};
  append(table, {5, 6, 7, 8});
  const auto version = table.version();
  auto dropped = std::vector<int>{};
  table.drop_before(2, 0, [&](block_id block, std::size_t) { dropped.push_back(static_cast<int>(block)); });
  CHECK(dropped == std::vector{6, 5});
  CHECK(table.version() != version);
  CHECK(entries(table) == std::vector{7, 8});
  CHECK(table.first() == 2);
  CHECK(table.num_skipped() == 2);
  CHECK(table[1] == no_block);
  CHECK(table[3] == block_id{8});

  append(table, {9});
  CHECK(table[4] == block_id{9});
  table.shrink(3);
  CHECK(entries(table) == std::vector{7});
  auto slots = std::array<slot, 3>{};
  fill_slots(table, 4, 7, slots);
  CHECK(slots == std::array{skip_slot, slot{28}, slot{29}});
}

TEST_CASE("sinks stay in front", "[group_table]") {
  auto table = group_table{};
  append(table, {5, 6, 7, 8});
  const auto ignore = [](block_id, std::size_t) {};
  table.drop_before(1, 2, ignore);
  CHECK(table.all().size() == 4);
  table.drop_before(3, 2, ignore);
  CHECK(entries(table) == std::vector{5, 6, 8});
  CHECK(table[1] == block_id{6});
  CHECK(table[2] == no_block);
  CHECK(table[3] == block_id{8});
  CHECK(table.num_skipped() == 1);
  table.replace(3, block_id{10});
  CHECK(entries(table) == std::vector{5, 6, 10});

  auto copy = group_table{};
  REQUIRE(copy.try_reserve(3));
  copy.copy(table);
  CHECK(entries(copy) == entries(table));
  CHECK(copy.first() == table.first());

  copy.start(2, 7);
  append(copy, {1, 2, 3});
  CHECK(copy[1] == block_id{2});
  CHECK(copy[7] == block_id{3});
  copy.start(2, 1);  // the window begins within the sinks
  append(copy, {1, 2, 3});
  CHECK(copy[2] == block_id{3});
}

TEST_CASE("a table of a window is as long as its window", "[group_table][random]") {
  auto random = std::mt19937{Catch::getSeed()};
  auto table = group_table{};
  auto model = std::map<std::size_t, block_id>{};
  const auto num_sinks = std::size_t{3};
  const auto window = std::size_t{8};
  for (auto end = std::size_t{0}; end < 2000;) {
    REQUIRE(table.try_reserve(table.all().size() + 4));
    for (auto& block : table.extend(1 + random() % 4)) {
      block = to_block(random() % 1000);
      model[end++] = block;
    }
    const auto first = end - std::min(end, window);
    table.drop_before(first, num_sinks, [&](block_id block, std::size_t place) {
      REQUIRE(model.at(place) == block);
      model.erase(place);
    });
    REQUIRE(table.all().size() <= num_sinks + window);
    REQUIRE(table.end() == end);
    for (auto place = std::size_t{0}; place < end; ++place) {
      const auto found = model.find(place);
      REQUIRE(table[place] == (found == model.end() ? no_block : found->second));
    }
    const auto from = random() % (end + 1);
    auto left = model;
    table.for_each_from(from, [&](block_id block, std::size_t place, block_id above) {
      REQUIRE(place == std::prev(left.end())->first);
      REQUIRE(block == table[place]);
      REQUIRE(above == (place == 0 ? no_block : table[place - 1]));
      left.erase(place);
    });
    REQUIRE(left.lower_bound(from) == left.end());
  }
}
