#include "policies.hpp"
#include "scoreboard.hpp"

#include <benchmark/benchmark.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace {

using namespace pagedkv;
using namespace pagedkv::bench;

constexpr auto num_blocks = 16'384;
constexpr auto tokens_per_sequence = std::int64_t{4'096};

/// Each thread appends to a sequence of its own, token by token, and starts a new one when it is long.
template <locking Locking>
void append(benchmark::State& state) {
  static auto cache = std::unique_ptr<cache_under<Locking>>{};
  static auto ids = std::vector<sequence_id>{};
  if (state.thread_index() == 0) {
    cache = std::make_unique<cache_under<Locking>>(config_of(num_blocks));
    ids.clear();
    for (auto i = 0; i < state.threads(); ++i) {
      ids.push_back(cache->create_sequence({}, {.expected_tokens = tokens_per_sequence}).value().id);
    }
  }
  auto score = scoreboard{state, "append", Locking::name};
  auto num_tokens = std::int64_t{0};
  for (auto _ : state) {
    const auto id = ids[static_cast<std::size_t>(state.thread_index())];
    if (num_tokens == tokens_per_sequence) {
      cache->truncate(id, 0).value();
      num_tokens = 0;
    }
    if (!cache->append(id, static_cast<token>(num_tokens++))) {
      state.SkipWithError("the cache is full");
      break;
    }
  }
  score.finish(1);
}

/// An append written by hand for one thread: finds the sequence by an id that can be stale, stores, counts. Blocks come
/// from a stack and return to it.
class by_hand {
 public:
  by_hand() : tokens_(std::size_t{num_blocks} * block_size), sequences_(64) {
    for (auto block = num_blocks; block-- > 0;) {
      free_.push_back(block);
    }
  }

  [[nodiscard]] bool append(std::uint64_t id, token next) {
    auto& s = sequences_[id & 0xffff'ffff];
    if (s.generation != id >> 32) {
      return false;
    }
    if (s.room == 0) {
      if (free_.empty()) {
        return false;
      }
      s.blocks.push_back(free_.back());
      free_.pop_back();
      s.room = block_size;
      s.next = tokens_.data() + std::size_t{block_size} * static_cast<std::size_t>(s.blocks.back());
    }
    *s.next++ = next;
    --s.room;
    ++s.num_tokens;
    s.last_access = now_;
    return true;
  }

  void clear(std::uint64_t id) {
    auto& s = sequences_[id & 0xffff'ffff];
    free_.insert(free_.end(), s.blocks.rbegin(), s.blocks.rend());
    s.blocks.clear();
    s.num_tokens = s.room = 0;
  }

 private:
  struct sequence {
    std::uint64_t generation = 0;
    std::vector<std::int32_t> blocks;
    std::int64_t num_tokens = 0;
    std::int64_t room = 0;
    token* next = nullptr;
    std::int64_t last_access = 0;
  };

  std::vector<token> tokens_;
  std::vector<sequence> sequences_;
  std::vector<std::int32_t> free_;
  std::int64_t now_ = 0;
};

void append_by_hand(benchmark::State& state) {
  auto cache = by_hand{};
  auto score = scoreboard{state, "append", "by_hand"};
  auto num_tokens = std::int64_t{0};
  for (auto _ : state) {
    if (num_tokens == tokens_per_sequence) {
      cache.clear(5);
      num_tokens = 0;
    }
    if (!cache.append(5, static_cast<token>(num_tokens++))) {
      state.SkipWithError("the cache is full");
      break;
    }
  }
  score.finish(1);
}

}  // namespace

BENCHMARK(append_by_hand)->UseRealTime();
PAGEDKV_FOR_ALL_POLICIES(append);
