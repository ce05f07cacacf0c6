#include "../../examples/replay/contents.hpp"
#include "../../examples/support/trace.hpp"

#include <pagedkv/pagedkv.hpp>
#include <pagedkv/policy/eviction/clock_sweep.hpp>
#include <pagedkv/policy/locking/lock_free.hpp>
#include <pagedkv/policy/locking/sharded_mutex.hpp>

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <set>
#include <span>
#include <vector>

// Requests of a production trace, one at a time, blocks of 16 tokens: creation, commit, up to 32 decode steps of one
// token, release. The pool has a tenth of the distinct blocks, so nearly all of them are evicted and replaced. `ratio`
// is the time of a request over that of only hashing its prompt, both from this run.

namespace request_bench {

using namespace pagedkv;
using seconds = std::chrono::duration<double>;
using clock_type = std::chrono::steady_clock;

constexpr auto num_requests = std::size_t{2'000};
constexpr auto trace_block_size = std::size_t{512};
constexpr auto block_size = std::size_t{16};
constexpr auto max_steps = std::uint32_t{32};

[[nodiscard]] std::int32_t tenth_of_blocks(const std::vector<support::trace_request>& requests) {
  auto distinct = std::set<std::uint64_t>{};
  for (const auto& request : requests) {
    distinct.insert(request.blocks.begin(), request.blocks.end());
  }
  return static_cast<std::int32_t>(distinct.size() * trace_block_size / block_size / 10);
}

void fill_prompt(const support::trace_request& request, std::vector<token>& tokens) {
  tokens.resize(request.blocks.size() * trace_block_size);
  for (std::size_t i = 0; i < request.blocks.size(); ++i) {
    replay::fill_tokens(request.blocks[i], std::span{tokens}.subspan(i * trace_block_size, trace_block_size));
  }
  tokens.resize(request.num_prompt_tokens);
}

template <class Cache>
[[nodiscard]] bool decode(Cache& cache, sequence_id id, std::int64_t num_tokens, std::uint32_t num_steps) {
  for (auto i = std::uint32_t{0}; i < num_steps; ++i) {
    if (!cache.append(id, static_cast<token>(i)) || !cache.commit(id, ++num_tokens)) {
      return false;
    }
  }
  return true;
}

template <class Cache>
[[nodiscard]] bool serve(Cache& cache, const support::trace_request& request, const std::vector<token>& prompt) {
  const auto made = cache.create_sequence(prompt);
  const auto num_tokens = static_cast<std::int64_t>(prompt.size());
  return made && cache.commit(made->id, num_tokens) &&
         decode(cache, made->id, num_tokens, std::min(max_steps, request.num_output_tokens)) && cache.release(made->id);
}

void hash_blocks(const std::vector<token>& prompt) {
  auto last = std::uint64_t{0};
  for (std::size_t i = 0; i + block_size <= prompt.size(); i += block_size) {
    last = xxh3_hash::hash(last, std::span{prompt}.subspan(i, block_size));
  }
  benchmark::DoNotOptimize(last);
}

template <class Locking, class Eviction>
void serve_requests(benchmark::State& state) {
  auto requests = std::vector<support::trace_request>{};
  try {
    requests = support::read_trace(PAGEDKV_TRACES "/conversation_trace.jsonl", num_requests);
  } catch (const std::exception& e) {
    state.SkipWithError(e.what());
    return;
  }
  auto served = clock_type::duration{};
  auto hashed = clock_type::duration{};
  auto hit_tokens = std::int64_t{0};
  for (auto _ : state) {
    auto cache = kv_cache<float16, Locking, Eviction>{
        {.block_size = block_size, .num_blocks = tenth_of_blocks(requests), .head_dim = 1}};
    auto prompt = std::vector<token>{};
    for (const auto& request : requests) {
      fill_prompt(request, prompt);
      const auto start = clock_type::now();
      if (!serve(cache, request, prompt)) {
        state.SkipWithError("a request was refused");
        return;
      }
      const auto middle = clock_type::now();
      hash_blocks(prompt);
      served += middle - start;
      hashed += clock_type::now() - middle;
    }
    hit_tokens = cache.statistics().hit_tokens;
  }
  const auto num_served = static_cast<double>(state.iterations()) * static_cast<double>(requests.size());
  state.counters["us_per_request"] = seconds{served}.count() * 1e6 / num_served;
  state.counters["hash_us"] = seconds{hashed}.count() * 1e6 / num_served;
  state.counters["ratio"] = seconds{served} / seconds{hashed};
  state.counters["hit_tokens"] = static_cast<double>(hit_tokens);
}
BENCHMARK(serve_requests<single_thread, lru>)->Unit(benchmark::kMillisecond);
BENCHMARK(serve_requests<rw_lock, lru>)->Unit(benchmark::kMillisecond);
BENCHMARK(serve_requests<sharded_mutex, lru>)->Unit(benchmark::kMillisecond);
BENCHMARK(serve_requests<lock_free, clock_sweep>)->Unit(benchmark::kMillisecond);

}  // namespace request_bench
