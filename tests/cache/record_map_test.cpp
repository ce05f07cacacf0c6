#include <pagedkv/cache/record_map.hpp>
#include <pagedkv/policy/locking/lock_free.hpp>
#include <pagedkv/policy/locking/single_thread.hpp>

#include <catch2/catch_test_macros.hpp>

#include "../support/allocation_count.hpp"

#include <cstdint>
#include <memory>
#include <set>
#include <vector>

using namespace pagedkv;

namespace {

using map = record_map<int, single_thread>;

[[nodiscard]] std::uint64_t add(map& records, int value) {
  auto* const cell = records.reserve("number of records").value();
  cell->record() = value;
  records.open(*cell);
  return map::id_of(*cell);
}

[[nodiscard]] bool holds(map& records, std::uint64_t id) {
  auto* const cell = records.find(id);
  return cell != nullptr && map::is_open(*cell, id);
}

void remove(map& records, std::uint64_t id) {
  auto* const cell = records.find(id);
  REQUIRE(cell != nullptr);
  records.close(*cell);
  records.abandon(*cell);
}

}  // namespace

TEST_CASE("an id names its record until it is closed, and never again", "[record_map]") {
  auto records = map{2};
  auto gone = std::set<std::uint64_t>{};
  for (auto i = 0; i < 1000; ++i) {
    const auto id = add(records, i);
    CHECK(records.find(id)->record() == i);
    CHECK(holds(records, id));
    CHECK(records.size() == 1);
    remove(records, id);
    CHECK_FALSE(holds(records, id));
    CHECK(gone.insert(id).second);
  }
  CHECK(records.size() == 0);
  for (const auto id : gone) {
    CHECK_FALSE(holds(records, id));
  }
}

TEST_CASE("ids that never were name nothing", "[record_map]") {
  auto records = map{100};
  for (const auto id :
       {std::uint64_t{0}, std::uint64_t{99}, std::uint64_t{100}, std::uint64_t{1} << 32, ~std::uint64_t{0}}) {
    CHECK_FALSE(holds(records, id));
  }
  const auto id = add(records, 1);
  CHECK_FALSE(holds(records, id + (std::uint64_t{1} << 32)));
  CHECK_FALSE(holds(records, id + (std::uint64_t{2} << 32)));
  CHECK_FALSE(holds(records, id & 0xffff'ffff));
}

TEST_CASE("ids of one map name nothing in another", "[record_map]") {
  auto maps = std::vector<std::unique_ptr<map>>{};
  auto ids = std::vector<std::uint64_t>{};
  for (auto i = 0; i < 30; ++i) {
    maps.push_back(std::make_unique<map>(1));
    ids.push_back(add(*maps.back(), i));
  }
  for (std::size_t i = 0; i < ids.size(); ++i) {
    for (std::size_t j = 0; j < maps.size(); ++j) {
      CHECK(holds(*maps[j], ids[i]) == (i == j));
    }
  }
  const auto* const before = maps[0].get();
  maps[0].reset();
  maps[0] = std::make_unique<map>(1);  // where the other one was, most likely
  CAPTURE(before, maps[0].get());
  static_cast<void>(add(*maps[0], 0));
  CHECK_FALSE(holds(*maps[0], ids[0]));
}

TEST_CASE("under lock_free a second thread at a record gets an error", "[record_map]") {
  using lock_free_map = record_map<int, lock_free>;
  using entry = lock_free_map::entry;
  auto records = lock_free_map{1};
  auto& cell = *records.reserve("number of records").value();
  records.open(cell);
  const auto id = lock_free_map::id_of(cell);
  CHECK(records.enter(cell, id) == entry::inside);
  CHECK(lock_free_map::is_open(cell, id));
  CHECK(lock_free_map::id_of(cell) == id);
  CHECK(records.enter(cell, id) == entry::busy);
  CHECK(records.enter(cell, id + (std::uint64_t{1} << 33)) == entry::stale);
  CHECK(records.enter(cell, id | std::uint64_t{1} << 63) == entry::stale);
  records.leave(cell, id);
  CHECK(records.enter(cell, id) == entry::inside);
  records.leave_closed(cell);
  CHECK(records.enter(cell, id) == entry::stale);
  records.open(cell);
  CHECK(lock_free_map::id_of(cell) != id);
  CHECK(records.enter(cell, lock_free_map::id_of(cell)) == entry::inside);
}

TEST_CASE("a full map reserves nothing until a record ends", "[record_map]") {
  constexpr auto capacity = 130;  // more than two chunks
  auto records = map{capacity};
  auto ids = std::vector<std::uint64_t>{};
  for (auto i = 0; i < capacity; ++i) {
    ids.push_back(add(records, i));
  }
  CHECK(records.reserve("number of records").error().message() == "limit reached: number of records is 131, limit 130");
  CHECK(records.size() == capacity);
  auto seen = std::set<int>{};
  records.for_each([&](const auto& cell) { seen.insert(cell.record()); });
  CHECK(seen.size() == static_cast<std::size_t>(capacity));
  remove(records, ids[70]);
  const auto again = add(records, 1000);
  CHECK(holds(records, again));
  CHECK_FALSE(holds(records, ids[70]));
  CHECK(records.reserve("number of records").error().code == error_code::limit_reached);
}

TEST_CASE("a map's memory grows with its records, and its capacity has links before them", "[record_map]") {
  const auto bytes_of = [](const map& of) { return static_cast<std::int64_t>(of.metadata_bytes()); };
  constexpr auto chunk = std::int64_t{64};  // records
  auto records = map{2 * chunk};
  const auto links = bytes_of(records);
  constexpr auto of_links = std::int64_t{sizeof(std::int32_t)};
  constexpr auto of_pointer = std::int64_t{sizeof(void*)};
  CHECK(links >= bytes_of(map{chunk}) + chunk * of_links + of_pointer);
  for (auto i = 0; i < chunk; ++i) {
    static_cast<void>(add(records, i));
  }
  const auto half = bytes_of(records);
  CHECK(half >= links + chunk * std::int64_t{sizeof(int)});
  static_cast<void>(add(records, 64));
  CHECK(bytes_of(records) - half == half - links);
  CHECK(bytes_of(map{3 * chunk}) < 3 * chunk * 2 * of_links);  // no record is among them
}

TEST_CASE("an entry that was reserved and abandoned was never open", "[record_map]") {
  auto records = map{1};
  auto* const cell = records.reserve("number of records").value();
  records.for_each([](const auto&) { FAIL("visits a cell that is not open"); });
  records.abandon(*cell);
  CHECK(records.size() == 0);
  CHECK(records.reserve("number of records").value() == cell);
}

TEST_CASE("an entry for which there is no memory is refused as such, and vacant again", "[record_map]") {
  auto records = map{65};  // two chunks
  for (auto i = 0; i < 64; ++i) {
    static_cast<void>(add(records, i));
  }
  test::fail_allocation(1);
  const auto refused = records.reserve("number of records");
  test::fail_allocation(0);
  CHECK(refused.error().message() == "out of memory: number of records is 64");
  CHECK(records.size() == 64);
  CHECK(holds(records, add(records, 1)));
  CHECK(records.reserve("number of records").error().code == error_code::limit_reached);
}
