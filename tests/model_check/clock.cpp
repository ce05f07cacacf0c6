#include "scene.hpp"

#include <pagedkv/policy/eviction/clock_sweep.hpp>

#include <array>

namespace pagedkv::model_check {

/// Blocks that are in use or evictable by words of their own, as a pool has them.
class evictable_blocks {
 public:
  explicit evictable_blocks(std::int32_t num_blocks) : order_(num_blocks) {}

  void release(block_id block) {
    in_use_[to_index(block)].store(false, std::memory_order_seq_cst);
    order_.insert(block, block_release{});
  }

  block_id evict() {
    return order_.victim(
        [&](block_id block, auto...) {
          auto evictable = false;
          return in_use_[to_index(block)].compare_exchange_strong(evictable, true, std::memory_order_seq_cst,
                                                                  std::memory_order_seq_cst)
                     ? eviction_answer::taken
                     : eviction_answer::in_use;
        },
        timestamp{0});
  }

 private:
  basic_clock_sweep<1, atomic, thread_numbers> order_;
  std::array<checked_atomic<bool>, 2> in_use_{true, true};
};

/// A block that is released while another thread searches is found by that search or a later one.
void release_and_search() {
  auto blocks = evictable_blocks{1};
  auto found = no_block;
  at_once([&] { blocks.release(block_id{0}); }, [&] { found = blocks.evict(); });
  expect(found != no_block || blocks.evict() != no_block, "an evictable block is not found");
}

void two_searches() {
  auto blocks = evictable_blocks{2};
  blocks.release(block_id{0});
  blocks.release(block_id{1});
  auto found = std::array{no_block, no_block};
  at_once([&] { found[0] = blocks.evict(); }, [&] { found[1] = blocks.evict(); });
  expect(found[0] != found[1] && found[0] != no_block && found[1] != no_block, "not each has one");
}

void two_releases_and_a_search() {
  auto blocks = evictable_blocks{2};
  auto found = no_block;
  at_once([&] { blocks.release(block_id{0}); }, [&] { blocks.release(block_id{1}); }, [&] { found = blocks.evict(); });
  const auto left = found == no_block ? 2 : 1;
  for (auto i = 0; i < left; ++i) {
    expect(blocks.evict() != no_block, "an evictable block is not found");
  }
}

}  // namespace pagedkv::model_check

int main() { pagedkv::model_check::PAGEDKV_SCENE(); }
