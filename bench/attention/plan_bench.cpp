// The cost of a plan of attention on the host, for 1,024 sequences and the waves of a device with 132 processors.

#include <pagedkv/attention/plan.hpp>

#include <benchmark/benchmark.h>

#include <chrono>
#include <random>
#include <vector>

namespace {

using namespace pagedkv;

constexpr auto num_rows = 1024;
constexpr auto block_size = 16;

/// Sequences of a few thousand tokens that grow by one, after blocks that all of them share.
class growing_batch {
 public:
  explicit growing_batch(std::int32_t num_shared_blocks = 0) : num_shared_blocks_(num_shared_blocks) {
    auto random = std::mt19937(1);
    for (auto i = 0; i < num_rows; ++i) {
      lengths_.push_back(num_shared_blocks * block_size + 1 + static_cast<std::int32_t>(random() % 8000));
    }
    describe();
  }

  void grow() {
    for (auto& length : lengths_) {
      ++length;
    }
    describe();
  }

  [[nodiscard]] attention_batch view() const { return {indptr_, indices_, last_block_len_, {}}; }

 private:
  void describe() {
    indptr_.assign(1, 0);
    last_block_len_.clear();
    indices_.clear();
    for (const auto length : lengths_) {
      indptr_.push_back(indptr_.back() + (length + block_size - 1) / block_size);
      for (auto block = 0; block < indptr_.back() - indptr_[indptr_.size() - 2]; ++block) {
        const auto own = static_cast<std::int32_t>(indptr_.size()) << 12;
        indices_.push_back(block_id{block < num_shared_blocks_ ? block : own + block});
      }
      last_block_len_.push_back((length - 1) % block_size + 1);
    }
  }

  std::vector<std::int32_t> lengths_;
  std::vector<std::int32_t> indptr_;
  std::vector<std::int32_t> last_block_len_;
  std::vector<block_id> indices_;
  std::int32_t num_shared_blocks_;
};

[[nodiscard]] attention_planner make_planner(bool shares_prefixes) {
  auto shape = attention_shape{};
  shape.num_kv_heads = 8;
  shape.group_size = 4;
  shape.num_shares = 132 * 8;
  shape.max_rows = num_rows;
  shape.prefix_columns = shares_prefixes ? 128 : 0;
  shape.prefix_shares = 132 * 2;
  return attention_planner(shape);
}

void plan_from_scratch(benchmark::State& state, bool shares_prefixes, std::int32_t num_shared_blocks) {
  auto planner = make_planner(shares_prefixes);
  const auto batch = growing_batch(num_shared_blocks);
  for (auto _ : state) {
    benchmark::DoNotOptimize(planner.plan(batch.view()).has_value());
  }
}
BENCHMARK_CAPTURE(plan_from_scratch, flat, false, 0);
BENCHMARK_CAPTURE(plan_from_scratch, nothing_to_share, true, 0);
BENCHMARK_CAPTURE(plan_from_scratch, sharing_1024_blocks, true, 1024);

/// Growing the batch is not timed. Occasional plans from scratch are.
void plan_one_token_later(benchmark::State& state, bool shares_prefixes, std::int32_t num_shared_blocks) {
  auto planner = make_planner(shares_prefixes);
  auto batch = growing_batch(num_shared_blocks);
  benchmark::DoNotOptimize(planner.plan(batch.view()).has_value());
  for (auto _ : state) {
    batch.grow();
    const auto start = std::chrono::steady_clock::now();
    benchmark::DoNotOptimize(planner.update(batch.view()).has_value());
    state.SetIterationTime(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
}
BENCHMARK_CAPTURE(plan_one_token_later, flat, false, 0)->Iterations(2000)->UseManualTime();
BENCHMARK_CAPTURE(plan_one_token_later, nothing_to_share, true, 0)->Iterations(500)->UseManualTime();
BENCHMARK_CAPTURE(plan_one_token_later, sharing_1024_blocks, true, 1024)->Iterations(200)->UseManualTime();

}  // namespace
