#include "policies.hpp"
#include "scoreboard.hpp"

#include <benchmark/benchmark.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <vector>

namespace {

using namespace pagedkv;
using namespace pagedkv::bench;

constexpr auto num_in_pool = 8'192;
constexpr auto num_prompts = std::size_t{2'048};  // many times the pool's capacity
constexpr auto num_answer_tokens = 64;

/// Prompts like those of conversations: a system prompt that many share, often the history of a conversation, and a new
/// part. A third of their blocks repeats, as in the production traces.
std::vector<std::vector<token>> make_prompts() {
  auto random = std::mt19937{1};
  auto prompts = std::vector<std::vector<token>>(num_prompts);
  for (auto& prompt : prompts) {
    prompt = text(128, static_cast<token>(10'000'000 + 1'000 * (random() % 4)));
    if (random() % 2 == 0) {
      const auto history = text(64 * (1 + random() % 4), static_cast<token>(20'000'000 + 1'000 * (random() % 64)));
      prompt.insert(prompt.end(), history.begin(), history.end());
    }
    const auto fresh = text(128 + random() % 512, static_cast<token>(random() % 1'000'000'000));
    prompt.insert(prompt.end(), fresh.begin(), fresh.end());
  }
  return prompts;
}

/// Each thread submits a prompt, commits it, decodes an answer, and releases the sequence. Threads use the same
/// prompts, far apart. The pool is full most of the time, so blocks are evicted. An item is a request.
template <locking Locking>
void serve(benchmark::State& state) {
  static const auto prompts = make_prompts();
  static auto cache = std::unique_ptr<cache_under<Locking>>{};
  if (state.thread_index() == 0) {
    cache = std::make_unique<cache_under<Locking>>(config_of(num_in_pool));
  }
  auto next = num_prompts / 16 * static_cast<std::size_t>(state.thread_index());
  auto score = scoreboard{state, "serve", Locking::name};
  for (auto _ : state) {
    const auto& prompt = prompts[next++ % prompts.size()];
    const auto made = cache->create_sequence(prompt);
    auto num_tokens = static_cast<std::int64_t>(prompt.size());
    bool served = made && cache->commit(made->id, num_tokens);
    for (auto i = 0; served && i < num_answer_tokens; ++i) {
      served = cache->append(made->id, static_cast<token>(next + static_cast<std::size_t>(i))) &&
               cache->commit(made->id, ++num_tokens);
    }
    if (!served || !cache->release(made->id)) {
      state.SkipWithError("a request was refused");
      break;
    }
  }
  score.finish(1);
}

}  // namespace

PAGEDKV_FOR_ALL_POLICIES(serve);
