// Decode attention on every core, relative to the rate at which the same cores read the same memory in the same run.
// Calls alternate between the keys and values of several layers, so that no cache holds them.

#include "../support/best_of.hpp"

#include <pagedkv/host/attend.hpp>
#include <pagedkv/host/thread_pool.hpp>
#include <pagedkv/policy/allocator/huge_page_allocator.hpp>
#include <pagedkv/policy/layout/all.hpp>
#include <pagedkv/storage/layout.hpp>

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <numeric>
#include <random>
#include <stdexcept>
#include <vector>

namespace {

using namespace pagedkv;

constexpr auto batch_size = 16;
constexpr auto num_tokens = 2048;
constexpr auto num_heads = 32;
constexpr auto head_dim = 128;
constexpr auto block_size = 16;
constexpr auto enough_bytes = std::int64_t{768} << 20;

host::thread_pool& all_cores() {
  static auto threads = host::thread_pool();
  return threads;
}

using words = std::uint64_t __attribute__((vector_size(64)));

#if defined(__x86_64__)
__attribute__((target_clones("avx512f", "avx2", "default")))
#endif
void read_all(const std::byte* memory, std::size_t bytes, std::uint64_t& result) {
  words sums[4] = {};
  for (auto at = std::size_t{0}; at + sizeof sums <= bytes; at += sizeof sums) {
    for (auto i = std::size_t{0}; i < 4; ++i) {
      words next;
      __builtin_memcpy(&next, memory + at + i * sizeof next, sizeof next);
      sums[i] ^= next;
    }
  }
  const auto sum = sums[0] ^ sums[1] ^ sums[2] ^ sums[3];
  result = sum[0] ^ sum[1] ^ sum[2] ^ sum[3] ^ sum[4] ^ sum[5] ^ sum[6] ^ sum[7];
}

/// A batch of sequences in blocks in random order, with random numbers in them.
template <class Element, class Layout>
class workload {
 public:
  explicit workload(std::int32_t group_size) : plan_(lay_out(group_size)) {
    memory_.reset(allocator_.allocate(size(), block_alignment));
    if (memory_ == nullptr) {
      throw std::runtime_error("no memory");
    }
    plan_.view.base = memory_.get();
    auto random = std::mt19937{1};
    fill(random);
    indices_.resize(static_cast<std::size_t>(plan_.view.num_blocks));
    std::iota(reinterpret_cast<std::int32_t*>(indices_.data()),
              reinterpret_cast<std::int32_t*>(indices_.data() + indices_.size()), 0);
    std::shuffle(indices_.begin(), indices_.end(), random);
    for (auto row = 0; row <= batch_size; ++row) {
      indptr_.push_back(row * (num_tokens / block_size));
    }
  }

  [[nodiscard]] std::int64_t bytes() const { return plan_.bytes; }

  void attend() {
    constexpr auto stride = std::int64_t{num_heads} * head_dim;
    for (auto layer = 0; layer < plan_.view.num_layers; ++layer) {
      host::attend<Element>(plan_.view, layer, {indptr_, indices_, last_block_len_, {}},
                            {{queries_.data(), stride, head_dim}, num_heads},
                            {{output_.data(), stride, head_dim}, nullptr}, {}, all_cores())
          .value();
    }
  }

  void read() const {
    const auto share = size() / static_cast<std::size_t>(all_cores().size());
    all_cores().run(all_cores().size(), [&](int thread) {
      auto result = std::uint64_t{0};
      read_all(memory_.get() + static_cast<std::size_t>(thread) * share, share, result);
      benchmark::DoNotOptimize(result);
    });
  }

 private:
  [[nodiscard]] std::size_t size() const { return static_cast<std::size_t>(plan_.bytes); }

  static storage_plan lay_out(std::int32_t group_size) {
    auto config = cache_config{};
    config.block_size = block_size;
    config.num_blocks = batch_size * num_tokens / block_size;
    config.num_kv_heads = num_heads / group_size;
    config.head_dim = head_dim;
    const auto one_layer = plan_storage<Layout>(config, size_of_element<Element>).value().bytes;
    config.num_layers = static_cast<std::int32_t>((enough_bytes + one_layer - 1) / one_layer);
    return plan_storage<Layout>(config, size_of_element<Element>).value();
  }

  template <class Random>
  void fill(Random& random) {
    // The numbers of one block are used for all blocks.
    auto rows = std::vector<float>(static_cast<std::size_t>(block_size) * num_heads * head_dim);
    std::ranges::generate(rows, [&] { return std::uniform_real_distribution<float>{-1, 1}(random); });
    const auto stride = std::int64_t{plan_.view.num_kv_heads} * head_dim;
    auto slots = std::vector<slot>(block_size);
    for (auto layer = 0; layer < plan_.view.num_layers; ++layer) {
      for (auto block = 0; block < plan_.view.num_blocks; ++block) {
        std::iota(reinterpret_cast<std::int64_t*>(slots.data()),
                  reinterpret_cast<std::int64_t*>(slots.data() + slots.size()), std::int64_t{block} * block_size);
        host::append<Element>(plan_.view, layer, slots, {rows.data(), stride, head_dim, block_size},
                              {rows.data(), stride, head_dim, block_size})
            .value();
      }
    }
  }

  struct release {
    std::size_t* bytes;
    void operator()(std::byte* pointer) const { huge_page_allocator{}.deallocate(pointer, *bytes); }
  };

  storage_plan plan_;
  std::size_t bytes_ = static_cast<std::size_t>(plan_.bytes);
  huge_page_allocator allocator_;
  std::unique_ptr<std::byte[], release> memory_{nullptr, release{&bytes_}};
  std::vector<std::int32_t> indptr_;
  std::vector<std::int32_t> last_block_len_ = std::vector<std::int32_t>(batch_size, block_size);
  std::vector<block_id> indices_;
  std::vector<float> queries_ = std::vector<float>(std::size_t{batch_size} * num_heads * head_dim, 0.1f);
  std::vector<float> output_ = std::vector<float>(queries_.size());
};

/// `share_of_read`: share of the rate at which all cores read.
template <class Element, class Layout>
void decode(benchmark::State& state) {
  auto work = workload<Element, Layout>(static_cast<std::int32_t>(state.range(0)));
  auto fastest = 1e9;
  auto fastest_read = 1e9;
  for (auto _ : state) {
    fastest_read = std::min(fastest_read, bench::best_seconds(1, [&] { work.read(); }));
    const auto seconds = bench::best_seconds(1, [&] { work.attend(); });
    state.SetIterationTime(seconds);
    fastest = std::min(fastest, seconds);
  }
  const auto gigabytes = static_cast<double>(work.bytes()) / 1e9;
  state.counters["GB/s"] = gigabytes / fastest;
  state.counters["read_GB/s"] = gigabytes / fastest_read;
  state.counters["share_of_read"] = fastest_read / fastest;
}

// NOLINTBEGIN(cert-err58-cpp)
#define PAGEDKV_BENCHMARK_DECODE(element)     \
  BENCHMARK(decode<element, hnd_layer_major>) \
      ->ArgName("group_size")                 \
      ->Arg(1)                                \
      ->Arg(4)                                \
      ->Arg(8)                                \
      ->UseManualTime()                       \
      ->Unit(benchmark::kMillisecond)         \
      ->Iterations(8);                        \
  BENCHMARK(decode<element, nhd_layer_major>) \
      ->ArgName("group_size")                 \
      ->Arg(1)                                \
      ->Arg(4)                                \
      ->Arg(8)                                \
      ->UseManualTime()                       \
      ->Unit(benchmark::kMillisecond)         \
      ->Iterations(8)
PAGEDKV_BENCHMARK_DECODE(float16);
PAGEDKV_BENCHMARK_DECODE(bfloat16);
PAGEDKV_BENCHMARK_DECODE(int8);
// NOLINTEND(cert-err58-cpp)

}  // namespace
