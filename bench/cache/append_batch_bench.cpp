#include "../support/best_of.hpp"

#include <pagedkv/pagedkv.hpp>

#include <benchmark/benchmark.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

// Times are the best of many repetitions; `ratio` is that of one call for the batch over that of single calls, both
// from this run.

namespace append_batch_bench {

using namespace pagedkv;

constexpr auto num_sequences = std::size_t{1024};
constexpr auto block_size = std::int32_t{16};
constexpr auto num_steps = std::size_t{64};
constexpr auto num_blocks = std::int32_t{1 << 16};

/// A decode step's bookkeeping for 1,024 sequences: commits what was computed, appends a token, and finds its slot. One
/// sequence in sixteen starts a block: a free one in a new pool, one that replaces another where the pool has been
/// turned over.
template <class Locking>
void decode_step(benchmark::State& state) {
  using cache_type = kv_cache<float16, Locking>;
  auto cache = std::unique_ptr<cache_type>{};
  auto entries = std::vector<batch_entry>(num_sequences);
  auto slots = std::vector<slot>(num_sequences);
  auto failures = std::vector<batch_failure>(num_sequences);
  auto new_blocks = std::vector<new_block>(num_sequences);
  const auto next = std::vector<token>(num_sequences, 7);
  auto length = std::vector<std::int64_t>(num_sequences);

  const auto start = [&] {
    for (std::size_t i = 0; i < num_sequences; ++i) {
      static_cast<void>(cache->release(entries[i].id));
      const auto prompt = std::vector<token>(64 + i % block_size, static_cast<token>(i));
      entries[i].id = cache->create_sequence(prompt, {.expected_tokens = 256})->id;
      entries[i].run = std::span{next}.subspan(i, 1);
      length[i] = static_cast<std::int64_t>(prompt.size());
    }
  };
  const auto singly = [&] {
    for (std::size_t step = 0; step < num_steps; ++step) {
      for (std::size_t i = 0; i < num_sequences; ++i) {
        const auto id = entries[i].id;
        if (!cache->commit(id, length[i]) || !cache->append(id, next[i]) ||
            !cache->slot_mapping(id, length[i], std::span{slots}.subspan(i, 1))) {
          state.SkipWithError("a token did not fit");
        }
        ++length[i];
      }
      benchmark::ClobberMemory();
    }
  };
  const auto appended = [&] {
    for (std::size_t step = 0; step < num_steps; ++step) {
      for (std::size_t i = 0; i < num_sequences; ++i) {
        if (!cache->append(entries[i].id, next[i])) {
          state.SkipWithError("a token did not fit");
        }
      }
      benchmark::ClobberMemory();
    }
  };
  const auto at_once = [&](bool commits) {
    for (std::size_t step = 0; step < num_steps; ++step) {
      for (std::size_t i = 0; i < num_sequences; ++i) {
        entries[i].num_computed_tokens = commits ? length[i]++ : batch_entry::no_commit;
      }
      const auto done = cache->append_batch(entries, {slots, failures, new_blocks});
      if (!done || done->num_failures != 0) {
        state.SkipWithError("a token did not fit");
      }
      benchmark::ClobberMemory();
    }
  };

  const auto turned_over = state.range(0) != 0;
  const auto renew = [&] {
    cache = std::make_unique<cache_type>(
        cache_config{.block_size = block_size, .num_blocks = num_blocks, .num_kv_heads = 1, .head_dim = 1});
  };
  const auto nanoseconds = [&](auto&& steps) {
    constexpr auto repetitions = 20;
    renew();
    while (turned_over && cache->statistics().evictions < num_blocks) {
      start();
      at_once(true);
    }
    const auto prepare = [&] {
      if (!turned_over) {
        renew();
      }
      start();
    };
    return bench::best_seconds(repetitions, prepare, steps) * 1e9 / static_cast<double>(num_sequences * num_steps);
  };
  for (auto _ : state) {
    const auto loop = nanoseconds(singly);
    const auto batch = nanoseconds([&] { at_once(true); });
    const auto append_loop = nanoseconds(appended);
    const auto append_batch = nanoseconds([&] { at_once(false); });
    state.counters["ns"] = batch;
    state.counters["singly_ns"] = loop;
    state.counters["ratio"] = batch / loop;
    state.counters["no_commit_ns"] = append_batch;
    state.counters["append_ns"] = append_loop;
  }
}
BENCHMARK(decode_step<single_thread>)->ArgName("turned_over")->Arg(0)->Arg(1)->Iterations(1);
BENCHMARK(decode_step<rw_lock>)->ArgName("turned_over")->Arg(0)->Arg(1)->Iterations(1);

}  // namespace append_batch_bench
