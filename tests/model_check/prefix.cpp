#include "audited_pool.hpp"

#include <pagedkv/prefix/bucket_table.hpp>
#include <pagedkv/prefix/prefix_index.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>

namespace pagedkv::model_check {

constexpr auto block_size = std::size_t{2};
constexpr auto tokens_a = std::array<token, block_size>{1, 2};
constexpr auto tokens_b = std::array<token, block_size>{3, 4};

/// All have one bucket, and begin there at one slot; the upper bits tell them apart.
constexpr std::uint64_t hash_with(std::uint64_t tag) { return tag << 48; }

struct one_hash {
  [[nodiscard]] static std::uint64_t hash(std::uint64_t, std::span<const token>) noexcept { return hash_with(1); }
};

class audited_table {
 public:
  void insert(std::uint64_t tag, block_id block) {
    contents_[to_index(block)].write(static_cast<int>(tag));
    table_.insert(hash_with(tag), block);
  }
  void erase(std::uint64_t tag, block_id block) { table_.erase(hash_with(tag), block); }

  bool finds(std::uint64_t tag, block_id block) {
    const auto found = table_.find(hash_with(tag), [&](block_id each) {
      expect(contents_[to_index(each)].read() == static_cast<int>(tag), "an entry without what was written before it");
      return each == block;
    });
    return found == block;
  }

 private:
  bucket_table<atomic> table_{2};
  std::array<guarded_number, 3> contents_;
};

void two_insertions() {
  auto table = audited_table{};
  at_once([&] { table.insert(1, block_id{0}); }, [&] { table.insert(2, block_id{1}); });
  expect(table.finds(1, block_id{0}) && table.finds(2, block_id{1}), "an entry is lost");
}

void insertion_and_look_up() {
  auto table = audited_table{};
  table.insert(2, block_id{1});
  at_once([&] { table.insert(1, block_id{0}); },
          [&] {
            static_cast<void>(table.finds(1, block_id{0}));
            expect(table.finds(2, block_id{1}), "an entry is lost for a moment");
          });
}

void insertion_and_removal_and_look_up() {
  auto table = audited_table{};
  table.insert(1, block_id{0});
  table.insert(2, block_id{1});
  at_once([&] { table.insert(3, block_id{2}); }, [&] { table.erase(1, block_id{0}); },
          [&] { expect(table.finds(2, block_id{1}), "an entry is lost for a moment"); });
  expect(!table.finds(1, block_id{0}) && table.finds(3, block_id{2}), "an entry is lost, or stays");
}

/// A pool and an index as a cache joins them; the contents of a block are its first token.
class audited_index {
 public:
  audited_index() {
    for (auto& block : blocks_) {
      auto num_evicted = std::int64_t{0};
      static_cast<void>(pool_.allocate({&block, 1}, index_, timestamp{0}, num_evicted));
    }
  }

  /// Publishes one of two blocks, which is in use.
  void publish(std::size_t which, std::span<const token> tokens) {
    const auto block = blocks_[which];
    contents_[to_index(block)].write(tokens[0]);
    std::ranges::copy(tokens, index_.tokens(block).begin());
    const auto root = index_.root(salt::none);
    const auto twin = index_.publish(block, root, index_.hash(root.hash, tokens), leases{*this});
    pool_.publish(block);
    if (twin != no_block) {
      leases{*this}.end(twin);
    }
  }

  void release(std::size_t which) { pool_.release(blocks_[which], block_release{}); }

  void evict() {
    auto victim = std::array{no_block};
    if (pool_.evict(victim, index_, timestamp{0}, 0) == 1) {
      contents_[to_index(victim[0])].write(0);
    }
  }

  bool finds(std::span<const token> tokens) {
    const auto root = index_.root(salt::none);
    const auto found = index_.find(root, index_.hash(root.hash, tokens), tokens, leases{*this});
    if (found == no_block) {
      return false;
    }
    expect(contents_[to_index(found)].read() == tokens[0], "a hit on other contents");
    leases{*this}.end(found);
    return true;
  }

 private:
  struct leases {
    audited_index& owner;

    [[nodiscard]] bool take(block_id block) const noexcept { return owner.pool_.reference_published(block); }
    void end(block_id block) const noexcept { owner.pool_.release(block, block_release{}); }
  };

  block_pool<locking, basic_clock_sweep<1, atomic, thread_numbers>, any_free_block> pool_{2};
  prefix_index<locking, one_hash> index_{2, block_size, 7};
  std::array<block_id, 2> blocks_{};
  std::array<guarded_number, 2> contents_;
};

void publication_and_look_up() {
  auto index = audited_index{};
  at_once([&] { index.publish(0, tokens_a); }, [&] { static_cast<void>(index.finds(tokens_a)); });
  expect(index.finds(tokens_a), "what is published is not found");
}

void two_publications() {
  auto index = audited_index{};
  at_once([&] { index.publish(0, tokens_a); }, [&] { index.publish(1, tokens_b); });
  expect(index.finds(tokens_a) && index.finds(tokens_b), "what is published is not found");
}

void eviction_and_look_up() {
  auto index = audited_index{};
  index.publish(0, tokens_a);
  index.release(0);
  at_once([&] { index.evict(); }, [&] { static_cast<void>(index.finds(tokens_a)); });
}

}  // namespace pagedkv::model_check

int main() { pagedkv::model_check::PAGEDKV_SCENE(); }
