#include "audited_pool.hpp"

#include <pagedkv/cache/record_map.hpp>

#include <cstdint>

namespace pagedkv::model_check {

struct number {
  guarded_number value;
};

class audited_records {
 public:
  explicit audited_records(std::int32_t capacity) : records_(capacity) {}

  std::uint64_t start(int value) {
    auto& cell = *records_.reserve("number of records").value();
    cell.record().value.write(value);
    return records_.open(cell);
  }

  /// False where another thread is inside, or the record has ended.
  bool end(std::uint64_t id) {
    auto& cell = *records_.find(id);
    if (records_.enter(cell, id) != map::entry::inside) {
      return false;
    }
    records_.leave_closed(cell);
    records_.abandon(cell);
    return true;
  }

  void use(std::uint64_t id, int value) {
    auto& cell = *records_.find(id);
    if (records_.enter(cell, id) == map::entry::inside) {
      expect(cell.record().value.read() == value, "a stale id leads to another record");
      cell.record().value.write(value);
      records_.leave(cell, id);
    }
  }

  int num_open() {
    auto count = 0;
    records_.for_each([&](const auto&) { ++count; });
    return count;
  }

 private:
  using map = record_map<number, locking>;

  map records_;
};

/// A record ends, and its cell is another one's, while a thread uses the former id.
void stale_id() {
  auto records = audited_records{1};
  const auto first = records.start(1);
  at_once(
      [&] {
        if (records.end(first)) {
          expect(records.start(2) != first, "an id names two records");
        }
      },
      [&] { records.use(first, 1); });
}

void two_users() {
  auto records = audited_records{1};
  const auto id = records.start(1);
  at_once([&] { records.use(id, 1); }, [&] { records.use(id, 1); });
}

void three_users() {
  auto records = audited_records{1};
  const auto id = records.start(1);
  at_once([&] { records.use(id, 1); }, [&] { records.use(id, 1); }, [&] { records.end(id); });
}

/// The first records make the memory that both lie in.
void first_records() {
  auto records = audited_records{2};
  at_once([&] { records.start(1); }, [&] { records.start(2); });
  expect(records.num_open() == 2, "a record is lost");
}

}  // namespace pagedkv::model_check

int main() { pagedkv::model_check::PAGEDKV_SCENE(); }
