// Attention on every core: decoding, relative to the rate at which the same cores read the same memory in the same run;
// with a shared prefix, relative to reading it for each sequence; with lists of blocks, relative to all blocks; and of
// prompts. Calls alternate between the keys and values of several layers, so that no cache holds them.

#include "../support/best_of.hpp"

#include <pagedkv/host/attend.hpp>
#include <pagedkv/host/thread_pool.hpp>
#include <pagedkv/policy/allocator/page_allocators.hpp>
#include <pagedkv/policy/element/float8.hpp>
#include <pagedkv/policy/layout/all.hpp>
#include <pagedkv/storage/layout.hpp>

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <concepts>
#include <cstdint>
#include <iterator>
#include <memory>
#include <numeric>
#include <random>
#include <stdexcept>
#include <type_traits>
#include <vector>

namespace {

using namespace pagedkv;

constexpr auto num_heads = 32;
constexpr auto head_dim = 128;
constexpr auto block_size = 16;
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

struct batch_shape {
  std::int32_t num_sequences = 16;
  std::int32_t num_tokens = 2048;  // of each sequence, in whole blocks
  std::int32_t shared_tokens = 0;  // that all sequences start with
  std::int32_t queries_each = 1;   // the last tokens
  std::int32_t group_size = 1;
  std::int64_t enough_bytes = std::int64_t{768} << 20;  // of keys and values of all layers
  std::int32_t num_layers = 0;  // 0: those of enough bytes

  /// Blocks of all sequences together.
  [[nodiscard]] std::int32_t num_blocks() const {
    return (shared_tokens + num_sequences * (num_tokens - shared_tokens)) / block_size;
  }

  /// Pairs of a query token and a token that it sees.
  [[nodiscard]] double num_pairs() const {
    return num_sequences * (queries_each * (num_tokens - queries_each) + queries_each * (queries_each + 1.0) / 2);
  }
};

/// A batch of sequences in blocks in random order, with random numbers in them. `Query`: of queries and outputs.
template <class Element, class Layout, class Query = float32>
class workload {
 public:
  explicit workload(const batch_shape& shape) : shape_(shape), plan_(lay_out(shape)) {
    memory_.reset(allocator_.allocate(size(), block_alignment));
    if (memory_ == nullptr) {
      throw std::runtime_error("no memory");
    }
    plan_.view.base = memory_.get();
    auto random = std::mt19937{1};
    fill(random);
    auto blocks = std::vector<block_id>(static_cast<std::size_t>(plan_.view.num_blocks));
    std::iota(reinterpret_cast<std::int32_t*>(blocks.data()),
              reinterpret_cast<std::int32_t*>(blocks.data() + blocks.size()), 0);
    std::shuffle(blocks.begin(), blocks.end(), random);
    const auto shared = static_cast<std::ptrdiff_t>(shape.shared_tokens / block_size);
    auto own = blocks.begin() + shared;
    for (auto row = 0; row <= shape.num_sequences; ++row) {
      indptr_.push_back(row * (shape.num_tokens / block_size));
      query_indptr_.push_back(row * shape.queries_each);
    }
    for (auto row = 0; row < shape.num_sequences; ++row) {
      indices_.insert(indices_.end(), blocks.begin(), blocks.begin() + shared);
      const auto count = shape.num_tokens / block_size - shared;
      indices_.insert(indices_.end(), own, own + count);
      own += count;
    }
    queries_.resize(static_cast<std::size_t>(query_indptr_.back()) * num_heads * head_dim);
    auto number = std::uniform_real_distribution<float>{-1, 1};
    std::ranges::generate(queries_, [&] { return Query::encode(number(random), 1.0f); });
    output_.resize(queries_.size());
  }

  /// Lists of `percent` of the blocks of each row, in order.
  void choose_blocks(listed_blocks kind, std::int32_t percent) {
    auto random = std::mt19937{2};
    const auto num_blocks = shape_.num_tokens / block_size;
    const auto count = static_cast<std::ptrdiff_t>(num_blocks * percent / 100);
    const auto num_lists = kind == listed_blocks::of_heads ? plan_.view.num_kv_heads : 1;
    auto all = std::vector<std::int32_t>(static_cast<std::size_t>(num_blocks));
    std::iota(all.begin(), all.end(), 0);
    kind_ = kind;
    list_blocks_.clear();
    list_indptr_.assign(1, 0);
    for (auto row = 0; row < shape_.num_sequences; ++row) {
      for (auto list = 0; list < num_lists; ++list) {
        std::ranges::sample(all, std::back_inserter(list_blocks_), count, random);
      }
      list_indptr_.push_back(static_cast<std::int32_t>(list_blocks_.size()));
    }
  }

  [[nodiscard]] std::int64_t bytes() const { return plan_.bytes; }

  [[nodiscard]] std::int32_t num_layers() const { return plan_.view.num_layers; }

  void attend(bool shares_prefixes = false) {
    for (auto layer = 0; layer < plan_.view.num_layers; ++layer) {
      attend_layer(layer, all_cores(), shares_prefixes);
    }
  }

  void attend_layer(std::int32_t layer, host::workers threads, bool shares_prefixes = false) {
    auto batch = attention_batch{indptr_, indices_, last_block_len_, query_indptr_};
    batch.shares_prefixes = shares_prefixes;
    batch.lists = {kind_, list_indptr_, list_blocks_};
    host::attend<Element, Query>(plan_.view, layer, batch, contiguous_rows(queries_, num_heads, head_dim),
                                 {contiguous_rows(output_, num_heads, head_dim)}, {}, threads)
        .value();
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

  static storage_plan lay_out(const batch_shape& shape) {
    auto config = cache_config{};
    config.block_size = block_size;
    config.num_blocks = shape.num_blocks();
    config.num_kv_heads = num_heads / shape.group_size;
    config.head_dim = head_dim;
    const auto one_layer = plan_storage<Layout>(config, size_of_element<Element>).value().bytes;
    config.num_layers = shape.num_layers != 0
                            ? shape.num_layers
                            : static_cast<std::int32_t>((shape.enough_bytes + one_layer - 1) / one_layer);
    return plan_storage<Layout>(config, size_of_element<Element>).value();
  }

  template <class Random>
  void fill(Random& random) {
    // The numbers of one block are used for all blocks.
    auto rows = std::vector<float>(static_cast<std::size_t>(block_size) * num_heads * head_dim);
    std::ranges::generate(rows, [&] { return std::uniform_real_distribution<float>{-1, 1}(random); });
    auto slots = std::vector<slot>(block_size);
    for (auto layer = 0; layer < plan_.view.num_layers; ++layer) {
      for (auto block = 0; block < plan_.view.num_blocks; ++block) {
        std::iota(reinterpret_cast<std::int64_t*>(slots.data()),
                  reinterpret_cast<std::int64_t*>(slots.data() + slots.size()), std::int64_t{block} * block_size);
        host::append<Element>(plan_.view, layer, slots, contiguous_rows(rows, plan_.view.num_kv_heads, head_dim),
                              contiguous_rows(rows, plan_.view.num_kv_heads, head_dim))
            .value();
      }
    }
  }

  struct release {
    std::size_t* bytes;
    void operator()(std::byte* pointer) const { huge_page_allocator{}.deallocate(pointer, *bytes); }
  };

  batch_shape shape_;
  storage_plan plan_;
  std::size_t bytes_ = static_cast<std::size_t>(plan_.bytes);
  huge_page_allocator allocator_;
  std::unique_ptr<std::byte[], release> memory_{nullptr, release{&bytes_}};
  std::vector<std::int32_t> indptr_;
  std::vector<std::int32_t> query_indptr_;
  std::vector<std::int32_t> last_block_len_ =
      std::vector<std::int32_t>(static_cast<std::size_t>(shape_.num_sequences), block_size);
  std::vector<block_id> indices_;
  listed_blocks kind_ = listed_blocks::none;
  std::vector<std::int32_t> list_indptr_;
  std::vector<std::int32_t> list_blocks_;
  std::vector<typename Query::storage> queries_;
  std::vector<typename Query::storage> output_;
};

/// Of the queries that an engine has beside keys of an element.
template <class Element>
using query_of =
    std::conditional_t<std::same_as<Element, bfloat16> || std::same_as<Element, float16>, Element, float32>;

/// `share_of_read`: share of the rate at which all cores read.
template <class Element, class Layout>
void decode(benchmark::State& state) {
  auto shape = batch_shape{};
  shape.group_size = static_cast<std::int32_t>(state.range(0));
  auto work = workload<Element, Layout, query_of<Element>>(shape);
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

/// Sequences that share a prefix. `flat_over_shared`: how many times as long it takes to read the prefix for each.
template <class Element>
void decode_shared(benchmark::State& state) {
  auto shape = batch_shape{};
  shape.group_size = static_cast<std::int32_t>(state.range(0));
  shape.num_sequences = static_cast<std::int32_t>(state.range(1));
  shape.shared_tokens = static_cast<std::int32_t>(state.range(2));
  shape.num_tokens = shape.shared_tokens + static_cast<std::int32_t>(state.range(3));
  auto work = workload<Element, hnd_layer_major, bfloat16>(shape);
  auto shared = 1e9;
  auto flat = 1e9;
  for (auto _ : state) {
    flat = std::min(flat, bench::best_seconds(1, [&] { work.attend(false); }));
    const auto seconds = bench::best_seconds(1, [&] { work.attend(true); });
    state.SetIterationTime(seconds);
    shared = std::min(shared, seconds);
  }
  state.counters["flat_ms"] = flat * 1e3 / work.num_layers();
  state.counters["shared_ms"] = shared * 1e3 / work.num_layers();
  state.counters["flat_over_shared"] = flat / shared;
}

/// Lists of some blocks. `share_of_time`: relative to all blocks without lists; `over_share`: that, relative to the
/// share of the blocks.
template <class Element, listed_blocks Kind>
void decode_listed(benchmark::State& state) {
  auto shape = batch_shape{};
  shape.group_size = static_cast<std::int32_t>(state.range(0));
  shape.num_tokens = 16384;
  shape.num_sequences = 4;
  auto all = workload<Element, hnd_layer_major, bfloat16>(shape);
  auto some = workload<Element, hnd_layer_major, bfloat16>(shape);
  some.choose_blocks(Kind, static_cast<std::int32_t>(state.range(1)));
  auto fastest_all = 1e9;
  auto fastest = 1e9;
  for (auto _ : state) {
    fastest_all = std::min(fastest_all, bench::best_seconds(1, [&] { all.attend(); }));
    const auto seconds = bench::best_seconds(1, [&] { some.attend(); });
    state.SetIterationTime(seconds);
    fastest = std::min(fastest, seconds);
  }
  state.counters["share_of_time"] = fastest / fastest_all;
  state.counters["over_share"] = fastest / fastest_all * 100 / static_cast<double>(state.range(1));
}

/// Small layers in turn, as in a step of an engine. `over_one_thread`: how long they take on all cores, relative to the
/// calling thread alone; `gap_us`: what the calling thread does between layers, so that the others may fall asleep.
void small_layers(benchmark::State& state) {
  auto shape = batch_shape{};
  shape.group_size = 4;
  shape.num_sequences = 1;
  shape.num_layers = 24;
  shape.num_tokens = static_cast<std::int32_t>(state.range(0));
  const auto gap = std::chrono::microseconds(state.range(1));
  auto work = workload<bfloat16, hnd_layer_major, bfloat16>(shape);
  const auto best_layer = [&](host::workers threads, std::vector<double>& best) {
    for (auto layer = 0; layer < work.num_layers(); ++layer) {
      const auto start = std::chrono::steady_clock::now();
      while (std::chrono::steady_clock::now() - start < gap) {
      }
      auto& seconds = best[static_cast<std::size_t>(layer)];
      seconds = std::min(seconds, bench::best_seconds(1, [&] { work.attend_layer(layer, threads); }));
    }
  };
  auto together = std::vector<double>(24, 1e9);
  auto alone = together;
  for (auto _ : state) {
    best_layer({}, alone);
    best_layer(all_cores(), together);
  }
  const auto microseconds = [](const std::vector<double>& best) {
    return std::accumulate(best.begin(), best.end(), 0.0) / static_cast<double>(best.size()) * 1e6;
  };
  state.counters["one_thread_us"] = microseconds(alone);
  state.counters["us"] = microseconds(together);
  state.counters["over_one_thread"] = microseconds(together) / microseconds(alone);
}

/// Causal attention of the last tokens of a prompt. `GFLOP/s` counts the pairs that the mask leaves.
template <class Element>
void prefill(benchmark::State& state) {
  auto shape = batch_shape{};
  shape.num_sequences = 1;
  shape.enough_bytes = std::int64_t{64} << 20;
  shape.group_size = static_cast<std::int32_t>(state.range(0));
  shape.queries_each = static_cast<std::int32_t>(state.range(1));
  shape.num_tokens = static_cast<std::int32_t>(state.range(2));
  auto work = workload<Element, hnd_layer_major, bfloat16>(shape);
  auto fastest = 1e9;
  for (auto _ : state) {
    const auto seconds = bench::best_seconds(1, [&] { work.attend(); });
    state.SetIterationTime(seconds);
    fastest = std::min(fastest, seconds);
  }
  const auto operations = 4.0 * shape.num_pairs() * num_heads * head_dim * work.num_layers();
  state.counters["GFLOP/s"] = operations / fastest / 1e9;
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
PAGEDKV_BENCHMARK_DECODE(float8_e4m3);
#define PAGEDKV_BENCHMARK_SHARED(element)                      \
  BENCHMARK(decode_shared<element>)                            \
      ->ArgNames({"group_size", "sequences", "shared", "own"}) \
      ->ArgsProduct({{1, 4, 8}, {2, 16}, {256, 16384}, {512}}) \
      ->UseManualTime()                                        \
      ->Unit(benchmark::kMillisecond)                          \
      ->Iterations(3)
PAGEDKV_BENCHMARK_SHARED(float16);
PAGEDKV_BENCHMARK_SHARED(bfloat16);
PAGEDKV_BENCHMARK_SHARED(int8);
PAGEDKV_BENCHMARK_SHARED(float8_e4m3);
#define PAGEDKV_BENCHMARK_LISTED(element, kind) \
  BENCHMARK(decode_listed<element, kind>)       \
      ->ArgNames({"group_size", "percent"})     \
      ->ArgsProduct({{1, 4}, {5, 10, 25, 100}}) \
      ->UseManualTime()                         \
      ->Unit(benchmark::kMillisecond)           \
      ->Iterations(5)
PAGEDKV_BENCHMARK_LISTED(bfloat16, listed_blocks::of_rows);
PAGEDKV_BENCHMARK_LISTED(bfloat16, listed_blocks::of_heads);
PAGEDKV_BENCHMARK_LISTED(int8, listed_blocks::of_rows);
BENCHMARK(small_layers)
    ->ArgNames({"tokens", "gap_us"})
    ->ArgsProduct({{32, 64, 128, 256, 512}, {0, 20, 300}})
    ->Unit(benchmark::kMillisecond)
    ->Iterations(200);
#define PAGEDKV_BENCHMARK_PREFILL(element)            \
  BENCHMARK(prefill<element>)                         \
      ->ArgNames({"group_size", "queries", "tokens"}) \
      ->Args({4, 2048, 2048})                         \
      ->Args({4, 512, 8192})                          \
      ->UseManualTime()                               \
      ->Unit(benchmark::kMillisecond)                 \
      ->Iterations(4)
PAGEDKV_BENCHMARK_PREFILL(float16);
PAGEDKV_BENCHMARK_PREFILL(bfloat16);
PAGEDKV_BENCHMARK_PREFILL(int8);
PAGEDKV_BENCHMARK_PREFILL(float8_e4m3);
// NOLINTEND(cert-err58-cpp)

}  // namespace
