#include "policies.hpp"
#include "scoreboard.hpp"

#include <benchmark/benchmark.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace {

using namespace pagedkv;
using namespace pagedkv::bench;

constexpr auto num_tokens = std::size_t{4'096};
constexpr auto max_threads = 16;

/// Each thread looks up a cached text: all the same text, or each its own. An item is a block.
template <locking Locking, bool Shared>
void look_up(benchmark::State& state) {
  static auto cache = std::unique_ptr<cache_under<Locking>>{};
  static auto texts = std::vector<std::vector<token>>{};
  if (state.thread_index() == 0) {
    cache = std::make_unique<cache_under<Locking>>(config_of(max_threads * num_tokens / block_size));
    texts.clear();
    for (auto i = 0; i < max_threads; ++i) {
      texts.push_back(text(num_tokens, 1'000'000 * i));
      const auto id = cache->create_sequence(texts.back()).value().id;
      cache->commit(id, static_cast<std::int64_t>(num_tokens)).value();
      texts.back().push_back(0);
    }
  }
  auto score = scoreboard{state, Shared ? "look up shared" : "look up own", Locking::name};
  for (auto _ : state) {
    const auto& sought = texts[static_cast<std::size_t>(Shared ? 0 : state.thread_index())];
    if (cache->find_prefix(sought) != static_cast<std::int64_t>(num_tokens)) {
      state.SkipWithError("a cached text is not found");
      break;
    }
  }
  score.finish(num_tokens / block_size);
}

template <locking Locking>
void look_up_own_text(benchmark::State& state) {
  look_up<Locking, false>(state);
}

template <locking Locking>
void look_up_shared_text(benchmark::State& state) {
  look_up<Locking, true>(state);
}

}  // namespace

PAGEDKV_FOR_ALL_POLICIES(look_up_own_text);
PAGEDKV_FOR_ALL_POLICIES(look_up_shared_text);
