#include "scene.hpp"

#include <pagedkv/router/worker_index.hpp>

#include <cstdint>

namespace pagedkv::model_check {

constexpr auto former_key = std::uint64_t{1};
constexpr auto new_key = std::uint64_t{3};  // which finds the same entry free first

/// An entry gets another key and another worker while a thread asks who holds a block.
template <std::int32_t New, bool AsksForFormer>
void query_while_an_entry_changes() {
  auto index = basic_worker_index<atomic>{{.num_blocks = 1, .num_workers = New + 1}};
  index.add(worker_id{0}, former_key);
  at_once(
      [&] {
        index.remove(worker_id{0}, former_key);
        expect(index.add(worker_id{New}, new_key), "no room");
      },
      [&] {
        const bool holds = AsksForFormer ? index.holds(worker_id{New}, former_key) : index.holds(worker_id{0}, new_key);
        expect(!holds, "a worker is named that never held the block");
      });
}

void query_for_the_former_key() { query_while_an_entry_changes<1, true>(); }
void query_for_the_new_key() { query_while_an_entry_changes<1, false>(); }

/// Workers add the same block at once: both hold it.
void two_add_one_block() {
  auto index = basic_worker_index<atomic>{{.num_blocks = 1, .num_workers = 2}};
  at_once([&] { expect(index.add(worker_id{0}, former_key), "no room"); },
          [&] { expect(index.add(worker_id{1}, former_key), "no room"); });
  expect(index.holds(worker_id{0}, former_key) && index.holds(worker_id{1}, former_key), "an addition is lost");
}

void three_add_and_remove() {
  auto index = basic_worker_index<atomic>{{.num_blocks = 1, .num_workers = 3}};
  index.add(worker_id{2}, former_key);
  at_once([&] { index.add(worker_id{0}, former_key); }, [&] { index.add(worker_id{1}, new_key); },
          [&] { index.remove(worker_id{2}, former_key); });
  expect(index.holds(worker_id{0}, former_key) && index.holds(worker_id{1}, new_key), "an addition is lost");
  expect(!index.holds(worker_id{2}, former_key), "a removal is lost");
}

}  // namespace pagedkv::model_check

int main() { pagedkv::model_check::PAGEDKV_SCENE(); }
