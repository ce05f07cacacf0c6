#include "../support/best_of.hpp"

#include <pagedkv/pagedkv.hpp>

#include <benchmark/benchmark.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

// Times are the best of many repetitions; `ratio` is that of one call for the batch over that of single calls, both
// from this run.

namespace append_batch_bench {

using namespace pagedkv;

constexpr auto num_sequences = std::size_t{1024};
constexpr auto block_size = std::int32_t{16};
constexpr auto num_steps = std::size_t{64};

/// A decode step's bookkeeping for 1,024 sequences: commits what was computed, appends a token, and finds its slot. One
/// sequence in sixteen starts a block.
template <class Locking>
void decode_step(benchmark::State& state) {
  auto cache = kv_cache<float16, Locking>{{.block_size = block_size, .num_blocks = 1 << 15, .head_dim = 1}};
  auto entries = std::vector<batch_entry>(num_sequences);
  auto slots = std::vector<slot>(num_sequences);
  auto failures = std::vector<batch_failure>(num_sequences);
  auto new_blocks = std::vector<new_block>(num_sequences);
  const auto next = std::vector<token>(num_sequences, 7);
  auto length = std::vector<std::int64_t>(num_sequences);

  const auto start = [&] {
    for (std::size_t i = 0; i < num_sequences; ++i) {
      static_cast<void>(cache.release(entries[i].id));
      const auto prompt = std::vector<token>(64 + i % block_size, static_cast<token>(i));
      entries[i].id = cache.create_sequence(prompt, {.expected_tokens = 256})->id;
      entries[i].run = std::span{next}.subspan(i, 1);
      length[i] = static_cast<std::int64_t>(prompt.size());
    }
  };
  const auto singly = [&] {
    for (std::size_t step = 0; step < num_steps; ++step) {
      for (std::size_t i = 0; i < num_sequences; ++i) {
        const auto id = entries[i].id;
        if (!cache.commit(id, length[i]) || !cache.append(id, next[i]) ||
            !cache.slot_mapping(id, length[i], std::span{slots}.subspan(i, 1))) {
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
        if (!cache.append(entries[i].id, next[i])) {
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
      const auto done = cache.append_batch(entries, {slots, failures, new_blocks});
      if (!done || done->num_failures != 0) {
        state.SkipWithError("a token did not fit");
      }
      benchmark::ClobberMemory();
    }
  };

  constexpr auto repetitions = 20;
  constexpr auto per_sequence = 1e9 / static_cast<double>(num_sequences * num_steps);
  for (auto _ : state) {
    const auto loop = bench::best_seconds(repetitions, start, singly);
    const auto batch = bench::best_seconds(repetitions, start, [&] { at_once(true); });
    const auto append_loop = bench::best_seconds(repetitions, start, appended);
    const auto append_batch = bench::best_seconds(repetitions, start, [&] { at_once(false); });
    state.counters["ns"] = batch * per_sequence;
    state.counters["singly_ns"] = loop * per_sequence;
    state.counters["ratio"] = batch / loop;
    state.counters["no_commit_ns"] = append_batch * per_sequence;
    state.counters["append_ns"] = append_loop * per_sequence;
  }
}
BENCHMARK(decode_step<single_thread>)->Iterations(1);
BENCHMARK(decode_step<rw_lock>)->Iterations(1);

}  // namespace append_batch_bench
