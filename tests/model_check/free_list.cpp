#include "scene.hpp"

#include <pagedkv/pool/lock_free_free_list.hpp>

#include <array>
#include <cstdint>

namespace pagedkv::model_check {

/// Blocks whose contents belong to who holds them, in magazines of one or two, with caches for threads 1 and 2.
template <std::uint32_t MagazineSize>
class audited_list {
 public:
  explicit audited_list(std::int32_t num_blocks) : list_(num_blocks, 3), num_blocks_(num_blocks) {}

  block_id pop() {
    const auto block = list_.pop();
    if (block != no_block) {
      contents_[to_index(block)].write(1);
    }
    return block;
  }

  void push(block_id block) {
    if (block != no_block) {
      contents_[to_index(block)].write(2);
      list_.push(block);
    }
  }

  /// Afterwards every block is there once, but for those that are held.
  void check(std::int32_t num_held) {
    expect(list_.size() == num_blocks_ - num_held, "a wrong size");
    auto seen = std::array<bool, 8>{};
    for (auto i = num_held; i < num_blocks_; ++i) {
      const auto block = pop();
      expect(block != no_block, "a block is lost");
      expect(!seen[to_index(block)], "a block is handed out twice");
      seen[to_index(block)] = true;
    }
    expect(pop() == no_block, "a block is there twice");
  }

 private:
  lock_free_free_list<atomic, thread_numbers, MagazineSize> list_;
  std::int32_t num_blocks_;
  std::array<guarded_number, 8> contents_;
};

void pop_and_push() {
  auto list = audited_list<1>{2};
  at_once([&] { list.push(list.pop()); }, [&] { list.push(list.pop()); });
  list.check(0);
}

/// Each finds one, from wherever it is.
void each_finds_one() {
  auto list = audited_list<1>{2};
  at_once([&] { expect(list.pop() != no_block, "refused while a block was free"); },
          [&] { expect(list.pop() != no_block, "refused while a block was free"); });
  list.check(2);
}

/// The block is in the cache of one thread while the other looks for one.
void steal() {
  auto list = audited_list<1>{1};
  number_of_thread = 1;
  list.push(list.pop());
  number_of_thread = 0;
  auto held = std::array{no_block, no_block};
  at_once([&] { held[0] = list.pop(); }, [&] { held[1] = list.pop(); });
  expect((held[0] == no_block) != (held[1] == no_block), "one block for two threads, or for none");
  list.check(1);
}

/// One thread gives a block back, the other may find it, wherever it is by then.
void handover() {
  auto list = audited_list<1>{1};
  const auto held = list.pop();
  auto found = no_block;
  at_once([&] { list.push(held); }, [&] { found = list.pop(); });
  list.check(found == no_block ? 0 : 1);
}

void two_wait_for_one() {
  auto list = audited_list<1>{1};
  const auto held = list.pop();
  const auto use = [&] { list.push(list.pop()); };
  at_once([&] { list.push(held); }, use, use);
  list.check(0);
}

/// Thread 3 has no cache.
void without_a_cache() {
  auto list = audited_list<1>{1};
  const auto use = [&] { list.push(list.pop()); };
  at_once(use, [] {}, use);
  list.check(0);
}

}  // namespace pagedkv::model_check

int main() { pagedkv::model_check::PAGEDKV_SCENE(); }
