#include "../support/best_of.hpp"

#include <pagedkv/pagedkv.hpp>

#include <benchmark/benchmark.h>

#include <cstddef>
#include <type_traits>
#include <vector>

// Times are the best of many repetitions; `ratio` is the time of an update over that of building the batch anew, both
// from this run.

namespace batch_bench {

using namespace pagedkv;

constexpr auto num_sequences = 1024;
constexpr auto block_size = 16;
constexpr auto context = 1024;
constexpr auto max_blocks = (context + 2 * block_size) / block_size;

/// 1,024 sequences of about a thousand tokens, one token longer each time. Their lengths are staggered, so that one in
/// sixteen starts a block.
template <class Batch>
void update_batch(benchmark::State& state) {
  auto cache = kv_cache<>{{.block_size = block_size, .num_blocks = num_sequences * max_blocks, .head_dim = 1}};
  auto ids = std::vector<sequence_id>{};
  for (auto i = 0; i < num_sequences; ++i) {
    const auto prompt = std::vector<token>(static_cast<std::size_t>(context - i % block_size), i);
    ids.push_back(cache.create_sequence(prompt)->id);
  }
  constexpr auto room = std::size_t{std::is_same_v<Batch, padded_batch> ? max_blocks : num_sequences * max_blocks};
  auto batch = Batch(num_sequences, room);
  static_cast<void>(cache.update(batch, ids));

  auto update = 0.0;
  auto rebuild = 0.0;
  for (auto _ : state) {
    update = bench::best_seconds(
        block_size,
        [&] {
          for (const auto id : ids) {
            static_cast<void>(cache.append(id, 1));
          }
        },
        [&] { static_cast<void>(cache.update(batch, ids)); });
    auto fresh = Batch(0, 0);
    rebuild = bench::best_seconds(
        block_size, [&] { fresh = Batch(num_sequences, room); }, [&] { static_cast<void>(cache.update(fresh, ids)); });
  }
  state.counters["update_us"] = update * 1e6;
  state.counters["rebuild_us"] = rebuild * 1e6;
  state.counters["ratio"] = update / rebuild;
}
BENCHMARK(update_batch<padded_batch>)->Iterations(1);
BENCHMARK(update_batch<compressed_batch>)->Iterations(1);

}  // namespace batch_bench
