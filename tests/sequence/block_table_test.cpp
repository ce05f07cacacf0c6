#include "../support/allocation_count.hpp"

#include <pagedkv/sequence/block_table.hpp>

#include <catch2/catch_test_macros.hpp>

#include <algorithm>
#include <array>
#include <limits>
#include <vector>

using namespace pagedkv;

namespace {

[[nodiscard]] block_table table_of(std::vector<int> blocks) {
  auto table = block_table{};
  for (const auto block : blocks) {
    table.push_back(block_id{block});
  }
  return table;
}

}  // namespace

TEST_CASE("only changes to older entries change a table's version", "[block_table]") {
  auto table = table_of({4, 5, 6});
  const auto version = table.version();
  table.push_back(block_id{7});
  static_cast<void>(table.extend(2));
  table.withdraw(2);
  CHECK(table.version() == version);
  CHECK(table.size() == 4);

  table.replace(1, block_id{9});
  CHECK(table.version() == version + 1);
  CHECK(table[1] == block_id{9});
  table.drop_before(2);
  CHECK(table.version() == version + 2);
  table.shrink(3);
  CHECK(table.version() == version + 3);
  const auto other = table_of({1});
  table.copy(other, other.size());
  CHECK(table.version() == version + 4);
  table.clear();
  CHECK(table.version() == version + 5);
}

TEST_CASE("dropped entries keep the positions of later ones", "[block_table]") {
  auto table = table_of({4, 5, 6});
  table.drop_before(2);
  CHECK(table.num_dropped() == 2);
  CHECK(table.size() == 3);
  CHECK(table[0] == no_block);
  CHECK(table[1] == no_block);
  CHECK(std::ranges::equal(table.held(), std::array{block_id{6}}));
  table.drop_before(1);
  CHECK(table.num_dropped() == 2);
  auto copy = block_table{};
  copy.copy(table, table.size());
  CHECK(copy.num_dropped() == 2);
  CHECK(std::ranges::equal(copy.all(), table.all()));
  table.clear();
  CHECK(table.num_dropped() == 0);
  CHECK(table.held().empty());
}

TEST_CASE("more room than there is memory for is refused", "[block_table]") {
  auto table = table_of({1, 2});
  CHECK_FALSE(table.try_reserve(std::numeric_limits<std::size_t>::max()));
  test::fail_allocation(1);
  const bool reserved = table.try_reserve(100);
  test::fail_allocation(0);
  CHECK_FALSE(reserved);
  CHECK(std::ranges::equal(table.all(), std::array{block_id{1}, block_id{2}}));
  REQUIRE(table.try_reserve(100));
  const auto bytes = table.usage(0).bytes;
  CHECK(bytes >= 100 * static_cast<std::int64_t>(sizeof(block_id)));
  static_cast<void>(table.extend(98));
  CHECK(table.usage(0).bytes == bytes);
}

TEST_CASE("slots run through blocks in the table's order", "[slot_mapping]") {
  const auto table = table_of({7, 2, 9});
  auto slots = std::vector<slot>(9);
  fill_slots(table, 4, 2, slots);
  CHECK(slots ==
        std::vector<slot>{slot{30}, slot{31}, slot{8}, slot{9}, slot{10}, slot{11}, slot{36}, slot{37}, slot{38}});
  fill_slots(table, 4, 12, {});
}

TEST_CASE("slots of dropped blocks say skip", "[slot_mapping]") {
  auto table = table_of({7, 2, 9});
  table.drop_before(2);
  auto slots = std::vector<slot>(12);
  fill_slots(table, 4, 0, slots);
  CHECK(std::all_of(slots.begin(), slots.begin() + 8, [](slot s) { return s == skip_slot; }));
  CHECK(slots[8] == slot{36});
  CHECK(slots[11] == slot{39});
}

TEST_CASE("slots have 64 bits", "[slot_mapping]") {
  constexpr auto largest = std::numeric_limits<std::int32_t>::max();
  const auto table = table_of({0, largest - 1});
  CHECK(make_slot(block_id{largest - 1}, 512, 511) == slot{(std::int64_t{largest} - 1) * 512 + 511});
  auto slots = std::vector<slot>(2);
  fill_slots(table, 512, 1022, slots);
  CHECK(slots[0] == slot{(std::int64_t{largest} - 1) * 512 + 510});
  CHECK(slots[1] == slot{(std::int64_t{largest} - 1) * 512 + 511});
}
