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

/// Sequences of a few thousand tokens that grow by one.
class growing_batch {
 public:
  growing_batch() {
    auto random = std::mt19937(1);
    for (auto i = 0; i < num_rows; ++i) {
      lengths_.push_back(1 + static_cast<std::int32_t>(random() % 8000));
    }
    describe();
  }

  void grow() {
    for (auto& length : lengths_) {
      ++length;
    }
    describe();
  }

  [[nodiscard]] attention_batch view() const { return {indptr_, {}, last_block_len_, {}}; }

 private:
  void describe() {
    indptr_.assign(1, 0);
    last_block_len_.clear();
    for (const auto length : lengths_) {
      indptr_.push_back(indptr_.back() + (length + block_size - 1) / block_size);
      last_block_len_.push_back((length - 1) % block_size + 1);
    }
  }

  std::vector<std::int32_t> lengths_;
  std::vector<std::int32_t> indptr_;
  std::vector<std::int32_t> last_block_len_;
};

[[nodiscard]] attention_planner make_planner() {
  auto shape = attention_shape{};
  shape.num_kv_heads = 8;
  shape.group_size = 4;
  shape.num_shares = 132 * 8;
  shape.max_rows = num_rows;
  return attention_planner(shape);
}

void plan_from_scratch(benchmark::State& state) {
  auto planner = make_planner();
  const auto batch = growing_batch();
  for (auto _ : state) {
    benchmark::DoNotOptimize(planner.plan(batch.view()).has_value());
  }
}
BENCHMARK(plan_from_scratch);

/// Growing the batch is not timed. Occasional plans from scratch are.
void plan_one_token_later(benchmark::State& state) {
  auto planner = make_planner();
  auto batch = growing_batch();
  benchmark::DoNotOptimize(planner.plan(batch.view()).has_value());
  for (auto _ : state) {
    batch.grow();
    const auto start = std::chrono::steady_clock::now();
    benchmark::DoNotOptimize(planner.update(batch.view()).has_value());
    state.SetIterationTime(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
}
BENCHMARK(plan_one_token_later)->Iterations(2000)->UseManualTime();

}  // namespace
